"""`string_check`: compares two texts by an operation.

    {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.label}}", "operation": "eq"}

eq and ne compare exactly; like and ilike look for the reference inside the input, ilike without case. A response that
lacks what a template names scores 0 whatever the operation. A blank reference is in every text: for like and ilike it
is the dataset's fault, and 0 where the response says it. ne holds of an empty response.
"""

import asyncio
from dataclasses import dataclass

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds, lacking, template_field
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import GraderErrorKind, OutcomeKind

OPERATIONS = ("eq", "ne", "like", "ilike")


@dataclass(frozen=True, slots=True, kw_only=True)
class StringCheckGrader:
    """Compares two rendered texts."""

    input: Template
    reference: Template
    operation: str

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 if the operation holds, else 0."""
        return await asyncio.to_thread(self._grade, sample)

    def _grade(self, sample: Sample) -> Graded:
        lack = lacking(sample, self.input, self.reference)
        if lack is not None:
            return lack
        given, wanted = self.input.render(sample), self.reference.render(sample)
        if self.operation in ("like", "ilike") and not wanted.strip():
            return self._blank(sample)
        holds = {
            "eq": given == wanted,
            "ne": given != wanted,
            "like": wanted in given,
            "ilike": wanted.casefold() in given.casefold(),
        }[self.operation]
        if holds:
            return Graded(value=1.0, kind=None, explanation=f"{self.operation} holds")
        kind = OutcomeKind.REASONING if sample.output_text.strip() else OutcomeKind.FORMAT
        return Graded(
            value=0.0, kind=sample.shortfall(kind), explanation=f"{self.operation} does not hold"
        )

    def _blank(self, sample: Sample) -> Graded:
        """Return the finding for a reference that any text holds; a fault unless the response says it."""
        if self.reference.names_response:
            kind = sample.shortfall(OutcomeKind.FORMAT)
            return Graded(value=0.0, kind=kind, explanation="the reference is blank")
        raise GradingFaultError(
            f"reference: {self.reference.source} is blank, and every text holds that",
            kind=GraderErrorKind.REFERENCE,
            retryable=False,
            client=True,
        )


def parse(fields: Fields, kinds: Kinds) -> StringCheckGrader:
    """Read the definition."""
    return StringCheckGrader(
        input=template_field(fields, "input", "{{sample.output_text}}"),
        reference=template_field(fields, "reference"),
        operation=fields.choice("operation", OPERATIONS, "eq"),
    )
