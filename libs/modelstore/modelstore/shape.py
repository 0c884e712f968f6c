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

_GGUF_LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of the models of Llama's kind that packages carry."""


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
    config = _Config.of(folder / "config.json")
    shapes = dict(_safetensors(folder))
    return ModelShape(
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        num_layers=config.number("num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=config.number("hidden_size", "n_embd", "d_model"),
        vocabulary_size=config.number("vocab_size"),
        linear_shapes=_linear(shapes.items(), ".layers.", ".h."),
    )


def open_tokenizer(path: str, caches: Sequence[Path] = ()) -> Any:
    """Opens the tokenizer of the model called `path`; loads transformers.

    Raises:
        ModelUnusableError: there is no such model, or it lacks a part.
        ValueError: its files cannot be read.
    """
    import transformers

    folder = _folder(path, caches)
    options: dict[str, str] = {}
    if folder is None:
        file = packaged_file(path.removeprefix(PACKAGE_PREFIX))
        folder, options = file.parent, {"gguf_file": file.name}
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, **options
        )
    # What a spoilt file raises is of many kinds, plain Exception among them.
    except Exception as error:
        raise ValueError(f"{folder}: the tokenizer cannot be opened: {error}") from error


def _folder(path: str, caches: Sequence[Path]) -> Path | None:
    """The folder of a model; None of a packaged one that was not converted yet."""
    if path.startswith(PACKAGE_PREFIX):
        name = path.removeprefix(PACKAGE_PREFIX)
        return next(filter(Path.is_dir, (converted_folder(name, cache) for cache in caches)), None)
    folder = Path(path).expanduser()
    check_model_folder(folder)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """A model's config.json; that of a model of several kinds of input has its language model's within."""

    file: Path
    said: Mapping[str, object]

    @classmethod
    def of(cls, file: Path) -> "_Config":
        try:
            said = json.loads(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from error
        if not isinstance(said, dict):
            raise ValueError(f"{file} is no JSON object")
        inner = said.get("text_config")
        return cls(file=file, said=said | inner if isinstance(inner, dict) else said)

    def number(self, *names: str) -> int:
        """Returns a size by the first of its names that is there."""
        for name in names:
            value = self.said.get(name)
            if isinstance(value, int):
                return value
        raise ValueError(f"{self.file} says no {names[0]}")


def _safetensors(folder: Path) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Shapes by name, from the headings of the files."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            # A pointer of Git LFS, for one, begins with letters.
            if size > file.stat().st_size:
                raise ValueError(f"{file} holds no weights: its heading is longer than the file")
            try:
                heading = json.loads(stream.read(size))
                shapes = {k: tuple(v["shape"]) for k, v in heading.items() if k != "__metadata__"}
            except (ValueError, AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"{file} holds no weights: {error!r}") from error
        yield from shapes.items()


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
        linear_shapes={
            _renamed(name): shape for name, shape in _linear(shapes.items(), ".blk.").items()
        },
    )


def _renamed(name: str) -> str:
    """Gives a matrix of a GGUF file the name of its layer in transformers."""
    for theirs, ours in _GGUF_LAYERS.items():
        name = name.replace(f".{theirs}.", f".{ours}.")
    return name.replace("blk.", "model.layers.", 1)


def _linear(
    shapes: Iterable[tuple[str, tuple[int, ...]]], *blocks: str
) -> dict[str, tuple[int, int]]:
    return {
        name: (shape[0], shape[1])
        for name, shape in shapes
        if len(shape) == 2 and any(block in f".{name}" for block in blocks)
    }
