"""Embeddings by WordLlama: a table of token vectors, averaged; its weights come with the package.

The package looks for its tokenizer in a folder that it does not ship and would then ask the network, so it is told
where it lies.
"""

from pathlib import Path

import numpy as np
import wordllama

from memory.nearest import Vectors

_MODEL = "l2_supercat"
_DIMENSION = 256


class WordLlamaEmbedder:
    """Keeps `memory.embedding.Embedder`."""

    name = f"wordllama/{_MODEL}/{_DIMENSION}"
    dimension = _DIMENSION

    def __init__(self) -> None:
        """Load the table: 32 MiB, a fifth of a second."""
        self._model = wordllama.WordLlama.load(
            _MODEL,
            dim=_DIMENSION,
            cache_dir=Path(wordllama.__file__).parent,
            disable_download=True,
        )

    def embed(self, text: str) -> Vectors:
        """Return the mean of the text's token vectors, scaled to length 1."""
        mean: Vectors = self._model.embed([text])[0]
        length = np.linalg.norm(mean)
        assert length > 0, "no token's vector is zero, and no average of them is"
        return mean / length
