"""Spans of the critic: only inside a trace."""

from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer


def span_in_trace(
    tracer: Tracer,
    name: str,
    named: dict[str, str | int | float],
    kind: SpanKind = SpanKind.INTERNAL,
) -> AbstractContextManager[Span]:
    """Start a span inside the call's; a call outside any trace makes none, so none lacks its parent."""
    if not trace.get_current_span().get_span_context().is_valid:
        return trace.use_span(trace.INVALID_SPAN)
    return tracer.start_as_current_span(name, attributes=named, kind=kind)
