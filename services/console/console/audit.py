"""Checks a run's log against the invariants of Hone: nothing lost, nothing counted twice, nothing made up.

A pure function over light rows in the order of the stream. The rules are in `audit_rules`, the index that they
read in `audit_log`. An audit of an active run reports only what no later event can mend.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from console.audit_log import Attempt, RunLog, index_log
from console.audit_rules import RULES
from console.facts import LogRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One invariant that does not hold."""

    rule: str
    detail: str
    rollout_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the check found, the counts behind it, and how far the log reached."""

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    last_sequence: int


def audit_run(rows: Iterable[LogRow]) -> AuditReport:
    """Checks one run's events, given in the order of the stream."""
    log = index_log(rows)
    findings = tuple(
        Finding(rule=rule, detail=violation.detail, rollout_ids=violation.rollout_ids)
        for rule, check in RULES.items()
        for violation in check(log)
    )
    return AuditReport(findings=findings, counts=_counts(log), last_sequence=log.last_sequence)


def _counts(log: RunLog) -> dict[str, int]:
    outcomes = [log.current(slot).outcome for slot in log.slots]
    created = [box for box in log.sandboxes.values() if box.num_created]
    destroyed = [box for box in log.sandboxes.values() if box.num_destroyed]
    return {
        "events": log.num_events,
        "slots": len(log.slots),
        "scored": outcomes.count("scored"),
        "masked": outcomes.count("masked"),
        "abandoned": outcomes.count("failed"),
        "open": outcomes.count("open"),
        "attempts": sum(len(attempts) for attempts in log.slots.values()),
        "attempts_failed": sum(a.outcome == "failed" for a in log.attempts.values()),
        "late_ignored": sum(_ended_late(log, attempt) for attempt in log.attempts.values()),
        "steps_trained": len(log.trained),
        "rollouts_trained": sum(len(fact.rollout_ids) for _, fact in log.trained),
        "policy_versions": len({fact.policy_version for _, fact in log.published}),
        "sandboxes_created": len(created),
        "sandboxes_destroyed": len(destroyed),
        "sandboxes_open": sum(not box.num_destroyed for box in created),
        "dead_lettered": log.num_dead_lettered,
    }


def _ended_late(log: RunLog, attempt: Attempt) -> bool:
    """Says whether an attempt was judged or failed after the slot had moved on to a newer one."""
    if attempt.slot not in log.slots or attempt.slot is None or attempt.end_sequence is None:
        return False
    newer = (
        other.request_sequence
        for other in log.slots[attempt.slot]
        if other.attempt > attempt.attempt and other.request_sequence is not None
    )
    return any(sequence < attempt.end_sequence for sequence in newer)
