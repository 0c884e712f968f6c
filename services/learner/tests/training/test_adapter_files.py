"""Adapters from elsewhere: what would act as one policy and be trained as another is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from learner.training.model import Policy, PolicySettings, load_policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings
from modelstore.resolve import ModelUnusableError

MakePolicy = Callable[..., Policy]


def rewrite(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


@pytest.fixture
def adapter(make_policy: MakePolicy, tmp_path: Path) -> Path:
    make_policy(rank=4).export_adapter(tmp_path / "adapter")
    return tmp_path / "adapter"


def refused(model: Path, adapter: Path, text: str) -> None:
    """The policy, the reference and full weights refuse the adapter alike."""
    cases = [
        ("adapter", PolicySettings(folder=model, adapter=adapter)),
        ("adapter", PolicySettings(folder=model, adapter=adapter, full=True)),
        ("reference", PolicySettings(folder=model, reference=str(adapter))),
    ]
    for field, settings in cases:
        with pytest.raises(ModelUnusableError, match=rf"^model\.{field}: .*{text}") as caught:
            load_policy(settings)
        assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type: found 'IA3'; LORA"),
        ({"peft_type": "gone"}, "peft_type: found None; LORA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: found 'pissa'"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights: found 'loftq'"),
        ({"alora_invocation_tokens": [5, 6]}, "alora_invocation_tokens: only an adapter without"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: only"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication: only"),
        ({"target_parameters": ["mlp"]}, "target_parameters: only"),
        ({"bias": "all"}, "bias: only an adapter without"),
        ({"target_modules": ["q_proj"]}, "different layers: 0 weights missing, 24 without a place"),
        ({"target_modules": "("}, "does not fit the model or its own configuration"),
        ({"target_modules": []}, "does not fit|different layers"),
        ({"r": 8}, "does not fit the model or its own configuration"),
    ],
)
def test_configuration_that_is_not_of_the_weights_is_refused(
    tiny_folder: Path, adapter: Path, changes: dict[str, Any], text: str
) -> None:
    rewrite(adapter, **changes)
    refused(tiny_folder, adapter, text)


def test_weights_that_are_missing_are_not_started_anew(tiny_folder: Path, adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: w for name, w in weights.items() if "layers.0." in name}, file)
    refused(tiny_folder, adapter, "different layers: 14 weights missing, 0 without")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("adapter_config.json", "[" * 100_000, "adapter_config.json: "),
        ("adapter_config.json", "[1]", "adapter_config.json: "),
        ("adapter_model.safetensors", "no tensors", "adapter_model.safetensors: "),
    ],
)
def test_spoilt_files_are_named(
    tiny_folder: Path, adapter: Path, name: str, content: str, text: str
) -> None:
    (adapter / name).write_text(content)
    refused(tiny_folder, adapter, text)


@pytest.mark.parametrize(
    "changes",
    [
        {"init_lora_weights": "gaussian"},
        {"use_rslora": True},
        {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
        {"target_modules": "all-linear"},
        {"lora_dropout": 0.1},
    ],
)
def test_sound_adapters_open(
    make_policy: MakePolicy, adapter: Path, changes: dict[str, Any]
) -> None:
    rewrite(adapter, **changes)
    assert make_policy(fresh=True, adapter=adapter).parameters


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lora_alpha": 800}, "lora_alpha 32 is 800"),
        ({"use_rslora": True}, "use_rslora False is True"),
    ],
)
@pytest.mark.parametrize("reference", ["start", "base"])
def test_run_does_not_go_on_with_an_adapter_that_means_something_else(
    make_policy: MakePolicy,
    adapter: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    text: str,
    reference: str,
) -> None:
    def trainer() -> Trainer:
        policy = make_policy(fresh=True, adapter=adapter, reference=reference)
        schedule = ScheduleSettings(learning_rate=1e-2, max_steps=5)
        return Trainer(
            policy, TrainerSettings(schedule=schedule, rollouts=PolicyGradientSettings())
        )

    found = save_checkpoint(tmp_path / "checkpoints", trainer(), {})
    load_checkpoint(found, trainer())
    rewrite(adapter, **changes)
    with pytest.raises(CheckpointError, match=rf"{text} .*model\.adapter"):
        load_checkpoint(found, trainer())
