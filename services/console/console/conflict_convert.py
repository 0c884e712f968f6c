"""Tells a fact that was told again from another fact under the same event id.

Ids are derived, and services tell facts again after a restart on purpose: such a repetition may differ in when it was
told and in words and times around the fact, and in nothing else. Anything else is a second fact that the id hides.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hone.events.v1 import events_pb2

VOLATILE: Mapping[str, tuple[str, ...]] = {
    "rollout_requested": ("deadline_time",),
    "rollout_turn": ("duration",),
    "rollout_failed": ("failure.detail",),
    "reward_assigned": ("scored.rewards.explanation", "masked.reason"),
    "tool_called": ("duration",),
    "sandbox_created": ("duration",),
    "policy_published": ("adapter.bucket", "adapter.name"),
    "run_finished": ("detail", "metrics"),
    "dead_lettered": ("delivery_count", "reason"),
}
"""Fields of a payload that may differ between two tellings of one fact."""

_IDENTITY = ("run_id", "rollout_id", "slot", "attempt", "epoch", "source")
_MAX_VALUE_CHARS = 60


def differences(
    stored: bytes, stored_record: bytes | None, told: bytes, told_record: bytes | None
) -> tuple[str, ...]:
    """Says in which ways two envelopes of one event id tell different facts; empty for a repetition.

    Args:
        stored: The envelope told first, as the archive keeps it: without an inline record.
        stored_record: Its record, if it has one that could be read.
        told: The envelope told later, in the same form.
        told_record: Its record.
    """
    if stored == told and stored_record == told_record:
        return ()
    first = events_pb2.Envelope.FromString(stored)
    later = events_pb2.Envelope.FromString(told)
    found = list(_fields(first, later, _IDENTITY, prefix=""))
    kind, other = first.WhichOneof("payload") or "", later.WhichOneof("payload") or ""
    if kind != other:
        found.append(_was("type", kind, other))
    elif kind == "rollout_finished":
        found += _record(first.rollout_finished, stored_record, later.rollout_finished, told_record)
    elif kind:
        before, now = getattr(first, kind), getattr(later, kind)
        for path in VOLATILE.get(kind, ()):
            _clear(before, path.split("."))
            _clear(now, path.split("."))
        names = [field.name for field in before.DESCRIPTOR.fields]
        found += _fields(before, now, names, prefix=f"{kind}.")
    return tuple(found)


def _fields(
    before: Message, now: Message, names: tuple[str, ...] | list[str], *, prefix: str
) -> Iterator[str]:
    for name in names:
        old, new = getattr(before, name), getattr(now, name)
        if old == new:
            continue
        field = before.DESCRIPTOR.fields_by_name[name]
        is_plain = isinstance(old, str | int | float)
        if field.type == FieldDescriptor.TYPE_MESSAGE or not is_plain:
            yield f"{prefix}{name} differs"
        else:
            yield _was(f"{prefix}{name}", old, new)


def _was(name: str, old: object, new: object) -> str:
    before, now = (repr(value)[:_MAX_VALUE_CHARS] for value in (old, new))
    return f"{name} was {before} and is {now}"


def _clear(message: Message, path: list[str]) -> None:
    """Clears a field below a message, in every element where the path leads through a list."""
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    if not rest:
        message.ClearField(name)
    elif field.is_repeated:
        for element in getattr(message, name):
            _clear(element, rest)
    elif message.HasField(name):
        _clear(getattr(message, name), rest)


def _record(
    first: events_pb2.RolloutFinished,
    first_record: bytes | None,
    later: events_pb2.RolloutFinished,
    later_record: bytes | None,
) -> Iterator[str]:
    """Compares what was committed; a record that could not be read differs only if its digest does."""
    if first_record is None or later_record is None:
        before, now = first.blob.sha256, later.blob.sha256
        if before and now and before != now:
            yield _was("record sha256", before, now)
    elif first_record != later_record and _parsed(first_record) != _parsed(later_record):
        yield "rollout_finished.record differs"


def _parsed(record: bytes) -> events_pb2.RolloutRecord | bytes:
    """Returns the record, since equal ones may be written differently; its bytes where it is none."""
    try:
        return events_pb2.RolloutRecord.FromString(record)
    except DecodeError:
        return record
