"""Events between protobuf and what the console works with; total over whatever a sender wrote.

A field that makes no sense (an unknown enum number, a slot without a phase) becomes empty here and never stops
the archive: the envelope's bytes are kept whole, so nothing is lost by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import identity_pb2, outcome_pb2
from hone.events.v1 import events_pb2

from console import facts
from console.archive_reader import StoredEvent
from trajectory.convert import slot_from_proto
from trajectory.types import Phase, Slot

NO_RECORD = "the event carries no record"


def archived_event(
    sequence: int,
    envelope: events_pb2.Envelope,
    *,
    record: bytes | None = None,
    record_error: str = "",
) -> facts.ArchivedEvent:
    """Converts an event for the archive.

    Args:
        sequence: Place in the stream.
        envelope: The event; an inline record is taken out into the result's `record`.
        record: For a finished event that names a blob: the blob's bytes, if they could be fetched.
        record_error: Why they could not.
    """
    finished = envelope.rollout_finished
    if envelope.WhichOneof("payload") == "rollout_finished" and finished.HasField("inline"):
        record = finished.inline.SerializeToString()
        slim = events_pb2.Envelope()
        slim.CopyFrom(envelope)
        slim.rollout_finished.ClearField("inline")
        slim.rollout_finished.SetInParent()
        envelope = slim
    row = log_row(sequence, envelope, record=record, record_error=record_error)
    return facts.ArchivedEvent(row=row, envelope=envelope.SerializeToString(), record=record)


def stored_envelope(stored: StoredEvent) -> events_pb2.Envelope:
    """Returns an envelope as it is stored: without its inline record."""
    return events_pb2.Envelope.FromString(stored.envelope)


def whole_envelope(stored: StoredEvent) -> events_pb2.Envelope:
    """Returns an envelope as it was logged: with its inline record if it had one."""
    envelope = stored_envelope(stored)
    is_finished = envelope.WhichOneof("payload") == "rollout_finished"
    if is_finished and stored.record and envelope.rollout_finished.WhichOneof("record") is None:
        envelope.rollout_finished.inline.ParseFromString(stored.record)
    return envelope


def stored_row(stored: StoredEvent) -> facts.LogRow:
    """Returns the light row of a stored event."""
    row = log_row(
        stored.sequence,
        stored_envelope(stored),
        record=stored.record,
        record_error=stored.record_error,
    )
    return replace(row, differences=stored.differences) if stored.differences else row


def log_row(
    sequence: int, envelope: events_pb2.Envelope, *, record: bytes | None, record_error: str
) -> facts.LogRow:
    """Returns the light row of an event."""
    type_name = envelope.WhichOneof("payload") or ""
    if type_name == "rollout_finished":
        fact: facts.Fact = _finished(record, record_error)
    else:
        fact = _FACTS.get(type_name, _other)(envelope)
    return facts.LogRow(
        sequence=sequence,
        event_id=envelope.event_id,
        type=type_name,
        create_time=clamped_time(envelope.create_time),
        source=envelope.source,
        run_id=envelope.run_id,
        rollout_id=envelope.rollout_id,
        slot=_slot(envelope),
        attempt=envelope.attempt,
        epoch=envelope.epoch,
        fact=fact,
    )


def clamped_time(message: Timestamp) -> datetime:
    """Converts a moment; one outside the years 1970 to 9999 becomes the nearest end."""
    seconds = min(max(message.seconds, 0), 253_402_300_799)
    micros = min(max(message.nanos, 0), 999_999_999) // 1000
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=micros)


def word(enum: Any, number: int, prefix: str) -> str:
    """Returns an enum value as its lower-case word; empty for unspecified, the number if unknown."""
    if number == 0:
        return ""
    if number not in enum.values():
        return str(number)
    return str(enum.Name(number)).removeprefix(f"{prefix}_").lower()


def phase_or_none(number: int) -> Phase | None:
    """Returns a phase, or None where none was said."""
    name = word(identity_pb2.Phase, number, "PHASE")
    return next((phase for phase in Phase if phase.value == name), None)


def _slot(envelope: events_pb2.Envelope) -> Slot | None:
    if not envelope.HasField("slot") or phase_or_none(envelope.slot.phase) is None:
        return None
    return slot_from_proto(envelope.slot)


def _finished(record: bytes | None, record_error: str) -> facts.RolloutFinished:
    if record is None:
        return facts.RolloutFinished(policy_versions=None, record_error=record_error or NO_RECORD)
    try:
        message = events_pb2.RolloutRecord.FromString(record)
    except DecodeError as err:
        return facts.RolloutFinished(policy_versions=None, record_error=f"it is no record: {err}")
    spans = [span for row in message.tokens.rows for span in row.spans]
    versions = {span.policy_version for span in spans} or {t.policy_version for t in message.turns}
    took = clamped_time(message.end_time) - clamped_time(message.start_time)
    return facts.RolloutFinished(
        policy_versions=tuple(sorted(versions)),
        sandbox_id=message.sandbox_id,
        turn_count=len(message.turns),
        tool_call_count=sum(len(turn.tool_calls) for turn in message.turns),
        sampled_token_count=sum(turn.sampled_token_count for turn in message.turns),
        seconds=max(took.total_seconds(), 0.0),
    )


def _other(envelope: events_pb2.Envelope) -> facts.Fact:
    return facts.OtherFact()


def _requested(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.rollout_requested
    return facts.RolloutRequested(
        task_id=payload.task.task_id, policy_version=payload.policy_version
    )


def _started(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.rollout_started
    return facts.RolloutStarted(owner=payload.owner, sandbox_id=payload.sandbox_id)


def _failed(envelope: events_pb2.Envelope) -> facts.Fact:
    failure = envelope.rollout_failed.failure
    return facts.RolloutFailed(
        kind=word(outcome_pb2.FailureKind, failure.kind, "FAILURE_KIND"),
        retryable=failure.retryable,
        detail=failure.detail,
    )


def _rewarded(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.reward_assigned
    if payload.WhichOneof("outcome") == "scored":
        return facts.RewardAssigned(
            grader_version=payload.grader_version,
            outcome="scored",
            score=payload.scored.score,
            kind=word(outcome_pb2.OutcomeKind, payload.scored.kind, "OUTCOME_KIND"),
        )
    return facts.RewardAssigned(
        grader_version=payload.grader_version,
        outcome="masked",
        kind=word(outcome_pb2.OutcomeKind, payload.masked.kind, "OUTCOME_KIND"),
    )


def _created(envelope: events_pb2.Envelope) -> facts.Fact:
    return facts.SandboxCreated(sandbox_id=envelope.sandbox_created.sandbox_id)


def _destroyed(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.sandbox_destroyed
    return facts.SandboxDestroyed(sandbox_id=payload.sandbox_id, cause=payload.cause)


def _published(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.policy_published
    return facts.PolicyPublished(
        policy_version=payload.policy_version, sha256=payload.adapter.sha256
    )


def _run_started(envelope: events_pb2.Envelope) -> facts.Fact:
    spec = envelope.run_started.spec
    return facts.RunStarted(algorithm=spec.algorithm, max_staleness=spec.train.max_staleness)


def _planned(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.run_step_planned
    phase = phase_or_none(payload.phase)
    if phase is None:
        return facts.OtherFact()
    num_slots = len(payload.task_ids) * payload.group_size
    return facts.StepPlanned(phase=phase, step=payload.step, num_slots=num_slots)


def _trained(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.run_step_trained
    return facts.StepTrained(
        step=payload.step,
        policy_version=payload.policy_version,
        rollout_ids=tuple(payload.trained_rollout_ids),
        metrics=dict(payload.metrics),
    )


def _run_finished(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.run_finished
    return facts.RunFinished(
        end=word(events_pb2.RunEnd, payload.end, "RUN_END"), detail=payload.detail
    )


def _dead_lettered(envelope: events_pb2.Envelope) -> facts.Fact:
    payload = envelope.dead_lettered
    return facts.DeadLettered(consumer=payload.consumer, reason=payload.reason)


_FACTS: Mapping[str, Callable[[events_pb2.Envelope], facts.Fact]] = {
    "rollout_requested": _requested,
    "rollout_started": _started,
    "rollout_failed": _failed,
    "reward_assigned": _rewarded,
    "sandbox_created": _created,
    "sandbox_destroyed": _destroyed,
    "policy_published": _published,
    "run_started": _run_started,
    "run_step_planned": _planned,
    "run_step_trained": _trained,
    "run_finished": _run_finished,
    "dead_lettered": _dead_lettered,
}
