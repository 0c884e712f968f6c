"""Both buses behind one fixture, and events to put on them."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hone.events.v1 import events_pb2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.bus import EventBus, PublishAck
from eventbus.envelope import new_envelope
from eventbus.jetstream.options import BusOptions
from eventbus.memory_bus import MemoryBus
from eventbus.nats_bus import NatsBus
from eventbus.testing import nats_server, start_nats

__all__ = ["nats_server"]


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer_provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


MakeBus = Callable[..., Awaitable[EventBus]]


@pytest.fixture(params=["memory", "nats"])
async def make_bus(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: FakeClock,
    tracer_provider: TracerProvider,
) -> AsyncIterator[MakeBus]:
    """Makes buses over one stream: in memory always the same one, over NATS one connection each."""
    tracer = tracer_provider.get_tracer("test")
    buses: list[EventBus] = []

    async def memory(
        *, max_bytes: int = 0, deadline_seconds: float = 10.0, drain_seconds: float = 5.0
    ) -> EventBus:
        if not buses:
            buses.append(
                MemoryBus(
                    max_bytes=max_bytes,
                    publish_deadline_seconds=deadline_seconds,
                    drain_seconds=drain_seconds,
                    clock=clock,
                    tracer=tracer,
                )
            )
        return buses[0]

    if request.param == "memory":
        yield memory
        return
    with start_nats(tmp_path) as server:

        async def nats(
            *, max_bytes: int = 0, deadline_seconds: float = 10.0, drain_seconds: float = 5.0
        ) -> EventBus:
            options = BusOptions(
                stream_max_bytes=max_bytes or None,
                publish_deadline_seconds=deadline_seconds,
                drain_seconds=drain_seconds,
            )
            bus = await NatsBus.connect(
                server.url, name="test", options=options, clock=clock, tracer=tracer
            )
            buses.append(bus)
            return bus

        yield nats
        for bus in buses:
            await bus.close()


@pytest.fixture
async def bus(make_bus: MakeBus) -> EventBus:
    return await make_bus()


@pytest.fixture
def rollout_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def turn(rollout_id: str) -> Callable[..., events_pb2.Envelope]:
    """Makes the event of one turn; turns of one rollout differ in their id."""

    def make(number: int, run_id: str = "run1") -> events_pb2.Envelope:
        return new_envelope(
            events_pb2.RolloutTurn(turn=number),
            source="rollout",
            run_id=run_id,
            rollout_id=rollout_id,
            clock=time.time,
        )

    return make


@pytest.fixture
def publish_turns(
    turn: Callable[..., events_pb2.Envelope],
) -> Callable[..., Awaitable[list[PublishAck]]]:
    async def publish(
        bus: EventBus, count: int, *, first: int = 0, run_id: str = "run1"
    ) -> list[PublishAck]:
        events = [turn(number, run_id) for number in range(first, first + count)]
        return [await bus.publish(event) for event in events]

    return publish


@pytest.fixture
def consuming() -> Callable[..., Awaitable[None]]:
    """Runs consumers, given as coroutines taking stop, until a condition event is set; bounded in time."""

    async def run(stop: asyncio.Event, *consumers: Awaitable[None], until: asyncio.Event) -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for consumer in consumers:
                group.create_task(consumer)  # type: ignore[arg-type]
            await until.wait()
            stop.set()

    return run
