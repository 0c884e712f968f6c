"""Arranges the spans of one trace as a tree, in the order in which a person reads them.

Pure and total: whatever services send (missing parents, circles, clocks that disagree) becomes a list of rows,
each span exactly once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from console.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span in its place."""

    span: Span
    depth: int
    """0 for a root."""
    offset_seconds: float
    """From the start of the trace."""
    num_children: int
    missing_parent: bool
    """Its parent is named but not in the archive, or the parents form a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTree:
    """The rows of a trace, parents before children, siblings by start time."""

    rows: tuple[SpanRow, ...]
    start_ns: int
    seconds: float

    @property
    def num_missing_parents(self) -> int:
        """How many spans name a parent that is not there."""
        return sum(row.missing_parent for row in self.rows)


def build_tree(spans: Iterable[Span]) -> SpanTree:
    """Arranges spans of one trace; a span id that comes twice counts once."""
    by_id = {span.span_id: span for span in spans}
    ordered = sorted(by_id.values(), key=lambda s: (s.start_ns, s.span_id))
    children: dict[str, list[Span]] = {}
    roots: list[Span] = []
    for span in ordered:
        if span.parent_span_id in by_id and span.parent_span_id != span.span_id:
            children.setdefault(span.parent_span_id, []).append(span)
        else:
            roots.append(span)
    start_ns = ordered[0].start_ns if ordered else 0
    end_ns = max((span.end_ns for span in ordered), default=0)
    rows: list[SpanRow] = []
    placed: set[str] = set()
    # Whatever no root reaches lies in a circle of parents: its earliest span stands in as a root.
    for root in (*roots, *ordered):
        _place(root, children, placed, rows, start_ns)
    return SpanTree(rows=tuple(rows), start_ns=start_ns, seconds=max(end_ns - start_ns, 0) / 1e9)


def _place(
    root: Span,
    children: dict[str, list[Span]],
    placed: set[str],
    rows: list[SpanRow],
    start_ns: int,
) -> None:
    # A stack, not recursion: a hostile trace may be deeper than Python's call stack.
    waiting = [(root, 0)]
    while waiting:
        span, depth = waiting.pop()
        if span.span_id in placed:
            continue
        placed.add(span.span_id)
        below = children.get(span.span_id, [])
        row = SpanRow(
            span=span,
            depth=depth,
            offset_seconds=(span.start_ns - start_ns) / 1e9,
            num_children=len(below),
            missing_parent=depth == 0 and bool(span.parent_span_id),
        )
        rows.append(row)
        waiting.extend((child, depth + 1) for child in reversed(below))
