"""The bus in one process, for unit tests: the same contract, kept in memory.

Replicas are several `consume` calls on one bus. There is no server to go away, and nothing outlives the object.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from hone.events.v1 import events_pb2
from opentelemetry import trace

from eventbus import subjects, tracing
from eventbus.bus import Handler, LoggedEvent, PublishAck, StreamUsage
from eventbus.claiming import StoredClaims
from eventbus.errors import LogTruncated
from eventbus.handling import ConsumePolicy, Refusal
from eventbus.memory.durable import MemoryConsumer, MemoryDurable, MemoryRetryLedger
from eventbus.memory.log import MemoryLog
from eventbus.memory.stores import MemoryBlobs, MemoryClaimStore
from eventbus.outgoing import MAX_EVENT_BYTES, checked, publish_dead_letter
from servicekit.errors import InvalidArgument, ResourceExhausted, Unavailable


class MemoryBus:
    """The EVENTS stream, its claims and its blobs, in memory.

    Args:
        max_bytes: Room of the stream; 0 means without limit.
        publish_deadline_seconds: How long publish waits for room.
        drain_seconds: How long running handlers may take to finish once a consumer stops.
        duplicate_window_seconds: How long the stream knows an event id.
        clock: Seconds since the epoch; leases are measured by it.
        rng: For jitter and write ids.
        tracer: Makes the messaging spans; by default the process's own.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 0,
        publish_deadline_seconds: float = 60.0,
        drain_seconds: float = 10.0,
        duplicate_window_seconds: float = 600.0,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        tracer: trace.Tracer | None = None,
    ) -> None:
        """Starts empty."""
        self._log = MemoryLog(
            max_bytes=max_bytes, duplicate_window_seconds=duplicate_window_seconds
        )
        self._publish_deadline_seconds = publish_deadline_seconds
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._rng = rng or random.Random()
        self._durables: dict[str, MemoryDurable] = {}
        self._ledger = MemoryRetryLedger()
        self._claims = MemoryClaimStore()
        self._blobs = MemoryBlobs()
        self._tracer = tracer or trace.get_tracer(tracing.TRACER)
        self._closed = False

    async def close(self) -> None:
        """Refuses further events."""
        self._closed = True

    async def publish(self, envelope: events_pb2.Envelope) -> PublishAck:
        """Adds an event to the stream, or finds it there."""
        out = checked(envelope, MAX_EVENT_BYTES)
        if self._closed:
            raise Unavailable("the event bus is closed", reason="BUS_CLOSED", retryable=False)
        with tracing.publishing(self._tracer, envelope, out.type_name, out.subject) as headers:
            headers["Nats-Msg-Id"] = envelope.event_id
            ack = self._log.add(out.subject, out.data, headers)
            if ack is None:
                ack = await self._add_when_there_is_room(out.subject, out.data, headers)
            # A bus lets others run; a producer that never waits would starve the consumers of its own process.
            await asyncio.sleep(0)
            return ack

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
        """Hands events to a handler until `stop` is set; calls that give the same name share the work."""
        if not types:
            raise InvalidArgument("consume needs at least one event type")
        durable = self._durables.setdefault(consumer, MemoryDurable(self._log))
        durable.filters = subjects.filter_subjects(types, None)
        durable.ack_wait_seconds = ack_wait_seconds
        policy = ConsumePolicy(
            consumer=consumer,
            max_in_flight=max_in_flight,
            ack_wait_seconds=ack_wait_seconds,
            max_deliver=max_deliver,
            drain_seconds=self._drain_seconds,
        )
        await MemoryConsumer(
            self._log,
            durable,
            policy,
            handler,
            ledger=self._ledger,
            dead_letter=self._dead_letter,
            rng=self._rng,
            tracer=self._tracer,
        ).run(stop)

    async def read(
        self,
        types: Sequence[str] = (),
        *,
        run_id: str | None = None,
        start_sequence: int = 0,
        follow: bool = False,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[LoggedEvent, None]:
        """Yields logged events in stream order, each once."""
        filters = subjects.filter_subjects(types, run_id)
        first, end = self._log.first_sequence, self._log.last_sequence
        if start_sequence > end + 1 or 0 < start_sequence < first:
            raise LogTruncated(
                start_sequence=start_sequence, first_sequence=first, last_sequence=end
            )
        last = start_sequence - 1
        wake = asyncio.Event()
        unwatch = self._log.watch(wake.set)
        watcher = asyncio.create_task(_set_after(stop, wake)) if stop is not None else None
        try:
            while stop is None or not stop.is_set():
                wake.clear()
                entry = self._log.after(last, filters)
                if entry is not None and (follow or entry.sequence <= end):
                    last = entry.sequence
                    yield LoggedEvent(
                        sequence=entry.sequence,
                        envelope=events_pb2.Envelope.FromString(entry.data),
                        context=tracing.extract(entry.headers),
                    )
                elif follow:
                    await wake.wait()
                else:
                    return
        finally:
            unwatch()
            if watcher is not None:
                watcher.cancel()

    async def claims(self) -> StoredClaims:
        """Returns the claims of the suite."""
        return StoredClaims(self._claims, clock=self._clock, rng=self._rng)

    async def blobs(self) -> MemoryBlobs:
        """Returns the blobs of the suite."""
        return self._blobs

    async def usage(self) -> StreamUsage:
        """Returns how full the stream is."""
        return StreamUsage(bytes=self._log.bytes, max_bytes=self._log.max_bytes)

    async def purge_run(self, run_id: str) -> int:
        """Removes a run's events and claims and returns how many events went."""
        gone = self._log.purge(subjects.filter_subjects((), run_id))
        for entry in gone:
            self._claims.forget(events_pb2.Envelope.FromString(entry.data).rollout_id)
        return len(gone)

    async def _add_when_there_is_room(
        self, subject: str, data: bytes, headers: dict[str, str]
    ) -> PublishAck:
        changed = asyncio.Event()
        unwatch = self._log.watch(changed.set)
        limit = self._publish_deadline_seconds
        try:
            async with asyncio.timeout(limit):
                while (ack := self._log.add(subject, data, headers)) is None:
                    changed.clear()
                    await changed.wait()
                return ack
        except TimeoutError as err:
            raise ResourceExhausted(
                f"publishing on {subject}: the stream had no room for {limit:g} s; purge sealed runs or raise the "
                f"limit",
                reason="STREAM_FULL",
                retry_after_seconds=5.0,
            ) from err
        finally:
            unwatch()

    async def _dead_letter(self, refusal: Refusal) -> None:
        await publish_dead_letter(self.publish, refusal, self._clock)


async def _set_after(stop: asyncio.Event, wake: asyncio.Event) -> None:
    """Passes one event's setting on to another."""
    await stop.wait()
    wake.set()
