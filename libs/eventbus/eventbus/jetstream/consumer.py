"""One process's share of a durable pull consumer: asks for as much as it can run, and answers for what it got."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api
from opentelemetry import trace

from eventbus import subjects
from eventbus.bus import STREAM, Handler
from eventbus.handling import ConsumePolicy, DeliveryRunner, Refusal, RetryLedger
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.pulls import PullInbox, position_of
from eventbus.jetstream.retry import AWAY, BACKOFF, StreamMissing, persist, unless_stopped
from servicekit.errors import FailedPrecondition, InvalidArgument

_LOG = logging.getLogger("hone.eventbus")

_CONFLICTS = frozenset({10012, 10013, 10105, 10148})
"""Server error codes for a consumer that exists and cannot be changed into what is asked for."""

_IDLE_SECONDS = 1.0
"""How often the pull loop looks round without being woken."""


class NatsTicket:
    """A delivered message, answered over the connection that is there when the answer is."""

    def __init__(self, message: Msg, connection: NatsConnection, ack_wait_seconds: float) -> None:
        """Reads where the message stands."""
        position = position_of(message)
        self.sequence = position.stream_sequence
        self.delivery_count = position.delivery_count
        self.subject = message.subject
        self.data = message.data
        self.headers: Mapping[str, str] = message.headers or {}
        self._message = message
        self._connection = connection
        self._ack_wait_seconds = ack_wait_seconds

    async def ack(self, *, confirm: bool) -> None:
        """Acknowledges; with confirm, tries until the server says that it knows."""
        if not confirm and self._connection.is_connected:
            await self._send(b"+ACK")
            return
        timeout = self._connection.options.request_timeout_seconds
        for tries in range(1, 6):
            try:
                await self._connection.wait_connected(self._ack_wait_seconds)
                await self._connection.client.request(
                    self._message.reply, b"+ACK", timeout=min(timeout, self._ack_wait_seconds)
                )
                return
            except AWAY as err:
                _LOG.debug("ack again", extra={"sequence": self.sequence, "error": repr(err)})
                await asyncio.sleep(BACKOFF.first_seconds * tries)
        _LOG.warning(
            "acknowledgement not confirmed; the event may come again",
            extra={"sequence": self.sequence},
        )

    async def nak(self, delay_seconds: float) -> None:
        """Gives the message back. Lost with the connection, it comes back after ack_wait all the same."""
        delay = f' {{"delay": {int(delay_seconds * 1e9)}}}' if delay_seconds > 0 else ""
        await self._send(b"-NAK" + delay.encode())

    async def terminate(self) -> None:
        """Ends the message's deliveries."""
        await self._send(b"+TERM")

    async def in_progress(self) -> None:
        """Starts the message's ack_wait anew."""
        if self._connection.is_connected:
            await self._send(b"+WPI")

    async def _send(self, answer: bytes) -> None:
        try:
            await self._connection.client.publish(self._message.reply, answer)
        except nats.errors.Error as err:
            _LOG.warning(
                "could not answer a delivery; it comes again",
                extra={"sequence": self.sequence, "answer": answer.decode(), "error": repr(err)},
            )


class NatsConsumer:
    """Runs one consumer until it is stopped.

    Args:
        connection: To NATS.
        policy: Limits.
        types: Payload field names.
        handler: The consumer's.
        ledger: Where RetryLater is counted.
        dead_letter: Writes a dead letter.
        advise: Turns a max-deliveries advisory for (consumer, sequence, deliveries) into a dead letter.
        rng: For jitter.
        tracer: Makes the CONSUMER spans.
    """

    def __init__(
        self,
        connection: NatsConnection,
        policy: ConsumePolicy,
        types: Sequence[str],
        handler: Handler,
        *,
        ledger: RetryLedger,
        dead_letter: Callable[[Refusal], Awaitable[None]],
        advise: Callable[[Msg], Awaitable[None]],
        rng: random.Random,
        tracer: trace.Tracer,
    ) -> None:
        """Keeps the parts; `run` runs."""
        if not types:
            raise InvalidArgument("consume needs at least one event type")
        self._connection = connection
        self._policy = policy
        self._filters = subjects.filter_subjects(types, None)
        self._advise = advise
        self._rng = rng
        self._wake = asyncio.Event()
        self._stopping = False
        self._runner = DeliveryRunner(
            policy,
            handler,
            ledger=ledger,
            dead_letter=dead_letter,
            rng=rng,
            tracer=tracer,
            freed=self._on_freed,
        )
        # Asking for single messages would cost a request each; a quarter at a time keeps handlers busy.
        self._ask_from = max(1, policy.max_in_flight // 4)
        self._inbox = self._new_inbox()

    async def run(self, stop: asyncio.Event) -> None:
        """Consumes until `stop` is set, then drains."""
        await self._wait_connected(stop)
        await unless_stopped(stop, self._ensure_durable())
        if stop.is_set():
            return
        advisory = await self._connection.client.subscribe(
            f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.{self._policy.consumer}",
            cb=self._advise,
        )
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                helpers = [
                    group.create_task(self._signal_progress()),
                    group.create_task(self._watch(stop)),
                ]
                await self._inbox.open()
                await self._pull_until_stopped(stop)
                # Pulls first: what the runner gives back must find no pull of this process.
                await self._inbox.drain()
                await self._runner.drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            await self._inbox.close()
            if not self._connection.client.is_closed:
                await advisory.unsubscribe()

    async def _wait_connected(self, stop: asyncio.Event) -> None:
        """Waits for NATS as long as it takes, or until stopped."""
        while not stop.is_set():
            try:
                await self._connection.wait_connected(_IDLE_SECONDS)
                return
            except TimeoutError:
                continue

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._runner.closing = True
        self._wake.set()

    async def _signal_progress(self) -> None:
        while not self._stopping or self._runner.running_count:
            await asyncio.sleep(self._policy.ack_wait_seconds / 3)
            await self._runner.signal_progress()

    async def _pull_until_stopped(self, stop: asyncio.Event) -> None:
        generation = self._connection.generation
        while not self._stopping:
            self._wake.clear()
            if self._connection.is_connected:
                if generation != self._connection.generation:
                    generation = self._connection.generation
                    await self._runner.signal_progress()
                if self._inbox.gone:
                    await unless_stopped(stop, self._replace_inbox())
                await self._ask()
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> None:
        outstanding = self._inbox.outstanding
        wanted = self._policy.max_in_flight - self._runner.running_count - outstanding
        if wanted >= self._ask_from or (wanted > 0 and outstanding == 0):
            try:
                await self._inbox.request(wanted)
            except nats.errors.Error as err:
                _LOG.debug("pull not sent", extra={"error": repr(err)})

    def _on_freed(self) -> None:
        free = self._policy.max_in_flight - self._runner.running_count
        if free >= self._ask_from:
            self._wake.set()

    def _on_message(self, message: Msg) -> None:
        ticket = NatsTicket(message, self._connection, self._policy.ack_wait_seconds)
        self._runner.offer(ticket, self._group)

    def _new_inbox(self) -> PullInbox:
        return PullInbox(
            self._connection,
            STREAM,
            self._policy.consumer,
            on_message=self._on_message,
            on_change=self._wake.set,
        )

    async def _replace_inbox(self) -> None:
        _LOG.warning(
            "consumer cannot be pulled from; making sure that it exists",
            extra={"consumer": self._policy.consumer, "status": self._inbox.gone},
        )
        await self._inbox.close()
        # Should it be gone again at once, this must not spin.
        await asyncio.sleep(BACKOFF.delay_seconds(1, self._rng))
        await self._ensure_durable()
        self._inbox = self._new_inbox()
        await self._inbox.open()

    async def _ensure_durable(self) -> None:
        """Creates the durable, or updates it in place where its configuration changed."""
        policy = self._policy
        options = self._connection.options
        config = api.ConsumerConfig(
            name=policy.consumer,
            durable_name=policy.consumer,
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=policy.ack_wait_seconds,
            max_deliver=policy.max_deliver + options.spare_deliveries,
            max_ack_pending=policy.max_in_flight * options.replicas_in_flight,
            filter_subjects=self._filters,
            num_replicas=options.replicas,
        )

        async def create_or_update() -> None:
            try:
                await self._connection.jetstream.add_consumer(STREAM, config)
            except nats.js.errors.NotFoundError as err:
                raise StreamMissing(str(err)) from err
            except nats.js.errors.APIError as err:
                if err.err_code not in _CONFLICTS:
                    raise
                raise FailedPrecondition(
                    f"durable consumer {policy.consumer!r} exists in a form that cannot become what is asked for: "
                    f"{err.description}; delete it, or use another name",
                    reason="CONSUMER_CONFLICT",
                ) from err

        await persist(
            self._connection,
            f"preparing the consumer {policy.consumer}",
            create_or_update,
            rng=self._rng,
        )
