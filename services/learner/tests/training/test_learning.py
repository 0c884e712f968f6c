"""Every algorithm that learns from rewards does so: a tiny model, a world with a tool, three seeds.

As `run.yaml` has them by default, but for the clip range of gspo: here two updates must get somewhere.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_runs import CALLS, ToolWorld, demonstrations, make_toy_model, mean_score, roll_out

from learner.training.algorithms.policy_gradient import PolicyGradientSettings
from learner.training.algorithms.ppo import PpoSettings
from learner.training.algorithms.table import KINDS
from learner.training.model import PolicySettings, load_policy
from learner.training.schedule import ScheduleSettings
from learner.training.trainer import Trainer, TrainerSettings

pytestmark = pytest.mark.slow

NUM_STEPS = 60
ROLLOUTS: dict[str, PolicyGradientSettings | PpoSettings] = {
    **{name: replace(kind, max_tokens=2) for name, kind in KINDS.items()},
    "ppo": PpoSettings(policy=PolicyGradientSettings(max_tokens=2)),
    "grpo_by_turn": PolicyGradientSettings(max_tokens=2, turn_rewards=True),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROLLOUTS)
def test_the_reward_rises(tmp_path: Path, name: str, seed: int) -> None:
    policy = load_policy(
        PolicySettings(
            folder=make_toy_model(tmp_path / "toy", seed),
            reference="base",
            seed=seed,
            value_head=name == "ppo",
        )
    )
    trainer = Trainer(
        policy,
        TrainerSettings(
            schedule=ScheduleSettings(learning_rate=5e-3, max_steps=NUM_STEPS),
            rollouts=ROLLOUTS[name],
            value_learning_rate=5e-3,
            updates_per_step=2,
        ),
    )
    generator = torch.Generator().manual_seed(seed)
    by_turn = name in ("ppo", "grpo_by_turn")
    scores = []
    for _ in range(NUM_STEPS):
        groups = roll_out(policy, ToolWorld(), generator, by_turn=by_turn)
        scores.append(mean_score(groups))
        trainer.rollout_step(groups)
    before, after = sum(scores[:3]) / 3, sum(scores[-3:]) / 3
    print(f"{name} seed {seed}: {before:.3f} -> {after:.3f}")
    assert after >= before + 0.2, (before, after)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_imitation_falls_and_the_agent_does_what_it_was_shown(
    tmp_path: Path, seed: int
) -> None:
    policy = load_policy(
        PolicySettings(folder=make_toy_model(tmp_path / "toy", seed), reference="base", seed=seed)
    )
    trainer = Trainer(
        policy,
        TrainerSettings(schedule=ScheduleSettings(learning_rate=5e-3, max_steps=NUM_STEPS)),
    )
    rows = demonstrations(ToolWorld(), [CALLS, None])
    losses = [trainer.sft_step(rows)["loss"] for _ in range(NUM_STEPS)]
    score = mean_score(roll_out(policy, ToolWorld(), torch.Generator().manual_seed(seed)))
    print(f"sft seed {seed}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, reward {score:.3f}")
    # Three ways to call and one value: no more than log(3) / 2 of the loss can be learned away.
    assert losses[-1] < min(0.8, losses[0] / 2)
    assert score > 0.8
