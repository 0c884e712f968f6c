"""What the graders that get a number from outside have in common: when such a number means success."""

from collections.abc import Mapping

from grader.results import Graded
from grader.sample import Sample
from trajectory.types import OutcomeKind


def judged_outside(
    sample: Sample,
    value: float,
    *,
    pass_threshold: float,
    explanation: str,
    parts: Mapping[str, float],
) -> Graded:
    """Return the finding for a number: a success from the threshold up."""
    kind = None
    if value < pass_threshold:
        said = sample.output_text.strip() or sample.calls
        kind = sample.shortfall(OutcomeKind.REASONING if said else OutcomeKind.FORMAT)
    return Graded(value=value, kind=kind, explanation=explanation, parts=parts)
