"""Spans as the archive keeps them, without protobuf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

AttributeValue = (
    str | bool | int | float | Sequence["AttributeValue"] | Mapping[str, "AttributeValue"]
)
"""A typed value; bytes arrive as base64 text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    """A reference to a span of another trace."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    time_ns: int
    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span as a service sent it; ids are lower-case hex."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    """Empty for the root."""
    service_name: str
    name: str
    kind: str = "internal"
    """internal, server, client, producer or consumer."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    status: str = "unset"
    """unset, ok or error."""
    status_message: str = ""
    links: tuple[SpanLink, ...] = ()
    events: tuple[SpanEvent, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took; 0 where the clocks say less."""
        return max(self.end_ns - self.start_ns, 0) / 1e9
