"""The fold: what counts, what is retried, what is late, and that order and repetition do not matter."""

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from learner.rollouts.ledger import RetryBudget, StepLedger
from trajectory import types as t

BUDGET = RetryBudget(infra=2, data=1)


def slot(sample: int, group: int = 0) -> t.Slot:
    return t.Slot(run_id="r", phase=t.Phase.TRAIN, step=0, group_index=group, sample_index=sample)


def record() -> t.RolloutRecord:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return t.RolloutRecord(
        task=t.Task(task_id="a", messages=()),
        messages=(),
        tokens=t.TokenRecord(rows=(), sampling=t.SamplingParams()),
        stop_reason=t.StopReason.COMPLETED,
        sandbox_id="",
        turns=(),
        grader_json="",
        start_time=moment,
        end_time=moment,
    )


def failure(by: t.Attribution = t.Attribution.INFRA, *, retryable: bool = True) -> t.Failure:
    kind = t.FailureKind.SANDBOX if by is t.Attribution.INFRA else t.FailureKind.BAD_TASK
    return t.Failure(kind=kind, retryable=retryable, attributable=by, detail="d")


def scored(value: float = 1.0) -> t.Scored:
    return t.Scored(rewards=(), score=value)


def ledger(samples: int = 1) -> StepLedger:
    return StepLedger({slot(i): "a" for i in range(samples)}, BUDGET)


def test_every_slot_is_wanted_once_at_first() -> None:
    step = ledger(3)
    assert [w.attempt for w in step.wanted()] == [0, 0, 0]
    step.fold_requested(slot(0), "r0", 0)
    assert [w.slot.sample_index for w in step.wanted()] == [1, 2]


def test_judgement_closes_the_slot_only_with_its_record() -> None:
    step = ledger()
    step.fold_requested(slot(0), "r0", 0)
    step.fold_outcome("r0", scored())
    assert not step.closed
    step.fold_finished("r0", record())
    assert step.closed
    assert step.scored()[0][2].score == 1.0


def test_infrastructure_failures_are_retried_within_their_own_budget() -> None:
    step = ledger()
    for attempt in range(3):
        assert [w.attempt for w in step.wanted()] == [attempt]
        step.fold_requested(slot(0), f"r{attempt}", attempt)
        step.fold_outcome(f"r{attempt}", failure())
    assert step.wanted() == []
    assert step.closed
    assert step.scored() == []


def test_data_failures_do_not_spend_the_infrastructure_budget() -> None:
    step = ledger()
    ends = [failure(t.Attribution.CLIENT), failure(), failure(), scored()]
    for attempt, end in enumerate(ends):
        step.fold_requested(slot(0), f"r{attempt}", attempt)
        if isinstance(end, t.Scored):
            step.fold_finished(f"r{attempt}", record())
        step.fold_outcome(f"r{attempt}", end)
    assert step.closed
    assert len(step.scored()) == 1
    assert len(step.failures()) == 3


def test_failure_that_cannot_be_retried_closes_the_slot() -> None:
    step = ledger()
    step.fold_requested(slot(0), "r0", 0)
    step.fold_outcome("r0", failure(retryable=False))
    assert step.closed


def test_late_result_of_an_old_attempt_is_counted_and_ignored() -> None:
    step = ledger()
    step.fold_requested(slot(0), "r0", 0)
    step.fold_outcome("r0", failure())
    step.fold_requested(slot(0), "r1", 1)
    step.fold_finished("r0", record())
    step.fold_outcome("r0", scored(0.0))
    assert step.late_ignored == 1
    assert not step.closed
    step.fold_finished("r1", record())
    step.fold_outcome("r1", scored(1.0))
    assert [s.score for _, _, s in step.scored()] == [1.0]


def test_facts_of_other_steps_change_nothing() -> None:
    step = ledger()
    other = t.Slot(run_id="r", phase=t.Phase.TRAIN, step=9, group_index=0, sample_index=0)
    step.fold_requested(other, "x", 0)
    step.fold_finished("x", record())
    step.fold_outcome("x", scored())
    assert len(step.wanted()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_repeated_facts_give_the_same_ledger(seed: int) -> None:
    facts = []
    for i in range(3):
        facts += [("requested", i, 0), ("failed", i, 0), ("requested", i, 1)]
        facts += [("finished", i, 1), ("scored", i, 1)]
    rng = random.Random(seed)
    repeated = list(itertools.chain.from_iterable([fact] * rng.randint(1, 3) for fact in facts))
    step = ledger(3)
    for kind, i, attempt in repeated:
        name = f"r{i}-{attempt}"
        match kind:
            case "requested":
                step.fold_requested(slot(i), name, attempt)
            case "failed":
                step.fold_outcome(name, failure())
            case "finished":
                step.fold_finished(name, record())
            case "scored":
                step.fold_outcome(name, scored(i / 10))
    assert step.closed
    assert [s.score for _, _, s in step.scored()] == [0.0, 0.1, 0.2]
    assert all(len(state.attempts) == 2 for state in step.slots.values())


def test_task_whose_data_fails_in_every_attempt_is_poison_and_a_sick_cluster_is_not() -> None:
    for by, expected in ((t.Attribution.CLIENT, {"a"}), (t.Attribution.INFRA, set())):
        step = ledger(2)
        for i in range(2):
            for attempt in range(3):
                step.fold_requested(slot(i), f"r{i}{attempt}", attempt)
                step.fold_outcome(f"r{i}{attempt}", failure(by))
                if not any(w.slot == slot(i) for w in step.wanted()):
                    break
        assert step.closed
        assert set(step.poison_tasks()) == expected


def with_reserve(groups: int, reserve: int, budget: RetryBudget = BUDGET) -> StepLedger:
    return StepLedger(
        {slot(i, group): "a" for group in range(groups) for i in range(2)},
        budget,
        reserve={slot(i, groups + n): "b" for n in range(reserve) for i in range(2)},
    )


def play(step: StepLedger, group: int, scores: tuple[float, float]) -> None:
    for i, score in enumerate(scores):
        step.fold_requested(slot(i, group), f"g{group}-{i}", 0)
        step.fold_finished(f"g{group}-{i}", record())
        step.fold_outcome(f"g{group}-{i}", scored(score))


def test_group_without_spread_brings_one_of_the_reserve_as_long_as_there_is_one() -> None:
    step = with_reserve(2, 2)
    play(step, 0, (0.0, 1.0))
    assert step.resampled_groups == 0
    play(step, 1, (1.0, 1.0))
    assert not step.closed
    assert {w.slot.group_index for w in step.wanted()} == {2}
    play(step, 2, (0.0, 0.0))
    assert {w.slot.group_index for w in step.wanted()} == {3}
    play(step, 3, (0.0, 0.0))
    assert step.closed
    assert step.resampled_groups == 2
    assert len(step.groups()) == 4


def test_group_that_was_lost_is_not_resampled() -> None:
    step = with_reserve(1, 1)
    play(step, 0, (1.0, 1.0))
    lost = with_reserve(1, 1)
    for i in range(2):
        lost.fold_requested(slot(i), f"r{i}", 0)
        lost.fold_outcome(f"r{i}", failure(retryable=False))
    assert (step.resampled_groups, lost.resampled_groups) == (1, 0)
    assert lost.closed


def test_group_of_the_reserve_that_another_life_asked_for_joins_though_its_cause_is_not_known() -> (
    None
):
    step = with_reserve(1, 3)
    step.fold_requested(slot(0, 2), "r", 0)
    assert step.resampled_groups == 2
    assert len(step.in_flight) == 1
    play(step, 0, (1.0, 1.0))
    assert step.resampled_groups == 2


@pytest.mark.parametrize(("acted", "counts"), [(2, False), (3, True), (4, True), (5, False)])
def test_attempt_counts_only_with_a_policy_version_that_may_be_learned_from(
    acted: int, counts: bool
) -> None:
    step = StepLedger({slot(0): "a"}, BUDGET, versions=range(3, 5))
    row = t.TokenRow(
        token_ids=(1, 2, 3),
        loss_mask=(False, True, True),
        logprobs=(0.0, -0.5, -0.5),
        spans=(
            t.TokenSpan(start=1, end=2, turn=0, policy_version=3),
            t.TokenSpan(start=2, end=3, turn=1, policy_version=acted),
        ),
    )
    tokens = t.TokenRecord(rows=(row,), sampling=t.SamplingParams())
    step.fold_requested(slot(0), "r0", 0)
    step.fold_outcome("r0", scored())
    step.fold_finished("r0", replace(record(), tokens=tokens))
    assert bool(step.scored()) is counts
    assert [w.attempt for w in step.wanted()] == ([] if counts else [1])
    assert (step.too_stale, step.unknown_version) == (int(acted < 3), int(acted > 4))
