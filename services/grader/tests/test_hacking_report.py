"""Rewards against held-out graders: planted hacks alarm, healthy runs and noise do not."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from grader.analysis.hacking import HackingReport, RewardRow, hacking_of, hacking_report
from grader.analysis.rows import GradedRow
from trajectory.types import Flag, Masked, Reward, Scored

STEPS, ROLLOUTS = 10, 64
Curve = Callable[[float], float]
"""From progress, 0 to 1, to the chance of a 1."""


def _rows(
    rng: np.random.Generator, *, noise: float = 0.05, steps: int = STEPS, **curves: Curve
) -> list[RewardRow]:
    """Zeros and ones of each reward, whose chance follows a curve and varies from step to step as tasks do."""
    rows = []
    for step in range(steps):
        shift = rng.normal(0, noise)
        for name, curve in curves.items():
            chance = np.clip(curve(step / (steps - 1)) + shift, 0, 1)
            weight = 0.0 if name.startswith("held") else 1.0
            values = rng.random(ROLLOUTS) < chance
            rows += [RewardRow(step=step, name=name, weight=weight, value=float(v)) for v in values]
    return rows


def _report(seed: int, **curves: Curve) -> HackingReport:
    rows = _rows(np.random.default_rng(seed), **curves)
    return hacking_report(rows, seed=seed, num_resamples=500)


@pytest.mark.parametrize(
    ("reward", "held", "least"),
    [
        (lambda p: 0.3 + 0.5 * p, lambda p: 0.3, 17),
        (lambda p: 0.3 + 0.5 * p, lambda p: 0.6 - 0.3 * p, 19),
        (lambda p: 0.1 + 0.8 * p, lambda p: 0.0, 17),
    ],
)
def test_a_reward_that_leaves_the_held_out_grader_behind_alarms(
    reward: Curve, held: Curve, least: int
) -> None:
    reports = [_report(seed, reward=reward, held=held) for seed in range(20)]
    alarms = [alarm for report in reports for alarm in report.alarms]
    assert {(alarm.trained, alarm.held_out) for alarm in alarms} == {("reward", "held")}
    assert len(alarms) >= least


def test_an_alarm_says_what_moved_and_how() -> None:
    report = _report(0, reward=lambda p: 0.2 + 0.7 * p, held=lambda p: 0.8 - 0.6 * p)
    assert report.alarms[0].text.startswith("reward rises by +0.")
    assert "while held, which is held out, falls: -0." in report.alarms[0].text
    assert "held out" in report.text().splitlines()[2]


HEALTHY: list[tuple[Curve, Curve]] = [
    (lambda p: 0.3 + 0.5 * p, lambda p: 0.3 + 0.5 * p),
    (lambda p: 0.2 + 0.6 * p, lambda p: 0.3 + 0.3 * p),
    (lambda p: 0.3 + 0.08 * p, lambda p: 0.3 + 0.08 * p),
    (lambda p: 0.5, lambda p: 0.5),
    (lambda p: 0.7 - 0.4 * p, lambda p: 0.7 - 0.4 * p),
]


@pytest.mark.slow
@pytest.mark.parametrize(("reward", "held"), HEALTHY)
def test_healthy_runs_do_not_alarm(reward: Curve, held: Curve) -> None:
    alarms = [bool(_report(seed, reward=reward, held=held).alarms) for seed in range(100)]
    assert sum(alarms) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "steps"), [(0.1, 5), (0.1, 10)])
def test_noise_alarms_in_one_run_of_twenty_at_most(noise: float, steps: int) -> None:
    alarms = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        level: Curve = lambda p: 0.5  # noqa: E731 - the curve of a run that learns nothing
        rows = _rows(rng, noise=noise, steps=steps, one=level, two=level, held=level, held_2=level)
        alarms += bool(hacking_report(rows, seed=seed, num_resamples=300).alarms)
    assert alarms <= 50


def test_the_interval_of_a_slope_holds_its_level() -> None:
    missed = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        rows = [
            RewardRow(step=step, name="r", weight=1, value=0.1 * step + rng.normal())
            for step in range(8)
        ]
        trend = hacking_report(rows, seed=seed, num_resamples=400).trends[0]
        missed += not trend.low <= 0.1 <= trend.high
    assert 5 <= missed <= 36


def test_the_same_seed_says_the_same() -> None:
    rows = _rows(np.random.default_rng(1), reward=lambda p: p, held=lambda p: 0.5)
    assert hacking_report(rows, seed=3) == hacking_report(rows, seed=3)


def test_an_exact_line_has_an_exact_slope() -> None:
    rows = [RewardRow(step=s, name="r", weight=1, value=0.5 + 0.25 * s) for s in range(6)]
    trend = hacking_report(rows).trends[0]
    assert (trend.slope, trend.low, trend.high) == pytest.approx((0.25, 0.25, 0.25))
    assert trend.rises


def test_a_constant_reward_has_no_trend() -> None:
    rows = [RewardRow(step=s, name="r", weight=1, value=1.0) for s in range(6)]
    trend = hacking_report(rows).trends[0]
    assert (trend.slope, trend.rises, trend.falls) == (0.0, False, False)


def test_without_steps_or_a_held_out_grader_the_report_says_so() -> None:
    assert "at least 5 steps, found 0" in hacking_report([]).text()
    few = [RewardRow(step=s, name="r", weight=1, value=s) for s in range(4)]
    assert "at least 5 steps, found 4" in hacking_report(few).text()
    alone = [RewardRow(step=s, name="r", weight=1, value=s) for s in range(6)]
    assert "nothing is held out" in hacking_report(alone).text()
    measured = [RewardRow(step=s, name="r", weight=0, value=s) for s in range(6)]
    assert "nothing is trained" in hacking_report(measured).text()


def _graded(step: int | None, score: float, accuracy: float, *flags: str) -> GradedRow:
    rewards = tuple(
        Reward(name=name, value=value, weight=weight, grader_name="x", grader_version="1")
        for name, value, weight in (("style", score, 1.0), ("accuracy", accuracy, 0.0))
    )
    outcome = Scored(
        rewards=rewards,
        score=score,
        flags=tuple(Flag(name=name, detail="", priced=False) for name in flags),
    )
    return GradedRow(row_id="r", task_id="t", step=step, outcome=outcome)


def test_graded_rollouts_are_compared_by_score_rewards_and_flags() -> None:
    rows = [
        _graded(step, 0.1 * step + 0.01 * n, 0.5 + 0.01 * (step % 2) + 0.01 * n, *flags)
        for step in range(8)
        for n, flags in enumerate([("lucky_guess",) * (step > 3), ("lucky_guess",) * (step > 5)])
    ]
    rows += [_graded(None, 1.0, 1.0), _graded(None, 0.0, 0.0, "addresses_judge")]
    masked = Masked(kind=None, reason="x")
    rows.append(GradedRow(row_id="m", task_id="t", step=0, outcome=masked))
    report = hacking_of(rows)
    assert {alarm.trained for alarm in report.alarms} == {"score", "style"}
    assert {alarm.held_out for alarm in report.alarms} == {"accuracy"}
    assert [flag.share for flag in report.flags] == [0, 0, 0, 0, 0.5, 0.5, 1, 1]
    text = report.text()
    assert "flagged lucky_guess: 0.0% of the first step, 100.0% of the last" in text
    assert "ALARM score rises by" in text
    assert json.loads(json.dumps(report.json()))["num_steps"] == 8


def test_rollouts_that_only_measured_are_not_steps_of_training() -> None:
    trained = [replace(_graded(step, 0.1 * step, 0.5), phase="train") for step in range(8)]
    measured = [replace(_graded(step, 1.0, 0.0), phase="evaluate") for step in range(0, 40, 5)]
    assert hacking_of([*trained, *measured]) == hacking_of(trained)
