"""Figures of a step or of an evaluation, under the names users know."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from learner.figures.repetition import repeated_share
from learner.rollouts.ledger import StepLedger, is_silent
from trajectory.types import (
    SHARED_ISOLATION,
    Masked,
    OutcomeKind,
    RolloutRecord,
    Scored,
    StopReason,
)

_CUT_OFF = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)
"""Ends of rollouts that wanted more tokens."""


def rollout_metrics(ledger: StepLedger) -> dict[str, float]:
    """Returns what the rollouts of a step were like.

    Every length counts policy tokens only. Rates are over slots; rewards are over scored slots only.
    """
    scored = ledger.scored()
    metrics = _reward_metrics([outcome for _, _, outcome in scored])
    records = [attempt.record for _, attempt, _ in scored if attempt.record is not None]
    metrics |= _record_metrics(records)
    slots = len(ledger.slots)
    masked = sum(isinstance(state.outcome, Masked) for state in ledger.slots.values())
    metrics["rollouts/ok"] = float(len(scored))
    metrics["rollouts/masked"] = float(masked)
    metrics |= _pollution(ledger)
    metrics["rollouts/abandoned"] = float(slots - len(scored) - masked)
    for kind, count in Counter(f.kind for f in ledger.failures()).items():
        metrics[f"rollouts/failed/{kind}"] = float(count)
    metrics["rollouts/late_ignored"] = float(ledger.late_ignored)
    full = [
        group
        for group in ledger.groups()
        if sum(isinstance(state.outcome, Scored) for state in group) >= 2
    ]
    if full:
        metrics["frac_reward_zero_std"] = sum(map(is_silent, full)) / len(full)
    return metrics


def _pollution(ledger: StepLedger) -> dict[str, float]:
    """Returns what sharing environments wasted; nothing where none was shared."""
    ended = [state.current for state in ledger.slots.values() if state.current is not None]
    records = [attempt.record for attempt in ended if attempt.record is not None]
    if not any(record.sandbox_isolation.startswith(SHARED_ISOLATION) for record in records):
        return {}
    polluted = sum(
        isinstance(attempt.outcome, Masked) and attempt.outcome.kind is OutcomeKind.POLLUTED
        for attempt in ended
    )
    return {
        "rollouts/polluted": float(polluted),
        "rollouts/polluted_share": polluted / len(ledger.slots),
    }


def _reward_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    if not scored:
        return {}
    metrics = {
        "reward/mean": _mean(outcome.score for outcome in scored),
        "reward/std": _std([outcome.score for outcome in scored]),
        "success_rate": _mean(float(outcome.kind is None) for outcome in scored),
    }
    names = {reward.name for outcome in scored for reward in outcome.rewards}
    for name in sorted(names):
        values = [r.value for outcome in scored for r in outcome.rewards if r.name == name]
        metrics[f"rewards/{name}/mean"] = _mean(values)
    return metrics


def _record_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    if not records:
        return {}
    sampled = [sum(turn.sampled_token_count for turn in record.turns) for record in records]
    calls = [sum(len(turn.tool_calls) for turn in record.turns) for record in records]
    failed_calls = sum(
        bool(call.error_kind)
        for record in records
        for turn in record.turns
        for call in turn.tool_calls
    )
    seconds = [(record.end_time - record.start_time).total_seconds() for record in records]
    ends = Counter(record.stop_reason for record in records)
    return {
        "completions/mean_length": _mean(sampled),
        "completions/min_length": float(min(sampled)),
        "completions/max_length": float(max(sampled)),
        "completions/clipped_ratio": sum(ends[reason] for reason in _CUT_OFF) / len(records),
        "tokens/sampled": float(sum(sampled)),
        **_repetition(records),
        "turns/mean": _mean(len(record.turns) for record in records),
        "tool_calls/mean": _mean(calls),
        "tool_calls/failure_rate": failed_calls / max(1, sum(calls)),
        "rollout_seconds/mean": _mean(seconds),
        "rollout_seconds/max": max(seconds),
        "tokens/nan_logprobs": float(sum(record.tokens.nan_logprob_count for record in records)),
        **{f"stop/{reason}": count / len(records) for reason, count in ends.items()},
    }


def _repetition(records: Sequence[RolloutRecord]) -> dict[str, float]:
    shares = [share for record in records if (share := repeated_share(record.tokens)) is not None]
    return {"completions/repetition": _mean(shares)} if shares else {}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def _std(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.sqrt(_mean((value - middle) ** 2 for value in values))
