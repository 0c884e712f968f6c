"""Events over the in-process bus: what is told, and what is heard."""

import asyncio
import time

from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.envelope import new_envelope
from eventbus.memory_bus import MemoryBus
from sandbox.publisher import BusEvents, consume
from servicekit import identity


async def test_created_and_destroyed_are_told_once_and_an_outcome_destroys(
    backend, clock, tmp_path, suite_maker
):
    bus = MemoryBus()
    events = BusEvents(bus, trace.get_tracer("test"), time.time)
    suite = suite_maker(backend, tmp_path, clock, events=events)
    await suite.manager.start()
    stop = asyncio.Event()
    consuming = asyncio.ensure_future(consume(bus, suite.fleet, suite.plans, stop))
    scored, failed = suite.rollout_id(), suite.rollout_id()
    boxes = {one: (await suite.create(one)).info for one in (scored, failed)}
    await bus.publish(
        new_envelope(
            events_pb2.RewardAssigned(scored=outcome_pb2.Scored(), grader_version="g1"),
            source="grader",
            run_id="run-1",
            rollout_id=scored,
            clock=time.time,
        )
    )
    await bus.publish(
        new_envelope(
            events_pb2.RolloutFailed(failure=outcome_pb2.Failure()),
            source="rollout",
            run_id="run-1",
            rollout_id=failed,
            clock=time.time,
        )
    )
    while suite.manager.stats().destroyed_count < 2:
        await asyncio.sleep(0.001)
    for info in boxes.values():
        await events.destroyed(suite.records.get(info.sandbox_id))  # told again: the same event
    told = [e.envelope async for e in bus.read(["sandbox_created", "sandbox_destroyed"])]
    created = [e for e in told if e.WhichOneof("payload") == "sandbox_created"]
    destroyed = [e for e in told if e.WhichOneof("payload") == "sandbox_destroyed"]
    assert {e.sandbox_created.sandbox_id for e in created} == {i.sandbox_id for i in boxes.values()}
    assert [(e.source, e.run_id, e.epoch) for e in created] == [("sandbox", "run-1", 1)] * 2
    assert {e.sandbox_destroyed.cause for e in destroyed} == {"outcome"}
    assert len(destroyed) == 2
    stop.set()
    await consuming
    await suite.manager.close()


async def test_the_destroyed_event_continues_the_trace_of_the_create(suite):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    bus = MemoryBus(tracer=tracer)
    rollout_id = "01890000-0000-7000-8000-000000000001"
    parent = trace.SpanContext(
        trace_id=identity.trace_id_of(rollout_id),
        span_id=7,
        is_remote=False,
        trace_flags=trace.TraceFlags(1),
    )
    context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    headers: dict[str, str] = {}
    propagate.inject(headers, context=context)
    info = (await suite.create(rollout_id, trace_parent=headers["traceparent"])).info
    await suite.fleet.end_rollout(rollout_id)
    mark = otel_context.attach(otel_context.Context())
    await BusEvents(bus, tracer, time.time).destroyed(suite.records.get(info.sandbox_id))
    otel_context.detach(mark)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans["sandbox.destroy"].parent.span_id == 7
    assert {span.context.trace_id for span in spans.values()} == {parent.trace_id}
