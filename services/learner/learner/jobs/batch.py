"""What of a step's rollouts is trained on: scored, of a policy version that counts, and in a group that teaches."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from learner.ledger import Attempt, SlotState, StepLedger, is_silent
from learner.ports import ScoredRollout
from trajectory.types import Scored, StopReason, TokenSpan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What a step trains on."""

    groups: list[list[ScoredRollout]]
    attempts: list[Attempt]
    """Those whose rollouts are in the groups."""
    metrics: dict[str, float]


def step_batch(
    ledger: StepLedger, *, version: int, max_staleness: int, left_out: Collection[str] = ()
) -> StepBatch:
    """Returns the scored members by group, without the rollouts that are left out.

    A rollout whose tokens are of a version older than `version - max_staleness`, or newer than `version`, has no vote:
    it is left out and counted. Where groups without spread were replaced, they are left out too.
    """
    groups: list[list[ScoredRollout]] = []
    attempts: list[Attempt] = []
    too_stale: list[str] = []
    unknown: list[str] = []
    for states in ledger.groups():
        if ledger.resampled_groups and is_silent(states):
            continue
        group: list[ScoredRollout] = []
        for state in states:
            made = _scored_rollout(state)
            if made is None:
                continue
            attempt, rollout = made
            if rollout.rollout_id in left_out:
                continue
            versions = {span.policy_version for span in _spans(attempt)}
            if versions and min(versions) < version - max_staleness:
                too_stale.append(attempt.rollout_id)
            elif versions and max(versions) > version:
                unknown.append(attempt.rollout_id)
            else:
                group.append(rollout)
                attempts.append(attempt)
        groups.append(group)
    for what, ids in (("older than allowed", too_stale), ("not known yet", unknown)):
        if ids:
            log.warning(
                "rollouts are not trained on, their policy version is %s",
                what,
                extra={"rollout_ids": ids, "policy_version": version},
            )
    metrics = {
        "rollouts/too_stale": float(len(too_stale)),
        "rollouts/unknown_version": float(len(unknown)),
        "groups/resampled": float(ledger.resampled_groups),
    }
    return StepBatch(
        groups=groups, attempts=attempts, metrics=metrics | _staleness(attempts, version)
    )


def _scored_rollout(state: SlotState) -> tuple[Attempt, ScoredRollout] | None:
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
