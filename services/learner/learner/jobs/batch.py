"""What of a step's rollouts is trained on, and how stale it is."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from learner.ports import ScoredRollout
from learner.rollouts.ledger import Attempt, SlotState, StepLedger
from trajectory.types import Scored, StopReason, TokenSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What a step trains on."""

    groups: list[list[ScoredRollout]]
    attempts: list[Attempt]
    """Those whose rollouts are in the groups."""
    metrics: dict[str, float]


def step_batch(ledger: StepLedger, *, version: int, left_out: Collection[str] = ()) -> StepBatch:
    """Returns the scored members by group, without the rollouts that are left out.

    Once a group was replaced, all groups without spread are left out too. `version` is that of the weights to be
    updated.
    """
    groups: list[list[ScoredRollout]] = []
    attempts: list[Attempt] = []
    for states in ledger.groups():
        if ledger.resampled_groups and ledger.is_silent(states):
            continue
        members = [made for state in states if (made := _member(state)) is not None]
        kept = [made for made in members if made[0].rollout_id not in left_out]
        groups.append([rollout for _, rollout in kept])
        attempts += [attempt for attempt, _ in kept]
    metrics = {
        "rollouts/too_stale": float(ledger.too_stale),
        "rollouts/unknown_version": float(ledger.unknown_version),
        "groups/resampled": float(ledger.resampled_groups),
    }
    return StepBatch(
        groups=groups, attempts=attempts, metrics=metrics | _staleness(attempts, version)
    )


def _member(state: SlotState) -> tuple[Attempt, ScoredRollout] | None:
    attempt = state.current
    if attempt is None or attempt.record is None or not isinstance(attempt.outcome, Scored):
        return None
    record = attempt.record
    rollout = ScoredRollout(
        rollout_id=attempt.rollout_id,
        rows=record.tokens.rows,
        score=attempt.outcome.score,
        turn_rewards=attempt.outcome.step_rewards,
        truncated=record.stop_reason is not StopReason.COMPLETED,
    )
    return attempt, rollout


def _spans(attempt: Attempt) -> list[TokenSpan]:
    assert attempt.record is not None
    return [span for row in attempt.record.tokens.rows for span in row.spans]


def _staleness(attempts: Sequence[Attempt], version: int) -> dict[str, float]:
    """Returns how many versions behind the policy tokens are that are trained on."""
    spans = [span for attempt in attempts for span in _spans(attempt)]
    tokens = sum(span.end - span.start for span in spans)
    if not tokens:
        return {}
    behind = sum((version - span.policy_version) * (span.end - span.start) for span in spans)
    return {
        "staleness/mean": behind / tokens,
        "staleness/max": float(version - min(span.policy_version for span in spans)),
    }
