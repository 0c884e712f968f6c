"""Exports are what transformers and peft open, and say what the policy said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from learner.training.checkpoint import save_checkpoint
from learner.training.exporting import Source, base_hash, file_hash, write_export
from learner.training.model import Policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings

pytestmark = pytest.mark.slow

IDS = torch.tensor([[5, 9, 17, 33, 65, 129, 257, 511]])
MakePolicy = Callable[..., Policy]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def source_of(policy: Policy, base: Path, folder: Path, **changes: Any) -> Source:
    schedule = ScheduleSettings(learning_rate=1e-2, max_steps=5)
    trainer = Trainer(policy, TrainerSettings(schedule=schedule))
    trainer.step = trainer.policy_version = 3
    saved = save_checkpoint(folder, trainer, {})
    fields = {
        "run_id": "demo-1",
        "algorithm": "grpo",
        "step": 3,
        "policy_version": 3,
        "checkpoint": saved.folder,
        "base": base,
        "base_name": str(base),
        "dtype": "float32",
        "score": 0.75,
    }
    return Source(**{**fields, **changes})


def exported(source: Source, folder: Path, *, merged: bool) -> Path:
    folder.mkdir()
    write_export(source, folder, merged=merged)
    return folder


def test_adapter_opens_in_peft_over_its_base_with_the_policys_logits(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    policy = make_policy()
    source = source_of(policy, tiny_folder, tmp_path / "checkpoints")
    folder = exported(source, tmp_path / "out", merged=False)
    opened = peft.AutoPeftModelForCausalLM.from_pretrained(str(folder))
    assert torch.equal(logits(opened), logits(policy.model))
    base = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder))
    assert not torch.allclose(logits(base), logits(policy.model), atol=1e-3)


def test_merged_model_opens_in_transformers_with_the_policys_logits(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    policy = make_policy()
    source = source_of(policy, tiny_folder, tmp_path / "checkpoints")
    folder = exported(source, tmp_path / "out", merged=True)
    assert not (folder / "adapter_config.json").exists()
    opened = transformers.AutoModelForCausalLM.from_pretrained(str(folder))
    assert opened.dtype == torch.float32
    assert torch.allclose(logits(opened), logits(policy.model), atol=1e-5)


@pytest.mark.parametrize("merged", [False, True])
def test_export_brings_tokenizer_template_generation_settings_and_a_card_that_is_true(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path, merged: bool
) -> None:
    source = source_of(make_policy(), tiny_folder, tmp_path / "checkpoints")
    folder = exported(source, tmp_path / "out", merged=merged)
    ours, theirs = (
        transformers.AutoTokenizer.from_pretrained(str(at)) for at in (folder, tiny_folder)
    )
    chat = [{"role": "user", "content": "12 * 4?"}]
    assert ours.chat_template
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    transformers.GenerationConfig.from_pretrained(str(folder))
    manifest = json.loads((folder / "hone.json").read_text())
    for name, digest in manifest["files"].items():
        assert file_hash(folder / name) == digest
    assert set(manifest["files"]) | {"hone.json", "README.md"} == {
        path.name for path in folder.iterdir()
    }
    assert manifest["base_sha256"] == base_hash(tiny_folder)
    card = (folder / "README.md").read_text()
    weights = "model.safetensors" if merged else "adapter_model.safetensors"
    for said in ("demo-1", "step 3", str(tiny_folder), "0.75", manifest["files"][weights]):
        assert said in card


def test_all_weights_are_exported_as_the_model_that_was_trained(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    policy = make_policy(fresh=True, full=True)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
    source = source_of(policy, tiny_folder, tmp_path / "checkpoints")
    folder = exported(source, tmp_path / "out", merged=False)
    opened = transformers.AutoModelForCausalLM.from_pretrained(str(folder))
    assert torch.equal(logits(opened), logits(policy.model))
    assert json.loads((folder / "hone.json").read_text())["kind"] == "model"
