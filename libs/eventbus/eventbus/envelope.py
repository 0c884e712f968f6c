"""Makes envelopes: derives the event id and the subject from what the payload is.

Ordinals are taken from the payload where it has a natural one (turn, version, step, sandbox_id), because a
forgotten ordinal would make the second event a duplicate of the first, and the stream would drop it. A start takes
its claim's epoch, so that a second start under a newer epoch is told and seen.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

from google.protobuf.message import Message
from hone.common.v1 import identity_pb2
from hone.events.v1 import events_pb2

from eventbus import ids, subjects
from servicekit.errors import InvalidArgument

_OF_A_ROLLOUT = frozenset(
    {
        "rollout_requested",
        "rollout_started",
        "rollout_turn",
        "rollout_finished",
        "rollout_failed",
        "reward_assigned",
    }
)


class _HasNumbers(Protocol):
    """What the ordinal table reads off payloads; each payload has some of it."""

    turn: int
    policy_version: int
    phase: int
    step: int
    end: int
    sandbox_id: str
    tool_call_id: str


def _text_ordinal(text: str) -> int:
    """Returns 56 bits that stand for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


_ORDINALS: Mapping[str, Callable[[_HasNumbers], int]] = {
    "rollout_turn": lambda payload: payload.turn,
    "policy_published": lambda payload: payload.policy_version,
    "run_step_planned": lambda payload: (payload.phase << 32) | payload.step,
    "run_step_trained": lambda payload: payload.step,
    "run_finished": lambda payload: payload.end,
    "run_rolled_back": lambda payload: payload.policy_version,
    "sandbox_created": lambda payload: _text_ordinal(payload.sandbox_id),
    "sandbox_destroyed": lambda payload: _text_ordinal(payload.sandbox_id),
    "tool_called": lambda payload: _text_ordinal(payload.tool_call_id),
}
"""Natural ordinal by type; a start takes its epoch, and other types happen once per subject."""

_FIELD_BY_MESSAGE: Mapping[str, str] = {
    field.message_type.full_name: field.name
    for field in events_pb2.Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields
    if field.message_type is not None
}


def payload_type(envelope: events_pb2.Envelope) -> str:
    """Returns the payload's field name.

    Raises:
        InvalidArgument: there is no payload, or one that this version does not know.
    """
    name = envelope.WhichOneof("payload")
    if name is None:
        raise InvalidArgument(
            f"event {envelope.event_id or '(no id)'} from {envelope.source or '(no source)'} has no payload "
            f"that this version knows; set exactly one payload field",
            reason="PAYLOAD_MISSING",
            violations={"payload": "is required"},
        )
    return name


def subject_of(envelope: events_pb2.Envelope) -> str:
    """Returns the subject on which the envelope travels.

    Raises:
        InvalidArgument: it has no payload or no usable run_id.
    """
    return subjects.subject(payload_type(envelope), subjects.check_run_id(envelope.run_id))


def new_envelope(
    payload_message: Message,
    *,
    source: str,
    run_id: str,
    clock: Callable[[], float],
    rollout_id: str = "",
    slot: identity_pb2.Slot | None = None,
    attempt: int = 0,
    epoch: int = 0,
    ordinal: int | None = None,
    grader_version: str = "",
) -> events_pb2.Envelope:
    """Returns an envelope around a payload with its derived event id.

    Args:
        payload_message: One of the payload messages of `hone.events.v1.Envelope`.
        source: Service that tells. `grader` makes a rollout.failed a judgement rather than an end.
        run_id: Run that the event belongs to.
        clock: Seconds since the epoch.
        rollout_id: Required for rollout.* and reward.assigned.
        slot: Slot that the attempt fills, for events of a rollout.
        attempt: Of the slot, from 0.
        epoch: Of the claim under which the event was made.
        ordinal: Tells apart events of one type and subject; by default the natural one.
        grader_version: For the grader's rollout.failed; reward.assigned brings its own.

    Raises:
        InvalidArgument: something that the id or the subject needs is missing.
    """
    field = _FIELD_BY_MESSAGE.get(payload_message.DESCRIPTOR.full_name)
    if field is None:
        raise InvalidArgument(
            f"{payload_message.DESCRIPTOR.full_name} is not a payload of hone.events.v1.Envelope",
            reason="PAYLOAD_UNKNOWN",
        )
    subjects.check_run_id(run_id)
    if field in _OF_A_ROLLOUT and not rollout_id:
        raise InvalidArgument(
            f"{subjects.TYPES[field]} is an event of a rollout and needs its rollout_id",
            reason="ROLLOUT_ID_MISSING",
            violations={"rollout_id": "is required"},
        )
    envelope = events_pb2.Envelope(
        source=source, run_id=run_id, rollout_id=rollout_id, slot=slot, attempt=attempt, epoch=epoch
    )
    envelope.create_time.FromMicroseconds(round(clock() * 1e6))
    getattr(envelope, field).CopyFrom(payload_message)
    envelope.event_id = _derived_id(envelope, field, ordinal, grader_version)
    return envelope


def _derived_id(
    envelope: events_pb2.Envelope, field: str, ordinal: int | None, grader_version: str
) -> str:
    type_name = subjects.TYPES[field]
    if field == "rollout_finished" or (field == "rollout_failed" and envelope.source != "grader"):
        type_name = ids.ROLLOUT_ENDED
    elif field in ("reward_assigned", "rollout_failed"):
        type_name = ids.ATTEMPT_JUDGED
        grader_version = _one_grader_version(envelope, grader_version)
    if ordinal is None:
        ordinal = _natural_ordinal(envelope, field)
    subject_id = envelope.rollout_id or envelope.run_id
    return ids.event_id(subject_id, type_name, ordinal, grader_version)


def _natural_ordinal(envelope: events_pb2.Envelope, field: str) -> int:
    if field == "rollout_started":
        return envelope.epoch
    natural = _ORDINALS.get(field)
    return natural(getattr(envelope, field)) if natural is not None else 0


def _one_grader_version(envelope: events_pb2.Envelope, given: str) -> str:
    own = envelope.reward_assigned.grader_version
    if own and given and own != given:
        raise InvalidArgument(
            f"grader_version is {given!r} but the payload says {own!r}; leave the argument out",
            reason="GRADER_VERSION_MISMATCH",
        )
    if not (own or given):
        raise InvalidArgument(
            "a judgement needs its grader_version: it is part of the event id",
            reason="GRADER_VERSION_MISSING",
            violations={"grader_version": "is required"},
        )
    return own or given


def dead_letter(
    original: events_pb2.Envelope,
    *,
    consumer: str,
    sequence: int,
    subject: str,
    delivery_count: int,
    reason: str,
    clock: Callable[[], float],
) -> events_pb2.Envelope:
    """Returns the event that says that a consumer gave up on a message.

    The original's run is taken from its subject where the message itself could not be read.
    """
    result = events_pb2.Envelope(
        event_id=ids.dead_letter_id(consumer, sequence),
        source="eventbus",
        run_id=original.run_id or subject.rsplit(".", 1)[-1],
        rollout_id=original.rollout_id,
        slot=original.slot if original.HasField("slot") else None,
        attempt=original.attempt,
        epoch=original.epoch,
        dead_lettered=events_pb2.DeadLettered(
            consumer=consumer,
            stream_sequence=sequence,
            subject=subject,
            delivery_count=delivery_count,
            reason=reason[:2000],
        ),
    )
    result.create_time.FromMicroseconds(round(clock() * 1e6))
    return result
