"""What `length` and `efficiency` share: they price right answers only, and measure them the same way."""

from dataclasses import replace

from grader.results import Graded
from grader.sample import Sample


def is_right(graded: Graded) -> bool:
    """Whether an answer is one that is priced: it counts, is worth something and fell short of nothing."""
    return graded.counts and graded.value > 0 and graded.kind is None


def priced(graded: Graded, share: float, remark: str, parts: dict[str, float]) -> Graded:
    """Return a right answer with the share of its value that is left; its own figures and steps stay."""
    return replace(
        graded,
        value=graded.value * share,
        explanation=f"{graded.explanation}; {remark}",
        parts={**graded.parts, **parts},
    )


def turn_count(sample: Sample) -> int:
    """Number of generations of the model."""
    return len(sample.record.turns)


def seconds(sample: Sample) -> float:
    """Seconds of generating and of tools, in all turns."""
    return sum(turn.generate_seconds + turn.tools_seconds for turn in sample.record.turns)
