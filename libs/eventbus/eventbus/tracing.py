"""Carries a rollout's trace through the stream, and makes the two messaging spans where they have a real parent.

Nothing here starts a trace. A PRODUCER span is made only under a current span of the event's own trace, and a
CONSUMER span only under a context that arrived, so every span of a rollout has an existing parent in its trace.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hone.events.v1 import events_pb2
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from servicekit import attributes, identity

TRACER = "hone.eventbus"

_PROPAGATOR = TraceContextTextMapPropagator()


def extract(headers: Mapping[str, str] | None) -> Context:
    """Returns the context that a publisher sent; an empty one if it sent none."""
    if not headers or "traceparent" not in headers:
        return Context()
    return _PROPAGATOR.extract(headers, context=Context())


def _in_own_trace(rollout_id: str) -> bool:
    current = trace.get_current_span().get_span_context()
    if not current.is_valid:
        return False
    if not rollout_id:
        return True
    try:
        return current.trace_id == identity.trace_id_of(rollout_id)
    except ValueError:
        return False


@contextmanager
def publishing(
    tracer: trace.Tracer, envelope: events_pb2.Envelope, type_name: str, subject: str
) -> Iterator[dict[str, str]]:
    """Yields the trace headers to send, inside a PRODUCER span if there is a current span of the event's trace.

    Under a span of another trace nothing is sent: a consumer would otherwise hang the rollout's spans there.
    """
    headers: dict[str, str] = {}
    if not _in_own_trace(envelope.rollout_id):
        yield headers
        return
    with tracer.start_as_current_span(
        f"publish {type_name}",
        kind=SpanKind.PRODUCER,
        attributes=_attributes(envelope, subject),
    ):
        _PROPAGATOR.inject(headers)
        yield headers


@contextmanager
def processing(
    tracer: trace.Tracer,
    context: Context,
    envelope: events_pb2.Envelope,
    type_name: str,
    subject: str,
) -> Iterator[None]:
    """Runs the block inside the publisher's context, in a CONSUMER span if that context is a real one."""
    token = otel_context.attach(context)
    try:
        if not trace.get_current_span(context).get_span_context().is_valid:
            yield
            return
        with tracer.start_as_current_span(
            f"process {type_name}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes(envelope, subject),
        ):
            yield
    finally:
        otel_context.detach(token)


def _attributes(envelope: events_pb2.Envelope, subject: str) -> dict[str, str]:
    result = {
        attributes.MESSAGING_SYSTEM: "nats",
        attributes.MESSAGING_DESTINATION: subject,
        attributes.RUN_ID: envelope.run_id,
    }
    if envelope.rollout_id:
        result[attributes.ROLLOUT_ID] = envelope.rollout_id
    return result
