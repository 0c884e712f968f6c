"""Lays a rollout's spans out as a tree with a time axis, and checks that they are one whole trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from hone_cli.text import span as span_text

_BAR_WIDTH = 28
_NAME_WIDTH = 46


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLine:
    """One span as its service sent it; times are seconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    name: str
    start: float
    seconds: float
    status: str = "unset"
    status_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """A span at its depth in the tree."""

    line: SpanLine
    depth: int
    orphan: bool
    """Its parent is named but not in the archive."""


def tree(spans: Sequence[SpanLine]) -> list[TreeRow]:
    """Spans in order of time below their parents; those with a missing parent stand at the top, marked."""
    known = {line.span_id for line in spans}
    children: dict[str, list[SpanLine]] = {}
    for line in sorted(spans, key=lambda s: (s.start, s.span_id)):
        parent = line.parent_id if line.parent_id in known else ""
        children.setdefault(parent, []).append(line)
    rows: list[TreeRow] = []
    pending = [(line, 0) for line in reversed(children.get("", []))]
    while pending:
        line, depth = pending.pop()
        orphan = bool(line.parent_id) and line.parent_id not in known
        rows.append(TreeRow(line=line, depth=depth, orphan=orphan))
        below = children.get(line.span_id, [])
        pending += [(child, depth + 1) for child in reversed(below)]
    return rows


def verdict(spans: Sequence[SpanLine], trace_id: str) -> list[str]:
    """What is wrong with the trace; empty if all spans share the id, none lacks its parent and there is one root."""
    known = {line.span_id for line in spans}
    problems = []
    foreign = [line for line in spans if line.trace_id != trace_id]
    if foreign:
        problems.append(f"{len(foreign)} spans have another trace id: {_names(foreign)}")
    orphans = [line for line in spans if line.parent_id and line.parent_id not in known]
    if orphans:
        problems.append(f"{len(orphans)} spans have a missing parent: {_names(orphans)}")
    roots = [line for line in spans if not line.parent_id]
    if spans and len(roots) != 1:
        problems.append(f"{len(roots)} spans have no parent, expected one: {_names(roots)}")
    reached = {row.line.span_id for row in tree(spans)}
    lost = [line for line in spans if line.span_id not in reached]
    if lost:
        problems.append(f"{len(lost)} spans are their own ancestors: {_names(lost)}")
    return problems


def waterfall(spans: Sequence[SpanLine]) -> list[tuple[str, str]]:
    """Text and status of each row: name, service, offset, duration and a bar on the common time axis."""
    if not spans:
        return []
    begin = min(line.start for line in spans)
    whole = max(line.start + line.seconds for line in spans) - begin
    rows = []
    for row in tree(spans):
        line = row.line
        name = f"{'  ' * row.depth}{line.name}"
        if len(name) > _NAME_WIDTH:
            name = f"{name[: _NAME_WIDTH - 3]}..."
        offset = line.start - begin
        mark = " [parent missing]" if row.orphan else ""
        error = f" {line.status_message or 'error'}" if line.status == "error" else ""
        text = (
            f"{name:<{_NAME_WIDTH}} {line.service:<12} {span_text(offset):>11} "
            f"{span_text(line.seconds):>11}  |{_bar(offset, line.seconds, whole)}|{mark}{error}"
        )
        rows.append((text, "orphan" if row.orphan else line.status))
    return rows


def _bar(offset: float, seconds: float, whole: float) -> str:
    if whole <= 0:
        return "#" * _BAR_WIDTH
    first = min(int(offset / whole * _BAR_WIDTH), _BAR_WIDTH - 1)
    length = max(1, min(round(seconds / whole * _BAR_WIDTH), _BAR_WIDTH - first))
    return f"{' ' * first}{'#' * length}{' ' * (_BAR_WIDTH - first - length)}"


def _names(spans: Sequence[SpanLine], limit: int = 5) -> str:
    shown = ", ".join(f"{line.name} ({line.span_id})" for line in spans[:limit])
    return f"{shown} and {len(spans) - limit} more" if len(spans) > limit else shown
