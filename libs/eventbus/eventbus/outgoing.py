"""What both implementations do to an event before it goes out, and how a refusal becomes a dead letter."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hone.events.v1 import events_pb2
from opentelemetry import context as otel_context

from eventbus import subjects, tracing
from eventbus.bus import PublishAck
from eventbus.envelope import dead_letter, payload_type, subject_of
from eventbus.handling import Refusal
from servicekit.errors import InvalidArgument

_LOG = logging.getLogger("hone.eventbus")

MAX_EVENT_BYTES = 900 * 1024
"""Largest envelope: the server refuses 1 MiB including headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An event that is fit to be published."""

    type_name: str
    """Dotted."""
    subject: str
    data: bytes


def checked(envelope: events_pb2.Envelope, max_bytes: int) -> Outgoing:
    """Returns the event as it goes out.

    Raises:
        InvalidArgument: it has no id, payload or usable run_id, or is too large.
    """
    if not envelope.event_id:
        raise InvalidArgument(
            "the envelope has no event_id; make it with eventbus.envelope.new_envelope",
            reason="EVENT_ID_MISSING",
            violations={"event_id": "is required"},
        )
    type_name = subjects.TYPES[payload_type(envelope)]
    subject = subject_of(envelope)
    data = envelope.SerializeToString()
    if len(data) > max_bytes:
        raise InvalidArgument(
            f"event {envelope.event_id} ({type_name}) is {len(data)} bytes, more than the {max_bytes} that an event "
            f"may have: store the large part with blobs().put and publish its reference",
            reason="EVENT_TOO_LARGE",
            violations={"payload": f"at most {max_bytes} bytes"},
        )
    return Outgoing(type_name=type_name, subject=subject, data=data)


async def publish_dead_letter(
    publish: Callable[[events_pb2.Envelope], Awaitable[PublishAck]],
    refusal: Refusal,
    clock: Callable[[], float],
) -> None:
    """Publishes a message.dead_lettered in the trace of the message that nobody could handle."""
    about = {
        "consumer": refusal.consumer,
        "sequence": refusal.sequence,
        "subject": refusal.subject,
        "why": refusal.reason,
    }
    if refusal.envelope.HasField("dead_lettered"):
        # A dead letter about a dead letter would breed the next one.
        _LOG.error("a dead letter could not be handled; it is dropped", extra=about)
        return
    envelope = dead_letter(
        refusal.envelope,
        consumer=refusal.consumer,
        sequence=refusal.sequence,
        subject=refusal.subject,
        delivery_count=refusal.delivery_count,
        reason=refusal.reason,
        clock=clock,
    )
    token = otel_context.attach(tracing.extract(refusal.headers))
    try:
        ack = await publish(envelope)
    finally:
        otel_context.detach(token)
    if not ack.duplicate:
        _LOG.error("event became a dead letter", extra=about)
