"""Traces that go through the stream, on both buses."""

import asyncio
import uuid

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags


@pytest.fixture
def in_trace_of():
    def make(trace_id: int):
        context = SpanContext(
            trace_id=trace_id, span_id=0x1234, is_remote=True, trace_flags=TraceFlags(1)
        )
        return trace.use_span(NonRecordingSpan(context))

    return make


@pytest.fixture
def consume_one(consuming):
    async def run(bus, handler=None):
        stop, done, deliveries = asyncio.Event(), asyncio.Event(), []

        async def handle(delivery):
            deliveries.append((delivery, trace.get_current_span().get_span_context()))
            done.set()

        await consuming(stop, bus.consume("c", ["rollout_turn"], handle, stop=stop), until=done)
        return deliveries[0]

    return run


async def test_trace_of_a_rollout_goes_through(
    bus, turn, rollout_id, spans, in_trace_of, consume_one
):
    trace_id = uuid.UUID(rollout_id).int
    with in_trace_of(trace_id):
        await bus.publish(turn(1))
    delivery, current = await consume_one(bus)
    producer, consumer = spans.get_finished_spans()
    assert (producer.name, producer.kind) == ("publish turn.taken", SpanKind.PRODUCER)
    assert (consumer.name, consumer.kind) == ("process turn.taken", SpanKind.CONSUMER)
    assert producer.parent.span_id == 0x1234
    assert consumer.parent.span_id == producer.context.span_id
    assert {producer.context.trace_id, consumer.context.trace_id} == {trace_id}
    assert current.span_id == consumer.context.span_id
    sent = trace.get_current_span(delivery.context).get_span_context()
    assert sent.span_id == producer.context.span_id
    assert producer.attributes["messaging.system"] == "nats"
    assert producer.attributes["messaging.destination.name"] == "hone.v1.turn.taken.run1"
    assert [
        trace.get_current_span(event.context).get_span_context().span_id
        async for event in bus.read()
    ] == [producer.context.span_id]


async def test_no_span_is_made_without_a_current_one(bus, turn, spans, consume_one):
    await bus.publish(turn(1))
    delivery, current = await consume_one(bus)
    assert not current.is_valid
    assert not trace.get_current_span(delivery.context).get_span_context().is_valid
    assert spans.get_finished_spans() == ()


async def test_a_foreign_trace_does_not_go_through(bus, turn, spans, in_trace_of, consume_one):
    with in_trace_of(uuid.uuid4().int):
        await bus.publish(turn(1))
    _, current = await consume_one(bus)
    assert not current.is_valid
    assert spans.get_finished_spans() == ()
