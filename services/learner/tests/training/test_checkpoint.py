"""Checkpoints are whole or absent, and a run that goes on from one is the run that never stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from learner.ports import ScoredRollout
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.checkpoint import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from learner.training.model import Policy, PolicySettings, load_policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings

pytestmark = pytest.mark.slow

MakePolicy = Callable[..., Policy]
MakeGroups = Callable[..., list[list[ScoredRollout]]]


def _trainer(policy: Policy) -> Trainer:
    schedule = ScheduleSettings(learning_rate=1e-2, max_steps=5, warmup_steps=1, kind="linear")
    rollouts = PolicyGradientSettings() if policy.value_head is None else PpoSettings()
    return Trainer(policy, TrainerSettings(schedule=schedule, rollouts=rollouts))


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters.values()])


@pytest.mark.parametrize("value_head", [False, True])
@pytest.mark.parametrize("from_adapter", [False, True])
def test_two_and_two_steps_equal_four(
    make_policy: MakePolicy,
    make_groups: MakeGroups,
    tmp_path: Path,
    from_adapter: bool,
    value_head: bool,
) -> None:
    settings: dict[str, object] = {"fresh": True, "value_head": value_head}
    if from_adapter:
        make_policy().export_adapter(tmp_path / "start")
        settings["adapter"] = tmp_path / "start"
    batches = [make_groups(seed, group_size=4) for seed in range(4)]

    straight = _trainer(make_policy(**settings))
    figures = [straight.rollout_step(groups) for groups in batches]

    first = _trainer(make_policy(**settings))
    for groups in batches[:2]:
        first.rollout_step(groups)
    save_checkpoint(tmp_path / "checkpoints", first, {"cursor": 17})

    second = _trainer(make_policy(**settings))
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert found.state == {"cursor": 17}
    load_checkpoint(found, second)
    assert (second.step, second.policy_version) == (2, 2)
    resumed = [second.rollout_step(groups) for groups in batches[2:]]

    assert resumed == figures[2:]
    assert torch.equal(_weights(second), _weights(straight))


def test_the_reference_comes_back_from_the_checkpoint(
    make_policy: MakePolicy, make_groups: MakeGroups, tmp_path: Path
) -> None:
    make_policy().export_adapter(tmp_path / "start")
    first = _trainer(make_policy(fresh=True, adapter=tmp_path / "start"))
    first.rollout_step(make_groups(0))
    save_checkpoint(tmp_path / "checkpoints", first, {})
    # The folder that the run started from is overwritten meanwhile.
    make_policy(seed=9).export_adapter(tmp_path / "start")
    second = _trainer(make_policy(fresh=True, adapter=tmp_path / "start"))
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    load_checkpoint(found, second)
    assert second.rollout_step(make_groups(1))["kl"] == first.rollout_step(make_groups(1))["kl"]


def test_a_run_with_a_value_head_does_not_go_on_from_one_without(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    found = save_checkpoint(tmp_path, _trainer(make_policy()), {})
    with pytest.raises(CheckpointError):
        load_checkpoint(found, _trainer(make_policy(value_head=True)))


def test_the_random_state_comes_back(make_policy: MakePolicy, tmp_path: Path) -> None:
    trainer = _trainer(make_policy())
    found = save_checkpoint(tmp_path, trainer, {})
    wanted = torch.rand(3)
    load_checkpoint(found, trainer)
    assert torch.equal(torch.rand(3), wanted)


def test_the_newest_two_are_kept(make_policy: MakePolicy, tmp_path: Path) -> None:
    trainer = _trainer(make_policy())
    for step in range(12):
        trainer.step = step
        save_checkpoint(tmp_path, trainer, {"step": step})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000010", "step-00000011"]
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 11


def test_saving_a_step_again_replaces_it(make_policy: MakePolicy, tmp_path: Path) -> None:
    trainer = _trainer(make_policy())
    save_checkpoint(tmp_path, trainer, {"attempt": 1})
    save_checkpoint(tmp_path, trainer, {"attempt": 2})
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.state == {"attempt": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000"]


def test_what_a_crash_leaves_behind_is_ignored_and_swept_up(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    trainer = _trainer(make_policy())
    save_checkpoint(tmp_path, trainer, {})
    (tmp_path / ".step-00000009-abc").mkdir()
    (tmp_path / "step-00000008").mkdir()
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 0
    trainer.step = 1
    save_checkpoint(tmp_path, trainer, {})
    assert not (tmp_path / ".step-00000009-abc").exists()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nothing") is None
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("file", ["random.pt", "shards/.metadata", "shards/__0_0.distcp"])
def test_a_damaged_checkpoint_is_named(make_policy: MakePolicy, tmp_path: Path, file: str) -> None:
    trainer = _trainer(make_policy())
    found = save_checkpoint(tmp_path, trainer, {})
    assert (found.folder / file).is_file()
    (found.folder / file).write_bytes(b"not a file of torch")
    with pytest.raises(CheckpointError, match="step-00000000: "):
        load_checkpoint(found, trainer)
    (found.folder / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state\.json: not a checkpoint's state"):
        latest_checkpoint(tmp_path)


def test_a_checkpoint_of_a_run_with_another_reference_is_refused(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    make_policy().export_adapter(tmp_path / "start")
    found = save_checkpoint(tmp_path / "c", _trainer(make_policy()), {})
    other = _trainer(make_policy(fresh=True, adapter=tmp_path / "start"))
    with pytest.raises(CheckpointError, match="has no reference adapter"):
        load_checkpoint(found, other)


def test_saving_changes_neither_weights_nor_steps(
    make_policy: MakePolicy, make_groups: MakeGroups, tmp_path: Path
) -> None:
    results = []
    for save in (True, False):
        trainer = _trainer(make_policy())
        trainer.rollout_step(make_groups(0))
        if save:
            save_checkpoint(tmp_path, trainer, {})
        trainer.rollout_step(make_groups(1))
        results.append(_weights(trainer))
    assert torch.equal(*results)


@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_over_another_base_model_is_refused(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path, full: bool
) -> None:
    found = save_checkpoint(tmp_path / "c", _trainer(make_policy(fresh=True, full=full)), {})
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    weights = load_file(other / "model.safetensors")
    name = next(name for name in weights if "down_proj" in name)
    weights[name][0, 0] += 1e-3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    policy = load_policy(PolicySettings(folder=other, full=full))
    with pytest.raises(CheckpointError, match=r"model\.path"):
        load_checkpoint(found, _trainer(policy))
