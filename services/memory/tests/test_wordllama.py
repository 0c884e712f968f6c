"""The packaged embedding model: unit vectors, sense, any text, no network."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memory.requests import MAX_INTENT_BYTES
from memory.wordllama_embedder import WordLlamaEmbedder


@pytest.fixture(scope="module")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


def test_it_loads_where_there_is_no_network_and_writes_nothing(tmp_path: Path) -> None:
    nowhere = {name: "http://127.0.0.1:9" for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
    code = (
        "from memory.wordllama_embedder import WordLlamaEmbedder as W; print(W().embed('a').shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **nowhere, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(256,)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["a", " x", "日本語", "\u200b", "\x01\n", "🦙", "x" * MAX_INTENT_BYTES]
)
def test_any_text_is_a_unit_vector_and_always_the_same(
    embedder: WordLlamaEmbedder, text: str
) -> None:
    vector = embedder.embed(text)
    assert (vector.dtype, vector.shape) == (np.float32, (embedder.dimension,))
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert (embedder.embed(text) == vector).all()


def test_what_means_alike_is_more_alike_than_what_does_not(embedder: WordLlamaEmbedder) -> None:
    query = embedder.embed("How many orders did customer 12 place in 2024?")
    near = embedder.embed("Count the orders that a customer made in a given year.")
    far = embedder.embed("Rename every log file in the folder /var/tmp.")
    assert query @ near > 0.5 > query @ far
