"""How large a model is, and its tokenizer, without opening its weights: for estimates. Loads no torch.

A packaged model that was converted before is read in the folder where it lies, else in its package.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelstore.resolve import (
    PACKAGE_PREFIX,
    check_model_folder,
    converted_folder,
    packaged_file,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A causal language model in numbers."""

    num_parameters: int
    """Each tensor once; tied embeddings are one."""
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    linear_shapes: Mapping[str, tuple[int, int]]
    """Rows and columns of the matrices of the blocks, by name: what adapters are made for."""


def model_shape(path: str, caches: Sequence[Path] = ()) -> ModelShape:
    """Reads the size of the model called `path`.

    Args:
        path: a folder, or package:NAME.
        caches: folders in which packaged models may lie converted.

    Raises:
        ModelUnusableError: there is no such model, or it lacks a part.
        ValueError: its files cannot be read.
    """
    folder = _folder(path, caches)
    if folder is None:
        return _of_gguf(packaged_file(path.removeprefix(PACKAGE_PREFIX)))
    config = json.loads((folder / "config.json").read_bytes())
    shapes = dict(_safetensors(folder))
    return ModelShape(
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        vocabulary_size=int(config["vocab_size"]),
        linear_shapes=_linear(shapes.items(), ".layers."),
    )


def open_tokenizer(path: str, caches: Sequence[Path] = ()) -> Any:
    """Opens the tokenizer of the model called `path`; loads transformers.

    Raises:
        ModelUnusableError: there is no such model, or it lacks a part.
    """
    import transformers

    folder = _folder(path, caches)
    if folder is not None:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    file = packaged_file(path.removeprefix(PACKAGE_PREFIX))
    return transformers.AutoTokenizer.from_pretrained(
        str(file.parent), gguf_file=file.name, local_files_only=True
    )


def _folder(path: str, caches: Sequence[Path]) -> Path | None:
    """The folder of a model; None of a packaged one that was not converted yet."""
    if path.startswith(PACKAGE_PREFIX):
        name = path.removeprefix(PACKAGE_PREFIX)
        return next(filter(Path.is_dir, (converted_folder(name, cache) for cache in caches)), None)
    folder = Path(path).expanduser()
    check_model_folder(folder)
    return folder


def _safetensors(folder: Path) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Shapes by name, from the headings of the files."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            heading = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in heading.items():
            if name != "__metadata__":
                yield name, tuple(entry["shape"])


def _of_gguf(file: Path) -> ModelShape:
    from gguf import GGUFReader

    reader = GGUFReader(str(file))
    # GGUF has the columns first.
    shapes = {t.name: tuple(int(size) for size in reversed(t.shape)) for t in reader.tensors}
    kind = reader.fields["general.architecture"].contents()

    def number(name: str) -> int:
        return int(reader.fields[f"{kind}.{name}"].contents())

    return ModelShape(
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        num_layers=number("block_count"),
        hidden_size=number("embedding_length"),
        vocabulary_size=shapes["token_embd.weight"][0],
        linear_shapes=_linear(shapes.items(), "blk."),
    )


def _linear(
    shapes: Iterable[tuple[str, tuple[int, ...]]], block: str
) -> dict[str, tuple[int, int]]:
    return {
        name: (shape[0], shape[1]) for name, shape in shapes if block in name and len(shape) == 2
    }
