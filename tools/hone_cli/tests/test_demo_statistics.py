"""Intervals, what an evaluation says, the table, and when the proof's claim holds."""

import random
import subprocess
import sys
from typing import Any

import pytest

from hone_cli.demo.measure import (
    LostRolloutsError,
    Measured,
    by_task,
    estimates,
    measured_from,
    unreadable_note,
)
from hone_cli.demo.pipeline import SeedResult
from hone_cli.demo.proof import judge, needs_more
from hone_cli.demo.statistics import (
    Estimate,
    bootstrap_mean,
    mean_of_tasks,
    paired_difference,
    pooled_difference,
    wilson,
)
from hone_cli.demo.table import aligned, comparison


def rng() -> random.Random:
    return random.Random(5)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, table I, method 3 (score, without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)],
)
def test_wilson_agrees_with_published_intervals(
    successes: int, trials: int, low: float, high: float
) -> None:
    found = wilson(successes, trials)
    assert found.value == pytest.approx(successes / trials)
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 4)])
def test_wilson_refuses_counts_that_make_no_proportion(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson(successes, trials)


def test_mean_gives_every_task_the_same_weight() -> None:
    assert mean_of_tasks({"a": [1.0], "b": [0.0, 0.0, 0.0]}) == 0.5
    with pytest.raises(ValueError, match="at least one value"):
        mean_of_tasks({"a": []})
    with pytest.raises(ValueError, match="at least one value"):
        mean_of_tasks({})


def test_bootstrap_interval_is_near_the_normal_one_for_many_tasks() -> None:
    draw = random.Random(1)
    values = {str(i): [draw.gauss(2.0, 1.0)] for i in range(400)}
    found = bootstrap_mean(values, rng())
    assert found.low < found.value < found.high
    assert (found.high - found.low) / 2 == pytest.approx(1.96 / 20, rel=0.15)


def test_samples_of_one_task_do_not_narrow_the_interval() -> None:
    once = {str(i): [float(i % 2)] for i in range(60)}
    often = {task: values * 10 for task, values in once.items()}
    assert bootstrap_mean(once, rng()) == bootstrap_mean(often, rng())


def test_bootstrap_is_the_same_for_the_same_seed() -> None:
    values = {str(i): [float(i)] for i in range(30)}
    assert bootstrap_mean(values, rng()) == bootstrap_mean(values, rng())
    assert bootstrap_mean(values, rng()) != bootstrap_mean(values, random.Random(6))


def test_pairing_removes_what_differs_between_tasks() -> None:
    before = {str(i): [i / 10] for i in range(50)}
    after = {task: [values[0] + 0.25] for task, values in before.items()}
    found = paired_difference(before, after, rng())
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))


def test_paired_difference_refuses_other_tasks() -> None:
    with pytest.raises(ValueError, match="different tasks, for example \\['c'\\]"):
        paired_difference({"a": [1.0]}, {"a": [1.0], "c": [1.0]}, rng())


def test_pooled_difference_counts_tasks_of_each_seed_apart() -> None:
    first = ({"a": [0.0], "b": [0.0]}, {"a": [1.0], "b": [1.0]})
    second = ({"a": [1.0]}, {"a": [1.0]})
    assert pooled_difference([first, second], rng()).value == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="no task"):
        pooled_difference([], rng())


def row(task: str, score: float, attempt: int = 0, sample: int = 0, **other: Any) -> dict[str, Any]:
    slot = {"phase": "evaluate", "step": 0, "group_index": int(task), "sample_index": sample}
    return {
        "rollout_id": f"{task}-{sample}-{attempt}",
        "task_id": f"t{task}",
        "slot": slot,
        "attempt": attempt,
        "outcome": "scored",
        "score": score,
        "kind": "" if score else "reasoning",
        "tool_call_count": 2,
        "sampled_token_count": 30,
        "duration": 1.5,
        **other,
    }


def test_measured_from_reads_the_rows_of_an_evaluation() -> None:
    found = measured_from([row("0", 0.85), row("1", 0.0)])
    assert found == [
        Measured(
            task_id="t0",
            rollout_id="0-0-0",
            reward=0.85,
            right=True,
            tool_calls=2,
            sampled_tokens=30,
            seconds=1.5,
        ),
        Measured(
            task_id="t1",
            rollout_id="1-0-0",
            reward=0.0,
            right=False,
            tool_calls=2,
            sampled_tokens=30,
            seconds=1.5,
        ),
    ]


def test_measured_from_takes_the_newest_attempt_of_a_slot_whatever_the_order() -> None:
    lost = row("0", 0.0, outcome="failed")
    again = row("0", 1.0, attempt=1)
    assert [m.rollout_id for m in measured_from([lost, again])] == ["0-0-1"]
    assert [m.rollout_id for m in measured_from([again, lost])] == ["0-0-1"]


def test_measured_from_refuses_an_evaluation_that_lost_a_rollout() -> None:
    rows = [row("0", 1.0), row("1", 0.0, outcome="failed"), row("2", 0.0, outcome="open")]
    with pytest.raises(LostRolloutsError, match=r"2 rollouts .* not judged, for example 1-0-0"):
        measured_from(rows)


def test_an_answer_that_could_not_be_read_counts_as_wrong_and_is_told() -> None:
    found = measured_from(
        [row("0", 1.0), row("1", 0.0), row("2", 0.0, outcome="masked", kind="extraction")]
    )
    assert [(m.reward, m.right, m.unreadable) for m in found] == [
        (1.0, True, False),
        (0.0, False, False),
        (0.0, False, True),
    ]
    assert unreadable_note(found) == (
        "1 of 3 answers could not be read and count as wrong; accuracy without them 0.500"
    )
    assert unreadable_note(found[:2]) == ""
    assert unreadable_note(found[2:]).endswith("without them 0.000")


def test_a_masked_rollout_without_a_kind_is_not_right() -> None:
    assert not measured_from([row("0", 1.0, outcome="masked", kind="")])[0].right


TERMINATED = """
import os, signal
from hone_cli.demo.suite import stop_on_sigterm
stop_on_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
finally:
    print("cleaned up", flush=True)
"""


def test_sigterm_leaves_room_to_stop_the_suite() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "cleaned up\n"
    assert "KeyboardInterrupt" in done.stderr


def test_estimates_cover_every_figure_of_the_table() -> None:
    measured = measured_from([row("0", 1.0), row("1", 0.0)])
    found = estimates(measured, rng())
    assert found["reward"].value == 0.5
    assert found["right"].value == 0.5
    assert found["tool_calls"] == Estimate(value=2.0, low=2.0, high=2.0)
    text = comparison([("before", found), ("after", found)], minimum_calls=1.0)
    assert len({line.count("[") for line in text.splitlines()[2:]}) == 1


def test_table_shows_values_with_intervals_and_the_minimum() -> None:
    plain = {
        name: Estimate(value=0.5, low=0.4, high=0.6)
        for name in ("reward", "right", "tool_calls", "sampled_tokens", "seconds")
    }
    text = comparison([("after SFT", plain)], minimum_calls=1.0)
    head, rule, reward, accuracy, calls, *_ = text.splitlines()
    assert head.endswith("after SFT")
    assert set(rule) == {"-", " "}
    assert reward.split() == ["reward", "0.500", "[0.400,", "0.600]"]
    assert accuracy.startswith("accuracy")
    assert "tool calls per rollout (minimum 1.00)" in calls
    assert "0.50 [0.40, 0.60]" in calls


def test_aligned_puts_numbers_under_one_another() -> None:
    assert aligned([["", "a"], ["long name", "10"], ["x", "5"]]).splitlines() == [
        "            a",
        "---------  --",
        "long name  10",
        "x           5",
    ]


def measured(task: int, reward: float, calls: int, right: bool | None = None) -> Measured:
    return Measured(
        task_id=f"t{task}",
        rollout_id=f"r{task}",
        reward=reward,
        right=reward > 0 if right is None else right,
        tool_calls=calls,
        sampled_tokens=20,
        seconds=1.0,
    )


def seed_result(before: list[Measured], after: list[Measured], steps: int = 10) -> SeedResult:
    return SeedResult(seed=0, before=before, after={steps: after})


def test_claim_holds_when_reward_rises_and_calls_fall() -> None:
    before = [measured(i, 0.7, 3) for i in range(40)]
    after = [measured(i, 1.0, 1) for i in range(40)]
    verdict = judge([seed_result(before, after)])
    assert verdict.failures == []
    assert (verdict.calls_before, verdict.calls_after) == (3.0, 1.0)
    assert verdict.reward_gain.value == pytest.approx(0.3)


def test_claim_names_everything_that_falls_short() -> None:
    before = [measured(i, 0.85, 2) for i in range(40)]
    after = [measured(i, 0.85 if i else 0.0, 2) for i in range(40)]
    reward, interval, accuracy, calls = judge([seed_result(before, after)]).failures
    assert "less than 7%" in reward
    assert "interval" in interval
    assert "accuracy fell by 0.025" in accuracy
    assert "tool calls fell by 0.0% to 2.00" in calls


def test_calls_near_the_minimum_count_although_they_fell_little() -> None:
    before = [measured(i, 0.5, 1) for i in range(40)]
    after = [measured(i, 1.0, 1) for i in range(40)]
    assert judge([seed_result(before, after)]).failures == []


def test_reward_that_starts_at_zero_does_not_divide_by_it() -> None:
    nothing = [measured(i, 0.0, 1) for i in range(5)]
    assert any(
        "reward rose by 0.0%" in text for text in judge([seed_result(nothing, nothing)]).failures
    )


def test_seeds_are_judged_together_by_their_last_measurement() -> None:
    before = [measured(i, 0.5, 2) for i in range(10)]
    good = [measured(i, 1.0, 1) for i in range(10)]
    slow = SeedResult(seed=1, before=before, after={10: before, 20: good})
    assert judge([seed_result(before, good), slow]).failures == []


@pytest.mark.parametrize(
    ("calls_before", "calls_after", "more"),
    [(3, 3, True), (3, 2, True), (5, 2, False), (2, 1, False), (1, 1, False)],
)
def test_a_seed_needs_more_steps_while_its_calls_are_high(
    calls_before: int, calls_after: int, more: bool
) -> None:
    result = seed_result([measured(0, 0.5, calls_before)], [measured(0, 0.5, calls_after)])
    assert needs_more(result) is more


def test_by_task_gathers_the_samples_of_a_task() -> None:
    found = by_task([measured(0, 1.0, 1), measured(0, 0.0, 3), measured(1, 1.0, 1)], "tool_calls")
    assert found == {"t0": [1.0, 3.0], "t1": [1.0]}
