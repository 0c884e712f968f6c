"""Figures of a step: what sharing environments wasted is said, and where none was shared nothing is."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from learner.figures.statistics import rollout_metrics
from learner.rollouts.ledger import RetryBudget, StepLedger
from trajectory import types as t

POLLUTED = t.Masked(kind=t.OutcomeKind.POLLUTED, reason="polluted")
UNREADABLE = t.Masked(kind=t.OutcomeKind.EXTRACTION, reason="cannot be read")


def _record(isolation: str) -> t.RolloutRecord:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return t.RolloutRecord(
        task=t.Task(task_id="a", messages=()),
        messages=(),
        tokens=t.TokenRecord(rows=(), sampling=t.SamplingParams()),
        stop_reason=t.StopReason.COMPLETED,
        sandbox_id="sbx_1",
        sandbox_isolation=isolation,
        turns=(),
        grader_json="",
        start_time=moment,
        end_time=moment,
    )


def _ledger(isolation: str, *outcomes: t.Outcome) -> StepLedger:
    slots = {
        t.Slot(run_id="r", phase=t.Phase.TRAIN, step=0, group_index=0, sample_index=number): "a"
        for number in range(len(outcomes))
    }
    ledger = StepLedger(slots, RetryBudget(infra=0, data=0))
    for number, (slot, outcome) in enumerate(zip(slots, outcomes, strict=True)):
        ledger.fold_requested(slot, f"r{number}", 0)
        ledger.fold_finished(f"r{number}", _record(isolation))
        ledger.fold_outcome(f"r{number}", outcome)
    return ledger


def test_the_wasted_share_is_said_where_environments_are_shared() -> None:
    scored = t.Scored(rewards=(), score=1.0)
    metrics = rollout_metrics(
        _ledger("optimistic(ns-root)", scored, POLLUTED, POLLUTED, UNREADABLE)
    )
    assert metrics["rollouts/masked"] == 3
    assert metrics["rollouts/polluted"] == 2
    assert metrics["rollouts/polluted_share"] == 0.5
    assert metrics["reward/mean"] == 1.0  # they have no vote


def test_lengths_are_of_sampled_tokens_and_the_share_that_was_cut_off_is_said() -> None:
    def record(count: int, reason: t.StopReason) -> t.RolloutRecord:
        turn = t.TurnRecord(
            turn=0,
            policy_version=0,
            prompt_token_count=90,
            sampled_token_count=count,
            generate_seconds=1.0,
            tools_seconds=0.0,
        )
        return replace(_record(""), turns=(turn,), stop_reason=reason)

    ends = [
        (4, t.StopReason.COMPLETED),
        (8, t.StopReason.MAX_TOKENS),
        (3, t.StopReason.CONTEXT_OVERFLOW),
        (1, t.StopReason.MAX_TURNS),
    ]
    slots = {
        t.Slot(run_id="r", phase=t.Phase.TRAIN, step=0, group_index=0, sample_index=n): "a"
        for n in range(len(ends))
    }
    ledger = StepLedger(slots, RetryBudget(infra=0, data=0))
    for number, (slot, end) in enumerate(zip(slots, ends, strict=True)):
        ledger.fold_requested(slot, f"r{number}", 0)
        ledger.fold_finished(f"r{number}", record(*end))
        ledger.fold_outcome(f"r{number}", t.Scored(rewards=(), score=0.0))
    metrics = rollout_metrics(ledger)
    lengths = {name: metrics[f"completions/{name}_length"] for name in ("min", "mean", "max")}
    assert lengths == {"min": 1.0, "mean": 4.0, "max": 8.0}
    assert metrics["completions/clipped_ratio"] == 0.5
    assert metrics["tokens/sampled"] == 16.0


def test_a_share_of_nothing_is_said_too() -> None:
    metrics = rollout_metrics(_ledger("optimistic(ns-root)", t.Scored(rewards=(), score=1.0)))
    assert metrics["rollouts/polluted_share"] == 0.0


@pytest.mark.parametrize("isolation", ["", "ns-root"])
def test_where_none_is_shared_nothing_is_said(isolation: str) -> None:
    ledger = _ledger(isolation, replace(POLLUTED, kind=t.OutcomeKind.EXTRACTION))
    assert not any("polluted" in name for name in rollout_metrics(ledger))
