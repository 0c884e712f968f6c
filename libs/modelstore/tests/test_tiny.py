"""The tiny model is small, complete and the same every time."""

from pathlib import Path

import pytest
import torch
import transformers

from modelstore.resolve import resolve_model
from modelstore.tiny import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, seed=0)
    return folder


def test_tiny_model_is_the_same_for_the_same_seed(folder: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "again", seed=0)
    make_tiny_model(tmp_path / "other", seed=1)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    weights = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


def test_making_a_tiny_model_leaves_the_random_state_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    make_tiny_model(tmp_path, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_tiny_model_opens_and_has_one_to_two_million_parameters(folder: Path) -> None:
    resolved = resolve_model(str(folder), folder / "cache")
    model = transformers.AutoModelForCausalLM.from_pretrained(str(resolved))
    assert 1_000_000 < model.num_parameters() < 2_000_000
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 512)


@pytest.mark.parametrize(
    "text", ["plain words", "12 * 4 - 7 = 41", "\u00fc\u00e9\u4f60\u597d \U0001f600", "\n\t "]
)
def test_tiny_tokenizer_round_trips_any_text(folder: Path, text: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tiny_tokenizer_has_chatml_as_single_tokens(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(1) == 2
    assert ids.count(2) == 1
    assert len(tokenizer) == 512
