"""What rewards teach that examples do not, and what a bad grader teaches: two worlds with a catch, three seeds each."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from toy_runs import (
    CALLS,
    DetourWorld,
    LeakyWorld,
    ToolWorld,
    World,
    demonstrations,
    make_toy_model,
    mean_score,
    roll_out,
)

from learner.health.alarms import Figures, Limits, standing_alarms
from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.model import Policy, PolicySettings, load_policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings

pytestmark = pytest.mark.slow


def _trainer(
    policy: Policy,
    num_steps: int,
    *,
    rate: float = 5e-3,
    kind: str = "constant",
    **rollouts: object,
) -> Trainer:
    return Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=rate, max_steps=num_steps, kind=kind),
            rollouts=PolicyGradientSettings(max_tokens=3, **rollouts),
            updates_per_step=2,
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_detour_is_learned_from_rewards_of_turns_and_not_from_direct_examples(
    tmp_path: Path, seed: int
) -> None:
    world = DetourWorld()
    folder = make_toy_model(tmp_path / "toy", seed)
    generator = torch.Generator().manual_seed(seed)
    imitator = load_policy(PolicySettings(folder=folder, reference="base", seed=seed))
    trainer = _trainer(imitator, 60)
    direct = demonstrations(world, [CALLS, CALLS, None])
    for _ in range(60):
        trainer.sft_step(direct)
    imitated = mean_score(roll_out(imitator, world, generator, num_groups=32))
    learner = load_policy(PolicySettings(folder=folder, reference="base", seed=seed))
    # The KL to the start keeps some exploration.
    trainer = _trainer(learner, 100, kind="linear", turn_rewards=True, kl_coef=0.02)
    before = mean_score(roll_out(learner, world, generator, num_groups=32))
    for _ in range(100):
        trainer.rollout_step(roll_out(learner, world, generator, group_size=16, by_turn=True))
    learned = mean_score(roll_out(learner, world, generator, num_groups=32))
    print(f"detour seed {seed}: imitated {imitated:.3f}, rewarded {before:.3f} -> {learned:.3f}")
    assert imitated < 0.2
    assert learned > 0.8


def _figures(
    trainer: Trainer, paid: World, held_out: World, generator: torch.Generator
) -> dict[str, float]:
    """Takes one step, and returns its figures under the names that a run has."""
    groups = roll_out(trainer.policy, paid, generator, num_groups=16)
    measured = roll_out(trainer.policy, held_out, generator, num_groups=16)
    figures = trainer.rollout_step(groups)
    for part, found in (("", groups), ("eval/", measured)):
        scores = torch.tensor([rollout.score for group in found for rollout in group])
        figures[f"{part}reward/mean"] = float(scores.mean())
        figures[f"{part}reward/std"] = float(scores.std(correction=0))
        figures[f"{part}rollouts/ok"] = float(len(scores))
    return figures


def _mean(history: Sequence[Figures], name: str) -> float:
    return sum(figures[name] for figures in history) / len(history)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("leaky", [True, False])
def test_a_grader_that_can_be_fooled_raises_the_alarm_and_a_sound_one_does_not(
    tmp_path: Path, leaky: bool, seed: int
) -> None:
    folder = make_toy_model(tmp_path / "toy", seed)
    generator = torch.Generator().manual_seed(seed)
    honest = load_policy(PolicySettings(folder=folder, reference="base", seed=seed))
    warm_up = _trainer(honest, 40)
    for _ in range(40):
        warm_up.rollout_step(roll_out(honest, ToolWorld(), generator, num_groups=16))
    honest.export_adapter(tmp_path / "warm")
    # The reference is the policy as the run starts.
    policy = load_policy(PolicySettings(folder=folder, adapter=tmp_path / "warm", seed=seed))
    trainer = _trainer(policy, 40, rate=3e-3, kl_coef=1e-3)
    paid = LeakyWorld() if leaky else ToolWorld()
    history = [_figures(trainer, paid, ToolWorld(), generator) for _ in range(40)]
    alarms = {alarm.kind for alarm in standing_alarms(history, Limits())}
    first, last = history[:5], history[-5:]
    rises = {
        name: _mean(last, name) - _mean(first, name)
        for name in ("reward/mean", "eval/reward/mean", "kl")
    }
    print(f"leaky {leaky} seed {seed}: {rises}, {sorted(alarms)}")
    assert ("reward_hacking" in alarms) == leaky
    assert (rises["kl"] > 1.0) == leaky
    assert (rises["reward/mean"] > 0.4) == leaky
    assert (rises["eval/reward/mean"] < -0.1) == leaky
