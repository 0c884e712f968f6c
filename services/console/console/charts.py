"""Drawings as inline SVG: a curve over steps, the spans of a trace, the tokens of a row."""

import math
from collections.abc import Sequence

from console.markup import Markup, join, tag
from console.span_tree import SpanRow, SpanTree
from console.wording import duration, number
from trajectory.types import TokenRow

WIDTH, HEIGHT = 260, 72
MAX_SPANS = 2000
"""Spans that one page draws."""


def curve(points: Sequence[tuple[int, float]]) -> Markup:
    """Draws a figure over steps; values that are not finite leave a gap."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if not finite:
        return tag("p", "no finite values", class_="quiet")
    x_low, x_high = finite[0][0], finite[-1][0]
    y_low, y_high = min(y for _, y in finite), max(y for _, y in finite)

    def place(x: int, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return 4 + across * (WIDTH - 8), HEIGHT - 6 - up * (HEIGHT - 12)

    placed = [place(x, y) for x, y in finite]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    area = f"{placed[0][0]:.1f},{HEIGHT} {line} {placed[-1][0]:.1f},{HEIGHT}"
    dots = [
        tag(
            "circle",
            tag("title", f"step {x}: {number(y)}"),
            cx=f"{px:.1f}",
            cy=f"{py:.1f}",
            r=2.5 if len(placed) < 60 else 1,
        )
        for (x, y), (px, py) in zip(finite, placed, strict=True)
    ]
    return tag(
        "svg",
        tag("polygon", points=area, class_="area"),
        tag("polyline", points=line, class_="line"),
        dots,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="curve",
        role="img",
        aria_label=f"{number(finite[0][1])} to {number(finite[-1][1])}",
    )


def waterfall(tree: SpanTree, service_class: dict[str, str]) -> Markup:
    """Draws the spans of a trace against time; each opens to show its attributes."""
    shown = [_span_line(row, tree, service_class) for row in tree.rows[:MAX_SPANS]]
    rest = len(tree.rows) - len(shown)
    more = tag("p", f"{rest} more spans are in the archive", class_="quiet") if rest > 0 else None
    ticks = [
        tag("span", duration(tree.seconds * share), style=f"left:{share * 100:.0f}%")
        for share in (0.0, 0.25, 0.5, 0.75)
    ]
    axis = tag("div", tag("span", class_="name"), tag("div", ticks, class_="ticks"), class_="axis")
    return join(tag("div", axis, shown, class_="waterfall"), more)


def _span_line(row: SpanRow, tree: SpanTree, service_class: dict[str, str]) -> Markup:
    span = row.span
    whole = tree.seconds or 1e-9
    left = min(max(row.offset_seconds / whole, 0.0), 1.0) * 100
    width = min(max(span.seconds / whole * 100, 0.3), 100.0 - left + 0.3)
    bar = tag(
        "i",
        class_=f"bar {service_class.get(span.service_name, 's0')}"
        + (" failed" if span.status == "error" else ""),
        style=f"left:{left:.2f}%;width:{width:.2f}%",
    )
    took_left = left + width < 80
    took = tag(
        "em",
        duration(span.seconds),
        style=f"left:{left + width:.2f}%" if took_left else f"right:{100 - left:.2f}%",
    )
    name = tag(
        "span",
        tag("b", class_=f"dot {service_class.get(span.service_name, 's0')}"),
        span.name,
        tag("small", span.service_name),
        tag("small", "parent missing", class_="warn") if row.missing_parent else None,
        class_="name",
        style=f"padding-left:{min(row.depth, 24) * 14 + 4}px",
    )
    summary = tag("summary", name, tag("div", bar, took, class_="lane"))
    facts = [
        ("span", span.span_id),
        ("parent", span.parent_span_id or "(root)"),
        ("kind", span.kind),
        ("starts at", f"+{duration(row.offset_seconds)}"),
        ("status", f"{span.status} {span.status_message}".strip()),
        *((key, str(value)) for key, value in span.attributes.items()),
        *(("event", f"{event.name} {dict(event.attributes) or ''}") for event in span.events),
    ]
    lines = [(tag("dt", key), tag("dd", value[:2000])) for key, value in facts]
    links = [
        (
            tag("dt", "link"),
            tag("dd", tag("a", link.trace_id, href=f"/trace/{link.trace_id}"), f" {link.span_id}"),
        )
        for link in span.links[:200]
    ]
    return tag("details", summary, tag("dl", lines, links, class_="facts"), class_="span")


def token_strip(row: TokenRow) -> Markup:
    """Draws a row of tokens: filled where the policy sampled, in the shade of its turn."""
    total = len(row.token_ids) or 1
    blocks = [
        tag(
            "rect",
            tag(
                "title",
                f"turn {span.turn}: tokens {span.start} to {span.end - 1}, "
                f"policy version {span.policy_version}",
            ),
            x=f"{span.start / total * 1000:.2f}",
            y=0,
            width=f"{max((span.end - span.start) / total * 1000, 1):.2f}",
            height=14,
            class_="even" if span.turn % 2 == 0 else "odd",
        )
        for span in row.spans
    ]
    return tag("svg", blocks, viewBox="0 0 1000 14", preserveAspectRatio="none", class_="tokens")
