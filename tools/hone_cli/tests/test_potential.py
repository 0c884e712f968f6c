"""What figures of an evaluation say of training on its tasks."""

import pytest
from hone.common.v1 import run_spec_pb2
from hone.learner.v1 import learner_pb2

from hone_cli.potential import Potential, lines, potential_of


def run(
    *, tasks: float = 100, spread: float = 0.0, right: float = 0.0, wrong: float = 0.0, gain: float
) -> learner_pb2.Run:
    return learner_pb2.Run(
        spec=run_spec_pb2.RunSpec(algorithm="evaluate"),
        metrics={
            "tasks/measured": tasks,
            "tasks/too_few_samples": 0,
            "tasks/spread_share": spread,
            "tasks/always_right_share": right,
            "tasks/always_wrong_share": wrong,
            "tasks/constant_share": 1 - spread - right - wrong,
            "pass@16": 0.9,
            "pass@2": 0.5,
            "reward/best_of_k": 0.5,
            "reward/potential_gain": gain,
            "groups/informative_share": spread,
        },
    )


def found(**figures: float) -> Potential:
    made = potential_of(run(**figures))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("spread", "right", "wrong", "verdict"),
    [
        (0.31, 0.3, 0.39, "31.0% of tasks with spread is plenty to learn from"),
        (0.30, 0.3, 0.4, "30.0% of tasks with spread is a good sign"),
        (0.15, 0.3, 0.55, "15.0% of tasks with spread is a good sign"),
        (0.14, 0.3, 0.56, "14.0% of tasks with spread is little to learn from"),
        (0.1, 0.3, 0.6, "10.0% of tasks with spread is little to learn from"),
        (
            0.09,
            0.8,
            0.11,
            "9.0% of tasks with spread is too few: most of the others are too easy",
        ),
        (
            0.09,
            0.11,
            0.8,
            "9.0% of tasks with spread is too few: most of the others are too hard",
        ),
        (
            0.0,
            0.4,
            0.4,
            "0.0% of tasks with spread is too few: the tasks are too easy or too hard",
        ),
        (
            0.05,
            0.05,
            0.0,
            "5.0% of tasks with spread is too few: most of the others always get one score in between",
        ),
    ],
)
def test_share_with_spread_is_judged(
    spread: float, right: float, wrong: float, verdict: str
) -> None:
    assert found(spread=spread, right=right, wrong=wrong, gain=0.1).verdict == verdict


def test_small_gain_and_few_tasks_are_said() -> None:
    assert found(tasks=49, spread=20 / 49, gain=0.049).verdict == (
        "40.8% of tasks with spread is plenty to learn from; best-of-k is near the mean, so there is little "
        "potential; fewer than 50 tasks make noisy estimates"
    )
    assert found(tasks=50, spread=0.2, gain=0.05).verdict.endswith("a good sign")


def test_intervals_stay_within_zero_and_one_and_pass_rates_are_in_order() -> None:
    told = lines(found(tasks=12, wrong=1.0, gain=0.0))
    assert "  with spread 0.0% (95% interval 0.0% to 24.2%)" in told
    assert told[0].startswith("12 tasks, ")
    assert lines(found(tasks=1, wrong=1.0, gain=0.0))[0].startswith("1 task, ")
    assert "  pass@2 0.5, pass@16 0.9" in told
    assert not any("left out" in line for line in told)


def test_run_that_told_no_spread_has_no_potential() -> None:
    training = run(spread=0.2, gain=0.1)
    training.spec.algorithm = "grpo"
    assert potential_of(training) is None
    single = run(gain=0.0)
    single.metrics.clear()
    assert potential_of(single) is None
    none_scored = run(tasks=0, gain=0.0)
    assert potential_of(none_scored) is None
