"""A durable consumer in memory, shared by the replicas of one process, and one replica's loop over it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry import trace

from eventbus.bus import Handler
from eventbus.handling import ConsumePolicy, DeliveryRunner, Refusal, RetryLedger
from eventbus.memory.log import Entry, MemoryLog


@dataclass(slots=True)
class _Pending:
    """A delivered event that is not acknowledged."""

    delivery_count: int
    due: float
    """Loop time at which it is delivered again."""


class MemoryDurable:
    """Where a consumer stands: a cursor, and what was delivered and not acknowledged."""

    def __init__(self, log: MemoryLog) -> None:
        """Starts before the first event."""
        self._log = log
        self._cursor = 0
        self._pending: dict[int, _Pending] = {}
        self._watchers: list[Callable[[], None]] = []
        self.filters: Sequence[str] = ()
        self.ack_wait_seconds = 0.0

    def take(self, now: float) -> "MemoryTicket | None":
        """Delivers what is due again, or else what is next."""
        for sequence in sorted(self._pending):
            pending = self._pending[sequence]
            if pending.due > now:
                continue
            entry = self._log.get(sequence)
            if entry is None:
                del self._pending[sequence]
                continue
            pending.delivery_count += 1
            pending.due = now + self.ack_wait_seconds
            return MemoryTicket(self, entry, pending.delivery_count)
        entry = self._log.after(self._cursor, self.filters)
        if entry is None:
            return None
        self._cursor = entry.sequence
        self._pending[entry.sequence] = _Pending(1, now + self.ack_wait_seconds)
        return MemoryTicket(self, entry, 1)

    def next_due(self) -> float | None:
        """Returns when the next redelivery is due, in loop time."""
        return min((p.due for p in self._pending.values()), default=None)

    def settle(self, sequence: int) -> None:
        """Ends an event's deliveries."""
        self._pending.pop(sequence, None)

    def postpone(self, sequence: int, due: float) -> None:
        """Moves an event's next delivery."""
        pending = self._pending.get(sequence)
        if pending is not None:
            pending.due = due
            for callback in list(self._watchers):
                callback()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when a delivery was moved; returns what ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)


class MemoryTicket:
    """One delivery of one event."""

    def __init__(self, durable: MemoryDurable, entry: Entry, delivery_count: int) -> None:
        """Keeps where to answer."""
        self._durable = durable
        self.sequence = entry.sequence
        self.delivery_count = delivery_count
        self.subject = entry.subject
        self.data = entry.data
        self.headers: Mapping[str, str] = entry.headers

    async def ack(self, *, confirm: bool) -> None:
        """Ends the event's deliveries."""
        self._durable.settle(self.sequence)

    async def nak(self, delay_seconds: float) -> None:
        """Gives the event back, to come again after the delay."""
        now = asyncio.get_running_loop().time()
        self._durable.postpone(self.sequence, now + delay_seconds)

    async def terminate(self) -> None:
        """Ends the event's deliveries."""
        self._durable.settle(self.sequence)

    async def in_progress(self) -> None:
        """Starts the event's ack_wait anew."""
        now = asyncio.get_running_loop().time()
        self._durable.postpone(self.sequence, now + self._durable.ack_wait_seconds)


class MemoryRetryLedger:
    """Counts RetryLater answers."""

    def __init__(self) -> None:
        """Starts at none."""
        self._counts: dict[tuple[str, int], int] = {}

    async def add(self, consumer: str, sequence: int) -> None:
        """Counts one more."""
        key = (consumer, sequence)
        self._counts[key] = self._counts.get(key, 0) + 1

    async def count(self, consumer: str, sequence: int) -> int:
        """Returns how many there were."""
        return self._counts.get((consumer, sequence), 0)


class MemoryConsumer:
    """One replica: takes from the durable what it can run."""

    def __init__(
        self,
        log: MemoryLog,
        durable: MemoryDurable,
        policy: ConsumePolicy,
        handler: Handler,
        *,
        ledger: RetryLedger,
        dead_letter: Callable[[Refusal], Awaitable[None]],
        rng: random.Random,
        tracer: trace.Tracer,
    ) -> None:
        """Keeps the parts; `run` runs."""
        self._log = log
        self._durable = durable
        self._policy = policy
        self._wake = asyncio.Event()
        self._stopping = False
        self._runner = DeliveryRunner(
            policy,
            handler,
            ledger=ledger,
            dead_letter=dead_letter,
            rng=rng,
            tracer=tracer,
            freed=self._wake.set,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Consumes until `stop` is set, then drains."""
        unwatch = [self._log.watch(self._wake.set), self._durable.watch(self._wake.set)]
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._signal_progress()),
                    group.create_task(self._watch(stop)),
                ]
                await self._take_until_stopped(group, stop)
                await self._runner.drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            for end in unwatch:
                end()

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._wake.set()

    async def _signal_progress(self) -> None:
        while True:
            await asyncio.sleep(self._policy.ack_wait_seconds / 3)
            await self._runner.signal_progress()

    async def _take_until_stopped(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not (self._stopping or stop.is_set()):
            self._wake.clear()
            while self._runner.running_count < self._policy.max_in_flight:
                ticket = self._durable.take(loop.time())
                if ticket is None:
                    break
                self._runner.offer(ticket, group)
            due = self._durable.next_due()
            full = self._runner.running_count >= self._policy.max_in_flight
            try:
                async with asyncio.timeout_at(None if full else due):
                    await self._wake.wait()
            except TimeoutError:
                continue
