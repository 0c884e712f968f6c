"""Stored bytes to what the page shows of one rollout; what cannot be read is said instead of raised."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from hone.events.v1 import events_pb2

from console import facts
from console.archive_reader import RolloutEntry, StoredEvent
from console.convert import stored_envelope, stored_row
from console.span_tree import build_tree
from console.spans import Span
from console.views import RolloutView, TimelineEntry
from trajectory.convert import rollout_record_from_proto
from trajectory.outcome_convert import failure_from_proto, masked_from_proto, scored_from_proto
from trajectory.types import Attribution, Failure, FailureKind, Masked, Outcome, RolloutRecord


def rollout_view(
    entry: RolloutEntry, events: Sequence[StoredEvent], spans: Sequence[Span]
) -> RolloutView:
    """Puts together what the archive holds of a rollout."""
    record, problem = _record(events)
    outcome, grader_version = _outcome(entry, events)
    return RolloutView(
        entry=entry,
        record=record,
        record_problem=problem,
        outcome=outcome,
        grader_version=grader_version,
        timeline=tuple(_timeline_entry(stored_row(stored)) for stored in events),
        tree=build_tree(spans),
    )


def final_event(entry: RolloutEntry, events: Sequence[StoredEvent]) -> events_pb2.Envelope | None:
    """Returns the event that gave a rollout its outcome, None while it is open."""
    wanted = "rollout_failed" if entry.outcome == "failed" else "reward_assigned"
    found = [
        envelope
        for envelope in map(stored_envelope, events)
        if envelope.WhichOneof("payload") == wanted
    ]
    if not found or entry.outcome == "open":
        return None
    # The first failure stays; of rewards the last grader version counts.
    return found[0] if entry.outcome == "failed" else found[-1]


def _record(events: Sequence[StoredEvent]) -> tuple[RolloutRecord | None, str]:
    for stored in events:
        if stored.record is not None:
            try:
                message = events_pb2.RolloutRecord.FromString(stored.record)
                return rollout_record_from_proto(message), ""
            except (ValueError, DecodeError) as err:
                return None, f"the record is not consistent: {err}"
        if stored.record_error:
            return None, stored.record_error
    return None, ""


def _outcome(entry: RolloutEntry, events: Sequence[StoredEvent]) -> tuple[Outcome | None, str]:
    envelope = final_event(entry, events)
    if envelope is None:
        return None, ""
    if envelope.WhichOneof("payload") == "rollout_failed":
        return _failure(envelope.rollout_failed), ""
    reward = envelope.reward_assigned
    try:
        if reward.WhichOneof("outcome") == "scored":
            return scored_from_proto(reward.scored), reward.grader_version
        return masked_from_proto(reward.masked), reward.grader_version
    except ValueError as err:
        return Masked(kind=None, reason=f"the event is not consistent: {err}"), ""


def _failure(payload: events_pb2.RolloutFailed) -> Failure:
    try:
        return failure_from_proto(payload.failure)
    except ValueError as err:
        return Failure(
            kind=FailureKind.INTERNAL,
            retryable=payload.failure.retryable,
            attributable=Attribution.INFRA,
            detail=f"{payload.failure.detail} (the event is not consistent: {err})",
        )


def _timeline_entry(row: facts.LogRow) -> TimelineEntry:
    return TimelineEntry(
        time=row.create_time, type=row.type, source=row.source, epoch=row.epoch, note=_note(row)
    )


def _note(row: facts.LogRow) -> str:
    match row.fact:
        case facts.RolloutRequested(policy_version=version):
            return f"attempt {row.attempt}, policy version {version}"
        case facts.RolloutStarted(owner=owner, sandbox_id=sandbox_id):
            return f"by {owner} in {sandbox_id}" if sandbox_id else f"by {owner}"
        case facts.RolloutFinished(turn_count=turns, tool_call_count=calls):
            return f"{turns} turns, {calls} tool calls"
        case facts.RolloutFailed(kind=kind, retryable=retryable, detail=detail):
            return f"{kind}{', retryable' if retryable else ''}: {detail}"
        case facts.RewardAssigned(outcome=outcome, score=score, grader_version=version):
            told = outcome if score is None else f"{outcome} {score:g}"
            return f"{told} by grader version {version}"
        case facts.SandboxCreated(sandbox_id=sandbox_id):
            return sandbox_id
        case facts.SandboxDestroyed(sandbox_id=sandbox_id, cause=cause):
            return f"{sandbox_id}, {cause}"
        case facts.DeadLettered(consumer=consumer, reason=reason):
            return f"{consumer}: {reason}"
        case _:
            return ""
