"""Error analysis: every outcome has its type, counts and both accuracies are exact, and the sentences fit."""

from dataclasses import replace

import pytest

from grader.analysis.errors import Attempt, Result, analyse, attempt_of
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    GraderErrorKind,
    Masked,
    Outcome,
    OutcomeKind,
    Scored,
)


def scored(kind: OutcomeKind | None) -> Scored:
    return Scored(rewards=(), score=0.0 if kind else 1.0, kind=kind)


def failed(kind: FailureKind, stopped: GraderErrorKind | None = None) -> Failure:
    return Failure(
        kind=kind,
        retryable=True,
        attributable=Attribution.INFRA,
        detail="x",
        grader_error=stopped,
    )


@pytest.mark.parametrize(
    ("outcome", "result", "cause"),
    [
        (scored(None), Result.SUCCESS, ""),
        (scored(OutcomeKind.REASONING), Result.REASONING, ""),
        (scored(OutcomeKind.FORMAT), Result.FORMAT, ""),
        (scored(OutcomeKind.TOOL_USE), Result.TOOL_USE, ""),
        (scored(OutcomeKind.BUDGET), Result.BUDGET, ""),
        (Masked(kind=OutcomeKind.EXTRACTION, reason=""), Result.EXTRACTION, ""),
        (Masked(kind=OutcomeKind.POLLUTED, reason=""), Result.INFRASTRUCTURE, "polluted"),
        (Masked(kind=None, reason="no opinion"), Result.UNJUDGED, ""),
        (failed(FailureKind.SANDBOX), Result.INFRASTRUCTURE, "sandbox"),
        (
            failed(FailureKind.GRADER, GraderErrorKind.REFERENCE),
            Result.INFRASTRUCTURE,
            "grader (reference)",
        ),
    ],
)
def test_every_outcome_has_a_type(outcome: Outcome, result: Result, cause: str) -> None:
    assert attempt_of("r", 0, outcome) == Attempt(
        rollout_id="r", step=0, result=result, cause=cause
    )


def test_every_kind_of_outcome_and_failure_can_be_typed() -> None:
    for kind in OutcomeKind:
        assert attempt_of("r", 0, Masked(kind=kind, reason="")).result in Result
    for failure in FailureKind:
        assert attempt_of("r", 0, failed(failure)).result is Result.INFRASTRUCTURE


def attempts(results: dict[Result, int], step: int | None = 0) -> list[Attempt]:
    return [
        Attempt(rollout_id=f"{result}-{step}-{index}", step=step, result=result)
        for result, count in results.items()
        for index in range(count)
    ]


def test_accuracy_with_and_without_answers_that_could_not_be_read() -> None:
    report = analyse(
        attempts(
            {
                Result.SUCCESS: 6,
                Result.REASONING: 1,
                Result.FORMAT: 1,
                Result.EXTRACTION: 2,
                Result.INFRASTRUCTURE: 5,
                Result.UNJUDGED: 3,
            }
        )
    )
    assert report.accuracy == pytest.approx(6 / 10)
    assert report.accuracy_read == pytest.approx(6 / 8)
    assert report.extraction_share == pytest.approx(2 / 10)
    assert report.num_attempts == 18


@pytest.mark.parametrize(("unread", "alarm"), [(2, False), (3, True)])
def test_alarm_begins_above_two_percent(unread: int, alarm: bool) -> None:
    report = analyse(attempts({Result.SUCCESS: 100 - unread, Result.EXTRACTION: unread}))
    assert report.alarm is alarm
    assert any("Mend the grader" in line for line in report.next_steps) is alarm


def test_counts_per_step_are_in_the_order_of_the_steps_and_examples_are_the_first() -> None:
    found = attempts({Result.REASONING: 7}, step=1) + attempts({Result.BUDGET: 1}, step=0)
    report = analyse(found)
    assert list(report.by_step) == ["step 0", "step 1"]
    assert report.by_step["step 1"][Result.REASONING] == 7
    assert report.by_step["step 0"][Result.REASONING] == 0
    assert list(report.examples[Result.REASONING]) == [f"reasoning-1-{i}" for i in range(5)]
    assert Result.FORMAT not in report.examples


def test_rows_of_a_file_have_no_steps() -> None:
    assert analyse(attempts({Result.SUCCESS: 1}, step=None)).by_step == {}


def test_no_attempts_have_no_accuracy() -> None:
    report = analyse([])
    assert (report.accuracy, report.accuracy_read, report.alarm) == (None, None, False)
    assert list(report.next_steps) == []


def test_infrastructure_alone_has_no_accuracy() -> None:
    assert analyse(attempts({Result.INFRASTRUCTURE: 4})).accuracy is None


def test_advice_follows_the_most_frequent_error() -> None:
    report = analyse(attempts({Result.SUCCESS: 5, Result.TOOL_USE: 2, Result.FORMAT: 3}))
    assert [line.split(":")[0] for line in report.next_steps] == ["30% format", "20% tool_use"]


def test_rare_errors_are_counted_without_advice() -> None:
    report = analyse(attempts({Result.SUCCESS: 99, Result.BUDGET: 1}))
    assert report.counts[Result.BUDGET] == 1
    assert list(report.next_steps) == []


def test_phases_have_steps_of_their_own_and_training_alone_shows_progress() -> None:
    measured = [replace(a, phase="evaluate") for a in wrong_by_step([8, 6, 4, 2])]
    trained = [replace(a, phase="train") for a in wrong_by_step([5] * 12)]
    report = analyse([*trained, *measured])
    assert list(report.by_step)[3:6] == ["evaluate 3", "train 0", "train 1"]
    assert report.by_step["train 0"][Result.REASONING] == 5
    assert "More steps" not in " ".join(report.next_steps)
    assert "More steps" in " ".join(analyse([*measured, *wrong_by_step([8, 6, 4, 2])]).next_steps)


def wrong_by_step(wrong: list[int]) -> list[Attempt]:
    return [
        attempt
        for step, count in enumerate(wrong)
        for attempt in attempts({Result.REASONING: count, Result.SUCCESS: 10 - count}, step)
    ]


def test_falling_reasoning_errors_call_for_more_steps() -> None:
    (line,) = analyse(wrong_by_step([8, 6, 4, 2])).next_steps
    assert "More steps" in line and "fell by 40 percentage points" in line


@pytest.mark.parametrize("wrong", [[5, 5, 5, 5], [2, 4, 6, 8], [8, 2]])
def test_reasoning_errors_that_do_not_fall_call_for_data(wrong: list[int]) -> None:
    (line,) = analyse(wrong_by_step(wrong)).next_steps
    assert "Data" in line


def test_causes_of_infrastructure_errors_are_counted() -> None:
    outcomes = [failed(FailureKind.SANDBOX), failed(FailureKind.ENGINE), failed(FailureKind.ENGINE)]
    report = analyse(attempt_of(f"r{i}", 0, outcome) for i, outcome in enumerate(outcomes))
    assert list(report.causes.items()) == [("engine", 2), ("sandbox", 1)]
