"""The measurement behind `model.dtype: auto`: of the model's own sizes, for models of different kinds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from learner.training.dtype_speed import MAX_OUTPUT_ROWS, measure, update_parts
from learner.training.model import PolicySettings
from modelstore.resolve import ModelUnusableError

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
KINDS = {
    "shared prefixes": transformers.LlamaConfig(**SIZES),
    "kinds of layers": transformers.Qwen2Config(**SIZES),
    "windows": transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=64),
    "another family": transformers.GPTNeoXConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_any_kind_are_measured_in_both_types(kind: str, tmp_path: Path) -> None:
    KINDS[kind].save_pretrained(str(tmp_path))
    settings = PolicySettings(folder=tmp_path, rank=4, checkpointing=kind == "shared prefixes")
    found = measure(settings, CPU)
    assert found.of_cpu
    assert 0.0 < found.float32 < 100.0
    assert 0.0 < found.bfloat16 < 100.0


def test_a_layer_counts_for_all_and_a_part_of_the_output_layer_for_the_whole(
    tmp_path: Path,
) -> None:
    words = 4 * MAX_OUTPUT_ROWS
    KINDS["shared prefixes"].save_pretrained(str(tmp_path / "small"))
    larger = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 7, "vocab_size": words})
    larger.save_pretrained(str(tmp_path / "larger"))
    for folder, shares in (("small", [3, 1.0]), ("larger", [7, 4.0])):
        parts = update_parts(PolicySettings(folder=tmp_path / folder, dtype="bfloat16"), CPU).parts
        assert [share for _, share in parts] == shares


def test_the_random_state_of_the_process_stays_as_it_was(tmp_path: Path) -> None:
    KINDS["shared prefixes"].save_pretrained(str(tmp_path))
    before = torch.get_rng_state()
    update_parts(PolicySettings(folder=tmp_path), CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusableError, match=r"model\.path: .* cannot be opened"):
        update_parts(PolicySettings(folder=tmp_path), CPU)
    KINDS["shared prefixes"].save_pretrained(str(tmp_path))
    settings = PolicySettings(folder=tmp_path)
    with pytest.raises(
        ModelUnusableError, match=r"lora\.target_modules: .* 'q_prog'; did you mean"
    ):
        update_parts(replace(settings, target_modules=("q_prog",)), CPU)
