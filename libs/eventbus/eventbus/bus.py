"""The bus as its users see it: one contract, kept by `nats_bus.NatsBus` and by `memory_bus.MemoryBus`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hone.events.v1 import events_pb2
from opentelemetry.context import Context

from eventbus.blobs import Blobs
from eventbus.claims import Claims

STREAM = "EVENTS"
"""Name of the one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAck:
    """Where an event stands in the stream."""

    sequence: int
    duplicate: bool
    """True if the stream already held an event of this id; nothing was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event, as handed to a consumer's handler."""

    envelope: events_pb2.Envelope
    sequence: int
    delivery_count: int
    """1 at first; more means that an earlier delivery was not acknowledged."""
    context: Context
    """Trace context that the publisher sent. The handler runs inside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One event, as read from the log."""

    sequence: int
    envelope: events_pb2.Envelope
    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUsage:
    """How full the stream is."""

    bytes: int
    max_bytes: int
    """0 means without limit."""

    @property
    def fraction(self) -> float:
        """Share of the room that is taken; 0 without a limit."""
        return self.bytes / self.max_bytes if self.max_bytes > 0 else 0.0


Handler = Callable[[Delivery], Awaitable[None]]
"""Acts on one event. Returning acknowledges it, so commit the effect, with its event_id, before."""


class EventBus(Protocol):
    """Publish, consume and read the EVENTS stream; claims and blobs live beside it."""

    async def publish(self, envelope: events_pb2.Envelope) -> PublishAck:
        """Adds an event to the stream, or finds it there.

        Raises:
            InvalidArgument: the envelope lacks something, or is larger than an event may be.
            ResourceExhausted: the stream is full and stayed so until the deadline.
            Unavailable: the stream could not be reached until the deadline.
        """
        ...

    async def consume(
        self,
        consumer: str,
        types: Sequence[str],
        handler: Handler,
        *,
        stop: asyncio.Event,
        max_in_flight: int = 16,
        ack_wait_seconds: float = 30.0,
        max_deliver: int = 5,
    ) -> None:
        """Hands events to a handler until `stop` is set; replicas that give the same name share the work.

        Args:
            consumer: Name of the shared durable consumer.
            types: Payload field names, for example `rollout_requested`.
            handler: Called for each event, several at a time. It may raise RetryLater; any other exception brings
                the event back with backoff.
            stop: Ends fetching; running handlers may finish within the drain time.
            max_in_flight: Handlers that run at once in this process.
            ack_wait_seconds: An event comes back when its process was silent that long. Running handlers are never
                silent: the bus signals for them.
            max_deliver: Attempts before the event becomes a message.dead_lettered. RetryLater is not an attempt.
        """
        ...

    def read(
        self,
        types: Sequence[str] = (),
        *,
        run_id: str | None = None,
        start_sequence: int = 0,
        follow: bool = False,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[LoggedEvent, None]:
        """Yields logged events in stream order, each once, without leaving anything behind on the server.

        Args:
            types: Payload field names; none means all.
            run_id: Only events of this run.
            start_sequence: First sequence to yield, inclusive; 0 means whatever the log still holds.
            follow: Go on with events as they come; otherwise end at the sequence that is last at the call.
            stop: Ends the iteration.

        Raises:
            LogTruncated: the log no longer holds start_sequence.
        """
        ...

    async def claims(self) -> Claims:
        """Returns the claims of the suite."""
        ...

    async def blobs(self) -> Blobs:
        """Returns the blobs of the suite."""
        ...

    async def purge_run(self, run_id: str) -> int:
        """Removes a run's events and claims and returns how many events went. Its blobs stay."""
        ...

    async def usage(self) -> StreamUsage:
        """Returns how full the stream is; stop admitting work at 0.8."""
        ...

    async def close(self) -> None:
        """Lets go of the connection. Stop consumers first."""
        ...
