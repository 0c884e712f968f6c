"""Tables of before and after, as text."""

from collections.abc import Mapping, Sequence

from hone_cli.demo.statistics import Estimate

ROWS = (
    ("reward", "reward", "{:.3f}"),
    ("right", "accuracy", "{:.3f}"),
    ("tool_calls", "tool calls per rollout", "{:.2f}"),
    ("sampled_tokens", "sampled tokens per rollout", "{:.1f}"),
    ("seconds", "seconds per rollout (64 at once)", "{:.2f}"),
)
"""Figure, what people read, and how it is written."""


def comparison(
    columns: Sequence[tuple[str, Mapping[str, Estimate]]], *, minimum_calls: float
) -> str:
    """Returns a table with one column per measured policy and 95 % intervals."""
    lines = [["", *(name for name, _ in columns)]]
    for figure, label, form in ROWS:
        if figure == "tool_calls":
            label = f"{label} (minimum {minimum_calls:.2f})"
        lines.append([label, *(_cell(found[figure], form) for _, found in columns)])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as text: first column left, others right, a rule below the head."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([texts[0], rule, *texts[1:]])


def _cell(estimate: Estimate, form: str) -> str:
    return f"{form} [{form}, {form}]".format(estimate.value, estimate.low, estimate.high)
