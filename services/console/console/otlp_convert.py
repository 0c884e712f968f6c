"""OTLP spans to the console's; a span whose ids are unusable is left out and counted by the caller."""

import base64
import json
from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from console.spans import AttributeValue, Span, SpanEvent, SpanLink

UNKNOWN_SERVICE = "unknown_service"
"""What OpenTelemetry calls a resource without service.name."""

_LAST_NS = (1 << 63) - 1
_KINDS: Mapping[int, str] = {
    trace_pb2.Span.SPAN_KIND_SERVER: "server",
    trace_pb2.Span.SPAN_KIND_CLIENT: "client",
    trace_pb2.Span.SPAN_KIND_PRODUCER: "producer",
    trace_pb2.Span.SPAN_KIND_CONSUMER: "consumer",
}
_STATUS: Mapping[int, str] = {
    trace_pb2.Status.STATUS_CODE_OK: "ok",
    trace_pb2.Status.STATUS_CODE_ERROR: "error",
}


def spans_from_proto(
    request: trace_service_pb2.ExportTraceServiceRequest,
) -> tuple[list[Span], int]:
    """Returns the usable spans of an export, and how many were not."""
    spans: list[Span] = []
    num_rejected = 0
    for resource_spans in request.resource_spans:
        name = next(
            (
                a.value.string_value
                for a in resource_spans.resource.attributes
                if a.key == "service.name"
            ),
            "",
        )
        for scope_spans in resource_spans.scope_spans:
            for message in scope_spans.spans:
                if _is_id(message.trace_id, 16) and _is_id(message.span_id, 8):
                    spans.append(_span(message, name or UNKNOWN_SERVICE))
                else:
                    num_rejected += 1
    return spans, num_rejected


def attribute_text(value: AttributeValue) -> str:
    """Returns an attribute's value as text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _is_id(value: bytes, num_bytes: int) -> bool:
    return len(value) == num_bytes and any(value)


def _span(message: trace_pb2.Span, service_name: str) -> Span:
    parent = message.parent_span_id
    return Span(
        trace_id=message.trace_id.hex(),
        span_id=message.span_id.hex(),
        parent_span_id=parent.hex() if _is_id(parent, 8) else "",
        service_name=service_name,
        name=message.name,
        kind=_KINDS.get(message.kind, "internal"),
        # SQLite's integers are signed; 2 ** 63 ns is the year 2262.
        start_ns=min(message.start_time_unix_nano, _LAST_NS),
        end_ns=min(message.end_time_unix_nano, _LAST_NS),
        attributes=_attributes(message.attributes),
        status=_STATUS.get(message.status.code, "unset"),
        status_message=message.status.message,
        links=tuple(
            SpanLink(trace_id=link.trace_id.hex(), span_id=link.span_id.hex())
            for link in message.links
        ),
        events=tuple(
            SpanEvent(
                time_ns=min(event.time_unix_nano, _LAST_NS),
                name=event.name,
                attributes=_attributes(event.attributes),
            )
            for event in message.events
        ),
    )


def _attributes(pairs: Iterable[common_pb2.KeyValue]) -> dict[str, AttributeValue]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> AttributeValue:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode("ascii")
        case _:
            return ""
