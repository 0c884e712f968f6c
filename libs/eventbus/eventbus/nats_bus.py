"""The bus over NATS JetStream."""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import nats.js.errors
from google.protobuf.message import DecodeError
from hone.events.v1 import events_pb2
from nats.aio.msg import Msg
from opentelemetry import trace

from eventbus import subjects, tracing
from eventbus.bus import STREAM, Handler, LoggedEvent, PublishAck, StreamUsage
from eventbus.claiming import StoredClaims
from eventbus.errors import EventUnreadable
from eventbus.handling import ConsumePolicy, Refusal
from eventbus.jetstream.blobs import NatsBlobs
from eventbus.jetstream.claims import NatsClaimStore, NatsRetryLedger
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.consumer import NatsConsumer
from eventbus.jetstream.options import BusOptions
from eventbus.jetstream.publisher import Publisher
from eventbus.jetstream.purging import purges_of_run
from eventbus.jetstream.reader import StreamReader
from eventbus.jetstream.retry import persist
from eventbus.jetstream.streams import Streams
from eventbus.outgoing import checked, publish_dead_letter
from servicekit.errors import HoneError

_LOG = logging.getLogger("hone.eventbus")


class NatsBus:
    """The EVENTS stream, its claims and its blobs, over one connection. Make it with `connect`."""

    def __init__(
        self,
        connection: NatsConnection,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        tracer: trace.Tracer,
    ) -> None:
        """Puts the parts together; `connect` does that and opens them."""
        self._connection = connection
        self._clock = clock
        self._rng = rng
        self._streams = Streams(connection, rng)
        connection.repair = self._streams.repair
        self._publisher = Publisher(connection, rng)
        self._tracer = tracer

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        options: BusOptions | None = None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        tracer: trace.Tracer | None = None,
    ) -> Self:
        """Returns a bus that is connected, with the stream and buckets in place.

        Waits for NATS as long as it takes, and for its JetStream as long as publishing would.

        Args:
            url: One or more server addresses, comma-separated.
            name: Of this client, for the server's monitoring.
            options: Limits and times.
            clock: Seconds since the epoch; leases are measured by it.
            rng: For jitter and write ids.
            tracer: Makes the messaging spans; by default the process's own.
        """
        connection = NatsConnection(url, name, options or BusOptions())
        bus = cls(
            connection,
            clock=clock,
            rng=rng or random.Random(),
            tracer=tracer or trace.get_tracer(tracing.TRACER),
        )
        await connection.open()
        try:
            await bus._streams.ensure()
            await bus._publisher.open()
        except BaseException:
            await connection.close()
            raise
        return bus

    async def __aenter__(self) -> Self:
        """Returns itself; leaving closes."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connection."""
        await self.close()

    async def close(self) -> None:
        """Lets go of the connection. Stop consumers first."""
        self._publisher.close()
        await self._connection.close()

    async def publish(self, envelope: events_pb2.Envelope) -> PublishAck:
        """Adds an event to the stream, or finds it there."""
        out = checked(envelope, self._connection.options.max_event_bytes)
        what = f"publishing {out.type_name} {envelope.event_id}"
        with tracing.publishing(self._tracer, envelope, out.type_name, out.subject) as headers:
            headers["Nats-Msg-Id"] = envelope.event_id
            return await self._publisher.publish(what, out.subject, out.data, headers)

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
        """Hands events to a handler until `stop` is set; replicas that give the same name share the work."""
        policy = ConsumePolicy(
            consumer=consumer,
            max_in_flight=max_in_flight,
            ack_wait_seconds=ack_wait_seconds,
            max_deliver=max_deliver,
            drain_seconds=self._connection.options.drain_seconds,
        )
        await NatsConsumer(
            self._connection,
            policy,
            types,
            handler,
            ledger=NatsRetryLedger(self._connection, self._rng),
            dead_letter=self._dead_letter,
            advise=self._on_advisory,
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
        reader = StreamReader(
            self._connection,
            STREAM,
            subjects.filter_subjects(types, run_id),
            start_sequence=start_sequence,
            follow=follow,
            stop=stop,
            rng=self._rng,
        )
        async with aclosing(reader.messages()) as messages:
            async for position, message in messages:
                try:
                    envelope = events_pb2.Envelope.FromString(message.data)
                except DecodeError as err:
                    raise EventUnreadable(
                        sequence=position.stream_sequence,
                        subject=message.subject,
                        problem=str(err),
                    ) from err
                yield LoggedEvent(
                    sequence=position.stream_sequence,
                    envelope=envelope,
                    context=tracing.extract(message.headers),
                )

    async def claims(self) -> StoredClaims:
        """Returns the claims of the suite."""
        store = NatsClaimStore(self._connection, self._rng)
        return StoredClaims(store, clock=self._clock, rng=self._rng)

    async def blobs(self) -> NatsBlobs:
        """Returns the blobs of the suite."""
        return NatsBlobs(self._connection, self._publisher, self._rng)

    async def usage(self) -> StreamUsage:
        """Returns how full the stream is."""
        info = await persist(
            self._connection,
            "looking at the stream EVENTS",
            lambda: self._connection.jetstream.stream_info(STREAM),
            rng=self._rng,
        )
        return StreamUsage(bytes=info.state.bytes, max_bytes=max(0, info.config.max_bytes or 0))

    async def purge_run(self, run_id: str) -> int:
        """Removes a run's events and claims and returns how many events went; may be repeated after a failure."""
        rollout_ids: set[str] = set()
        count = 0
        async with aclosing(self.read(run_id=run_id)) as events:
            async for event in events:
                count += 1
                if event.envelope.rollout_id:
                    rollout_ids.add(event.envelope.rollout_id)
        for stream, subject in purges_of_run(run_id, rollout_ids):
            await self._purge(stream, subject)
        return count

    async def _purge(self, stream: str, subject: str) -> None:
        await persist(
            self._connection,
            f"purging {subject}",
            lambda: self._connection.jetstream.purge_stream(stream, subject=subject),
            rng=self._rng,
        )

    async def _dead_letter(self, refusal: Refusal) -> None:
        await publish_dead_letter(self.publish, refusal, self._clock)

    async def _on_advisory(self, message: Msg) -> None:
        """Turns the server's word that it will not deliver a message again into a dead letter."""
        advisory = json.loads(message.data)
        sequence = int(advisory["stream_seq"])
        try:
            stored = await self._connection.jetstream.get_msg(STREAM, sequence)
            refusal = Refusal(
                consumer=advisory["consumer"],
                sequence=sequence,
                subject=stored.subject or "",
                delivery_count=int(advisory["deliveries"]),
                reason=f"not acknowledged in {advisory['deliveries']} deliveries (max-deliveries advisory)",
                envelope=_readable(stored.data or b""),
                headers=stored.headers or {},
            )
            await self._dead_letter(refusal)
        except nats.js.errors.NotFoundError:
            _LOG.info("message of an advisory is purged", extra={"sequence": sequence})
        except (HoneError, TimeoutError) as err:
            _LOG.error(
                "advisory could not become a dead letter",
                extra={"sequence": sequence, "error": repr(err)},
            )


def _readable(data: bytes) -> events_pb2.Envelope:
    """Returns the envelope, or an empty one where the bytes are the reason that nobody could handle them."""
    try:
        return events_pb2.Envelope.FromString(data)
    except DecodeError:
        return events_pb2.Envelope()
