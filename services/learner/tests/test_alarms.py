"""Alarms fire on the shapes that they are for, once, and keep silent on healthy noise."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from learner.health.alarms import (
    DETECTORS,
    HELD_OUT_REWARD,
    OFF_TASK,
    TRAINING_REWARD,
    Figures,
    Limits,
    new_alarms,
    standing_alarms,
)
from learner.health.run_health import MAX_STEPS, RunHealth
from runspec.schema import HealthSpec

LIMITS = Limits()


def series(name: str, values: Sequence[float]) -> list[dict[str, float]]:
    return [{name: value} for value in values]


def joined(*parts: Sequence[Figures]) -> list[dict[str, float]]:
    return [
        {k: v for figures in step for k, v in figures.items()} for step in zip(*parts, strict=True)
    ]


def kinds(history: Sequence[Figures], limits: Limits = LIMITS) -> set[str]:
    return {alarm.kind for alarm in standing_alarms(history, limits)}


def noisy(values: Sequence[float], noise: float, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [value + rng.gauss(0, noise) for value in values]


def ramp(start: float, end: float, count: int) -> list[float]:
    return [start + (end - start) * i / (count - 1) for i in range(count)]


def healthy(seed: int, num_steps: int, rate: Callable[[float], float]) -> list[dict[str, float]]:
    """Figures of a sound run: 8 tasks of 8 rollouts with rewards of 0 and 1, evaluated on 50 tasks every 5 steps."""
    rng = random.Random(seed)

    def sampled(prefix: str, p: float, tasks: int, each: int) -> dict[str, float]:
        rewards: list[float] = []
        for _ in range(tasks):
            hard = rng.betavariate(2 * p + 1e-3, 2 * (1 - p) + 1e-3)
            rewards += [float(rng.random() < hard) for _ in range(each)]
        mean = sum(rewards) / len(rewards)
        spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        return {
            f"{prefix}reward/mean": mean,
            f"{prefix}reward/std": spread,
            f"{prefix}rollouts/ok": float(len(rewards)),
        }

    history = []
    for step in range(num_steps):
        along = step / num_steps
        figures = sampled("", rate(along), 8, 8) | {
            "entropy": (1 - 0.7 * along) * math.exp(rng.gauss(0, 0.1)),
            "kl": 0.05 * along * math.exp(rng.gauss(0, 0.3)),
            "completions/repetition": 0.1 + rng.gauss(0, 0.03),
        }
        if step % 5 == 0:
            figures |= sampled("eval/", rate(along), 50, 1)
            figures[OFF_TASK] = -2.0 * (1 + 0.02 * along + rng.gauss(0, 0.004))
        history.append(figures)
    return history


def test_collapse_of_the_reward_is_told_with_its_figures() -> None:
    history = series(TRAINING_REWARD, noisy([0.8] * 12 + [0.1] * 8, 0.05))
    (alarm,) = standing_alarms(history, LIMITS)
    assert alarm.kind == "reward_collapse"
    assert "fell from 0.79" in alarm.detail
    assert kinds(history[:12]) == set()


def test_collapse_is_seen_where_rewards_are_negative() -> None:
    history = series(TRAINING_REWARD, noisy([*ramp(-2, 0.05, 15), *ramp(0.05, -2, 10)], 0.05))
    assert "reward_collapse" in kinds(history)
    assert kinds(history[:15]) == set()


def test_fall_within_the_noise_of_a_small_batch_is_no_collapse() -> None:
    assert kinds(series(TRAINING_REWARD, noisy([0.5] * 10 + [0.4] * 10, 0.25, seed=3))) == set()


def test_collapse_of_the_entropy() -> None:
    assert kinds(series("entropy", noisy([*ramp(1.2, 0.05, 15), *[0.04] * 5], 0.002))) == {
        "entropy_collapse"
    }
    assert kinds(series("entropy", noisy(ramp(1.2, 0.3, 20), 0.02))) == set()


def test_repetition() -> None:
    name = "completions/repetition"
    assert kinds(series(name, noisy([0.1] * 10 + [0.7] * 6, 0.03))) == {"repetition"}
    assert kinds(series(name, noisy([0.6] * 20, 0.03))) == set()


@pytest.mark.parametrize(("last", "raised"), [(-2.09, False), (-2.11, True), (-1.5, False)])
def test_forgetting_is_a_relative_fall_of_five_percent(last: float, raised: bool) -> None:
    history = [{OFF_TASK: -2.0}, {"loss": 1.0}, {OFF_TASK: last}]
    assert kinds(history) == ({"forgetting"} if raised else set())
    assert kinds(history, Limits(forgetting=0.1)) == set()


def test_hacking_is_training_reward_up_and_held_out_reward_down() -> None:
    steps = 30
    paid = series(TRAINING_REWARD, noisy(ramp(0.3, 0.9, steps), 0.04))
    true = [*ramp(0.3, 0.5, 10), *ramp(0.5, 0.1, 20)]
    held_out = [
        {HELD_OUT_REWARD: value} if at % 3 == 0 else {}
        for at, value in enumerate(noisy(true, 0.02))
    ]
    (alarm,) = [a for a in standing_alarms(joined(paid, held_out), LIMITS)]
    assert alarm.kind == "reward_hacking"
    assert TRAINING_REWARD in alarm.detail
    assert HELD_OUT_REWARD in alarm.detail


def test_hacking_is_seen_from_the_first_evaluation_on() -> None:
    steps = 20
    paid = series(TRAINING_REWARD, ramp(0.2, 1.0, steps))
    held_out = [{HELD_OUT_REWARD: 0.6 - 0.03 * at} if at % 4 == 0 else {} for at in range(steps)]
    assert kinds(joined(paid, held_out)) == {"reward_hacking"}


def test_hacking_by_a_component_that_is_measured_and_not_paid() -> None:
    paid = series(TRAINING_REWARD, noisy(ramp(0.2, 1.0, 25), 0.03))
    right = series("rewards/right/mean", noisy(ramp(0.5, 0.0, 25), 0.03, seed=1))
    limits = Limits(held_out="rewards/right/mean")
    assert kinds(joined(paid, right), limits) == {"reward_hacking"}
    assert kinds(joined(paid, right)) == set()


@pytest.mark.parametrize("both", [(0.2, 0.9), (0.9, 0.85), (0.5, 0.5)])
def test_rewards_that_move_together_are_no_hacking(both: tuple[float, float]) -> None:
    paid = series(TRAINING_REWARD, noisy(ramp(*both, 30), 0.05))
    held_out = series(HELD_OUT_REWARD, noisy(ramp(*both, 30), 0.05, seed=2))
    assert kinds(joined(paid, held_out)) == set()


def test_kl_that_grows_without_gain_is_drift() -> None:
    held_out = series(HELD_OUT_REWARD, noisy([*ramp(0.2, 0.6, 10), *[0.55] * 20], 0.01))
    kl = series("kl", noisy([*ramp(0.0, 0.05, 10), *ramp(0.05, 0.8, 20)], 0.005))
    assert kinds(joined(held_out, kl)) == {"kl_drift"}
    earning = series(HELD_OUT_REWARD, noisy(ramp(0.2, 0.9, 30), 0.01))
    assert kinds(joined(earning, kl)) == set()


def test_alarm_is_new_once_and_again_after_it_has_ended() -> None:
    values = [0.8] * 10 + [0.1] * 6 + [0.8] * 10 + [0.1] * 6
    history = series(TRAINING_REWARD, noisy(values, 0.02))
    raised = [at for at in range(1, len(history) + 1) if new_alarms(history[:at], LIMITS)]
    assert len(raised) == 2
    assert 10 < raised[0] <= 16
    assert 26 < raised[1] <= 32


def test_limit_of_zero_switches_its_alarm_off() -> None:
    history = series(TRAINING_REWARD, [0.8] * 10 + [0.1] * 8)
    assert kinds(history, Limits(reward_fall=0)) == set()


def test_figures_that_are_missing_or_no_numbers_raise_nothing() -> None:
    nan = {name: math.nan for name in (TRAINING_REWARD, "entropy", "kl", HELD_OUT_REWARD)}
    for history in ([], [{}], [{}] * 30, [nan] * 30, [{TRAINING_REWARD: 0.5}] * 30):
        assert standing_alarms(history, LIMITS) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "allowed"),
    [
        (lambda x: 0.2 + 0.6 / (1 + math.exp(-10 * (x - 0.4))), 0),
        (lambda x: 0.4, 1),
        (lambda x: 0.1 + 0.3 * x, 1),
        (lambda x: 0.02, 1),
    ],
    ids=["learning", "flat", "slow", "rare"],
)
def test_sound_runs_of_sixty_steps_hardly_ever_raise_an_alarm(
    rate: Callable[[float], float], allowed: int
) -> None:
    alarmed = 0
    for seed in range(24):
        history = healthy(seed, 60, rate)
        ends = range(1, len(history) + 1)
        alarmed += any(
            detect(history[:end], LIMITS) for end in ends for detect in DETECTORS.values()
        )
    assert alarmed <= allowed


def test_long_runs_are_judged_by_their_start_and_their_last_steps() -> None:
    spec = HealthSpec()
    start, later = {"entropy": 1.0, OFF_TASK: -1.0}, {"entropy": 0.5}
    health = RunHealth(spec, [start] * 5 + [later] * 3 * MAX_STEPS)
    assert len(health._history) == spec.window + MAX_STEPS
    raised = [alarm.kind for _ in range(5) for alarm in health.judge({"entropy": 0.01})]
    assert raised == ["entropy_collapse"]
    assert [alarm.kind for alarm in health.judge({OFF_TASK: -1.2})] == ["forgetting"]
