"""What a grader finds, and the error of one that could not do its work."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trajectory.types import GraderErrorKind, OutcomeKind

MAX_PARTS = 64
"""Figures that one grader may tell beside its value."""
MAX_NAME = 100
"""Characters of the name of such a figure."""


class GradingFaultError(Exception):
    """Grading could not be done; never a zero reward.

    Args:
        detail: what was missing or wrong, for people.
        kind: what stopped the grader.
        retryable: whether grading the same record again can succeed.
        client: whether the definition or the dataset is at fault rather than Hone.
    """

    def __init__(
        self, detail: str, *, kind: GraderErrorKind, retryable: bool, client: bool
    ) -> None:
        """Keep the detail and whose fault it is."""
        super().__init__(detail)
        self.detail = detail
        self.kind = kind
        self.retryable = retryable
        self.client = client


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What one grader found."""

    value: float
    kind: OutcomeKind | None
    """Why the response did not succeed; None if it did."""
    explanation: str
    masked: bool = False
    """The response says nothing about the policy; the value does not count."""
    abstained: bool = False
    """The grader has no opinion on this response; the value does not count."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Figures that the value was made from, for example precision and recall."""
    step_values: tuple[float, ...] = ()
    """By turn, from 0, for a grader that rewards turns."""

    @property
    def counts(self) -> bool:
        """Whether there is a value to combine."""
        return not (self.masked or self.abstained)


def abstain(explanation: str) -> Graded:
    """Return the finding of a grader without an opinion."""
    return Graded(value=0.0, kind=None, explanation=explanation, abstained=True)
