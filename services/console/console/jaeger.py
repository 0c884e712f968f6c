"""The JSON of Jaeger's query API, made from the archive's spans, for tools that were written for Jaeger."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from console.spans import AttributeValue, Span

JsonObject = dict[str, object]


def envelope(data: Sequence[object] | None, *, error: tuple[int, str] | None = None) -> JsonObject:
    """Wraps an answer the way Jaeger does."""
    return {
        "data": data,
        "total": len(data) if data is not None else 0,
        "limit": 0,
        "offset": 0,
        "errors": [{"code": error[0], "msg": error[1]}] if error else None,
    }


def trace(trace_id: str, spans: Sequence[Span]) -> JsonObject:
    """Returns one trace; each service is a process of its own."""
    processes = {name: f"p{i}" for i, name in enumerate(_services(spans), start=1)}
    known = {span.span_id for span in spans}
    return {
        "traceID": trace_id,
        "spans": [_span(span, processes[span.service_name], known) for span in spans],
        "processes": {key: {"serviceName": name, "tags": []} for name, key in processes.items()},
        "warnings": None,
    }


def _services(spans: Iterable[Span]) -> list[str]:
    return list(dict.fromkeys(span.service_name for span in spans))


def _span(span: Span, process: str, known: set[str]) -> JsonObject:
    references = [
        {"refType": "FOLLOWS_FROM", "traceID": link.trace_id, "spanID": link.span_id}
        for link in span.links
    ]
    warnings: list[str] = []
    if span.parent_span_id:
        references.insert(
            0,
            {"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": span.parent_span_id},
        )
        if span.parent_span_id not in known:
            warnings.append(f"parent span {span.parent_span_id} is not in the archive")
    tags = [_tag("span.kind", span.kind), *_tags(span.attributes)]
    if span.status != "unset":
        tags.append(_tag("otel.status_code", span.status.upper()))
    if span.status == "error":
        tags.append(_tag("error", True))
    if span.status_message:
        tags.append(_tag("otel.status_description", span.status_message))
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "flags": 1,
        "operationName": span.name,
        "references": references,
        "startTime": span.start_ns // 1000,
        "duration": max(span.end_ns - span.start_ns, 0) // 1000,
        "tags": tags,
        "logs": [
            {
                "timestamp": event.time_ns // 1000,
                "fields": [_tag("event", event.name), *_tags(event.attributes)],
            }
            for event in span.events
        ],
        "processID": process,
        "warnings": warnings or None,
    }


def _tags(attributes: Mapping[str, AttributeValue]) -> list[JsonObject]:
    return [_tag(key, value) for key, value in attributes.items()]


def _tag(key: str, value: AttributeValue) -> JsonObject:
    match value:
        case bool():
            return {"key": key, "type": "bool", "value": value}
        case int():
            return {"key": key, "type": "int64", "value": value}
        case float() if math.isfinite(value):
            return {"key": key, "type": "float64", "value": value}
        case str():
            return {"key": key, "type": "string", "value": value}
        case _:
            # Lists and objects, and the floats that JSON cannot say.
            return {"key": key, "type": "string", "value": json.dumps(value)}
