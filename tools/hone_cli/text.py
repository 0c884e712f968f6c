"""Small formatting for people: durations, numbers, and text that may come from a model."""

import itertools
import math
from collections.abc import Sequence

_ALLOWED = "\n\t"


def span(seconds: float) -> str:
    """A duration with two units at most: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 0 or not math.isfinite(seconds):
        return "?"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def number(value: float) -> str:
    """A figure with what matters of it: whole numbers plain, others with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    if 0 < abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.2e}"
    return f"{value:.4g}"


def safe(text: str) -> str:
    """The text without control characters: what a model or a tool wrote must not drive the terminal."""
    return "".join(c if c.isprintable() or c in _ALLOWED else f"\\x{ord(c):02x}" for c in text)


def shortened(text: str, limit: int) -> str:
    """The text cut at a limit, with the number of characters that were left out."""
    return (
        text if len(text) <= limit else f"{text[:limit]} [... {len(text) - limit} more characters]"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: frozenset[str]) -> str:
    """Lays rows out in columns as wide as they need; an id is never cut, however narrow the terminal is.

    Args:
        headings: one per column.
        rows: texts; what a model wrote must have gone through `safe`.
        left: headings of columns that are flush left; figures are flush right.
    """
    widths = [max(len(text) for text in column) for column in zip(headings, *rows, strict=True)]
    lines = []
    for row in (headings, *rows):
        cells = [
            text.ljust(width) if heading in left else text.rjust(width)
            for heading, text, width in zip(headings, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def sparkline(
    values: Sequence[float | None], *, width: int = 60, encoding: str | None = "utf-8"
) -> str:
    """A curve in one line, from the lowest value to the highest; gaps stay empty.

    Args:
        values: in order; means of neighbours where there are more than fit.
        width: characters at most.
        encoding: of the terminal; one without block characters gets digits from 0 to 7.
    """
    blocks = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    try:
        blocks.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        blocks = "01234567"
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    if len(known) > width:
        edges = [round(i * len(known) / width) for i in range(width + 1)]
        known = [_mean_of(known[a:b]) for a, b in itertools.pairwise(edges)]
    told = [value for value in known if value is not None]
    if not told:
        return ""
    low, high = min(told), max(told)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None else blocks[round((value - low) * scale)] for value in known
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return math.fsum(told) / len(told) if told else None
