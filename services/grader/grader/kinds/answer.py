"""`answer`: 1 if the final answer equals the reference, in whatever notation; see `grader.answer`.

{"type": "answer", "reference": "{{item.answer}}"}
"""

import asyncio
from dataclasses import dataclass

from grader.answer.judge import ReferenceUnreadableError, judge_answer
from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds, template_field
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrader:
    """Compares the final answer with a reference."""

    reference: Template

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 for a right answer, else 0; masked if the answer could not be read."""
        reference = self.reference.render(sample)
        try:
            judgement = await asyncio.to_thread(
                judge_answer,
                sample.output_text,
                reference,
                instruments.symbolic,
                stated_only=sample.stated_only,
            )
        except ReferenceUnreadableError as err:
            raise GradingFaultError(
                str(err), kind=GraderErrorKind.REFERENCE, retryable=False, client=True
            ) from err
        kind = None if judgement.kind is None else sample.shortfall(judgement.kind)
        return Graded(
            value=float(judgement.correct),
            kind=kind,
            explanation=judgement.explanation,
            masked=judgement.masked,
        )


def parse(fields: Fields, kinds: Kinds) -> AnswerGrader:
    """Read the definition."""
    return AnswerGrader(reference=template_field(fields, "reference"))
