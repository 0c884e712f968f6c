"""What happens to a delivery, whichever implementation brought it: run the handler, then answer the stream.

Knows neither NATS nor memory: a `Ticket` is the one delivery to answer. Keeps three promises: a sequence never runs
twice at once in a process, one that was handled here is only acknowledged again, and one that fails too often becomes
a dead letter exactly once.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError
from hone.events.v1 import events_pb2
from opentelemetry import trace

from eventbus import subjects, tracing
from eventbus.backoff import Backoff
from eventbus.bus import Delivery, Handler
from eventbus.errors import RetryLater
from servicekit.errors import HoneError, InvalidArgument

_LOG = logging.getLogger("hone.eventbus")

REMEMBERED_SEQUENCES = 8192
"""Handled sequences that a process remembers, to answer redeliveries after a lost acknowledgement."""

CONFIRM_AFTER_SECONDS = 0.05
"""Work that took longer is acknowledged with a confirmation: one round trip is cheap beside it."""

_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)


class Ticket(Protocol):
    """One delivery of one message, to be answered once."""

    sequence: int
    delivery_count: int
    subject: str
    data: bytes
    headers: Mapping[str, str]

    async def ack(self, *, confirm: bool) -> None:
        """Says that the effect is committed."""
        ...

    async def nak(self, delay_seconds: float) -> None:
        """Gives the message back, to come again after the delay."""
        ...

    async def terminate(self) -> None:
        """Ends the message's deliveries."""
        ...

    async def in_progress(self) -> None:
        """Says that the work goes on."""
        ...


class RetryLedger(Protocol):
    """Counts, across replicas and restarts, the deliveries that ended in RetryLater and so were no attempts."""

    async def add(self, consumer: str, sequence: int) -> None:
        """Counts one more."""
        ...

    async def count(self, consumer: str, sequence: int) -> int:
        """Returns how many there were."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A message that a consumer gives up on."""

    consumer: str
    sequence: int
    subject: str
    delivery_count: int
    reason: str
    envelope: events_pb2.Envelope
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePolicy:
    """How one consumer treats its deliveries."""

    consumer: str
    max_in_flight: int
    ack_wait_seconds: float
    max_deliver: int
    drain_seconds: float

    def __post_init__(self) -> None:
        """Refuses limits that nothing could run under."""
        subjects.check_name("consumer", self.consumer)
        wrong = {
            name: f"is {value}, must be {least}"
            for name, value, fine, least in (
                ("max_in_flight", self.max_in_flight, self.max_in_flight >= 1, "at least 1"),
                ("ack_wait_seconds", self.ack_wait_seconds, self.ack_wait_seconds > 0, "above 0"),
                ("max_deliver", self.max_deliver, self.max_deliver >= 1, "at least 1"),
            )
            if not fine
        }
        if wrong:
            text = "; ".join(f"{name} {what}" for name, what in wrong.items())
            raise InvalidArgument(f"consumer {self.consumer!r}: {text}", violations=wrong)


@dataclass(slots=True)
class _Running:
    """A handler at work and the newest delivery of its message."""

    ticket: Ticket
    task: asyncio.Task[None] | None = None
    handled: bool = field(default=False)


class DeliveryRunner:
    """Runs handlers for one consumer in one process.

    Args:
        policy: Limits.
        handler: The consumer's.
        ledger: Where RetryLater is counted.
        dead_letter: Writes the dead letter; raises HoneError if it cannot.
        rng: For jitter.
        tracer: Makes the CONSUMER spans.
        freed: Called when a handler has ended.
    """

    def __init__(
        self,
        policy: ConsumePolicy,
        handler: Handler,
        *,
        ledger: RetryLedger,
        dead_letter: Callable[[Refusal], Awaitable[None]],
        rng: random.Random,
        tracer: trace.Tracer,
        freed: Callable[[], None],
    ) -> None:
        """Starts with nothing running."""
        self._policy = policy
        self._handler = handler
        self._ledger = ledger
        self._dead_letter = dead_letter
        self._rng = rng
        self._freed = freed
        self._running: dict[int, _Running] = {}
        self._handled: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._tracer = tracer
        self.closing = False

    @property
    def running_count(self) -> int:
        """Handlers at work."""
        return len(self._running)

    def offer(self, ticket: Ticket, group: asyncio.TaskGroup) -> None:
        """Takes a delivery: begins it, or answers it where this process is at it, is done with it, or is closing."""
        current = self._running.get(ticket.sequence)
        if current is not None:
            current.ticket = ticket
        elif self.closing:
            group.create_task(ticket.nak(0.0))
        elif (ticket.sequence, ticket.headers.get("Nats-Msg-Id", "")) in self._handled:
            group.create_task(ticket.ack(confirm=True))
        else:
            running = _Running(ticket)
            self._running[ticket.sequence] = running
            running.task = group.create_task(self._run(running))

    async def signal_progress(self) -> None:
        """Tells the stream that the running handlers are alive."""
        for running in list(self._running.values()):
            if not running.handled:
                await running.ticket.in_progress()

    async def drain(self) -> None:
        """Lets running handlers finish within the drain time, then cancels them and gives their messages back."""
        self.closing = True
        tasks = [r.task for r in self._running.values() if r.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._policy.drain_seconds)
        for task in late:
            task.cancel()
        if late:
            _LOG.warning(
                "handlers did not finish in the drain time; their events go to another replica",
                extra={"consumer": self._policy.consumer, "cancelled": len(late)},
            )
            await asyncio.wait(late, timeout=self._policy.drain_seconds)

    async def _run(self, running: _Running) -> None:
        sequence = running.ticket.sequence
        try:
            await self._process(running)
        except asyncio.CancelledError:
            if not running.handled:
                await running.ticket.nak(0.0)
            raise
        except HoneError as err:
            # The handler's own errors end in _handle: this is the ledger, out of reach.
            _LOG.warning(
                "could not count a delivery; the event comes back",
                extra={"consumer": self._policy.consumer, "sequence": sequence, "error": str(err)},
            )
            await running.ticket.nak(_BACKOFF.longest_seconds)
        finally:
            del self._running[sequence]
            self._freed()

    async def _process(self, running: _Running) -> None:
        ticket = running.ticket
        try:
            envelope = events_pb2.Envelope.FromString(ticket.data)
        except DecodeError as err:
            unreadable = events_pb2.Envelope()
            await self._give_up(running, unreadable, f"not a hone.events.v1.Envelope: {err}")
            return
        attempts = ticket.delivery_count
        if attempts > self._policy.max_deliver:
            attempts -= await self._ledger.count(self._policy.consumer, ticket.sequence)
        if attempts > self._policy.max_deliver:
            reason = (
                f"not acknowledged in {self._policy.max_deliver} deliveries: handler died or hung"
            )
            await self._give_up(running, envelope, reason)
            return
        failure = await self._handle(running, envelope)
        if failure is None:
            return
        if attempts == ticket.delivery_count >= self._policy.max_deliver:
            # Read only now, so that a handler that succeeds costs no look at the ledger.
            attempts -= await self._ledger.count(self._policy.consumer, ticket.sequence)
        if attempts >= self._policy.max_deliver:
            reason = f"{type(failure).__name__}: {failure}"
            await self._give_up(running, envelope, reason)
        else:
            await running.ticket.nak(_BACKOFF.delay_seconds(attempts, self._rng))

    async def _handle(
        self, running: _Running, envelope: events_pb2.Envelope
    ) -> BaseException | None:
        """Runs the handler and answers success and RetryLater; returns any other failure."""
        ticket = running.ticket
        context = tracing.extract(ticket.headers)
        delivery = Delivery(
            envelope=envelope,
            sequence=ticket.sequence,
            delivery_count=ticket.delivery_count,
            context=context,
        )
        name = subjects.TYPES.get(envelope.WhichOneof("payload") or "", "unknown")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            with tracing.processing(self._tracer, context, envelope, name, ticket.subject):
                retry = await self._call(delivery)
        # Whatever a handler raises is that event's failure and must not end the consumer.
        except Exception as err:  # Whatever a handler raises, its event comes back or is given up.
            _LOG.warning(
                "handler failed",
                extra=self._about(delivery) | {"error": f"{type(err).__name__}: {err}"},
                exc_info=not isinstance(err, HoneError),
            )
            return err
        if retry is not None:
            await self._ledger.add(self._policy.consumer, ticket.sequence)
            await running.ticket.nak(retry.delay_seconds)
            return None
        running.handled = True
        self._remember(running.ticket)
        await running.ticket.ack(confirm=loop.time() - begun > CONFIRM_AFTER_SECONDS)
        return None

    async def _call(self, delivery: Delivery) -> RetryLater | None:
        """Runs the handler; a RetryLater is an answer, not an error of the span."""
        try:
            await self._handler(delivery)
        except RetryLater as later:
            _LOG.info("event comes back later", extra=self._about(delivery) | {"why": str(later)})
            return later
        return None

    async def _give_up(self, running: _Running, envelope: events_pb2.Envelope, reason: str) -> None:
        ticket = running.ticket
        refusal = Refusal(
            consumer=self._policy.consumer,
            sequence=ticket.sequence,
            subject=ticket.subject,
            delivery_count=ticket.delivery_count,
            reason=reason,
            envelope=envelope,
            headers=ticket.headers,
        )
        try:
            await self._dead_letter(refusal)
        except HoneError as err:
            _LOG.error(
                "dead letter could not be written; the event comes back",
                extra={
                    "consumer": refusal.consumer,
                    "sequence": refusal.sequence,
                    "error": str(err),
                },
            )
            await running.ticket.nak(_BACKOFF.longest_seconds)
            return
        running.handled = True
        await running.ticket.terminate()

    def _remember(self, ticket: Ticket) -> None:
        self._handled[(ticket.sequence, ticket.headers.get("Nats-Msg-Id", ""))] = None
        while len(self._handled) > REMEMBERED_SEQUENCES:
            self._handled.popitem(last=False)

    def _about(self, delivery: Delivery) -> dict[str, object]:
        return {
            "consumer": self._policy.consumer,
            "sequence": delivery.sequence,
            "event_id": delivery.envelope.event_id,
            "rollout_id": delivery.envelope.rollout_id,
            "delivery_count": delivery.delivery_count,
        }
