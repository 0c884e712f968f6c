"""`text_similarity`: how alike a text and a reference are.

    {"type": "text_similarity", "input": "{{sample.output_text}}", "reference": "{{item.summary}}",
     "evaluation_metric": "rouge_l", "pass_threshold": 0.6}

value is the similarity from 0 to 1; below `pass_threshold` (default 0.5) the kind is reasoning. The metrics
fuzzy_match, bleu, gleu, meteor, cosine, rouge_1 to rouge_5 and rouge_l are those of `grader.similarity`. A response
that is longer than the metric compares is 0, kind format.
"""

import asyncio
from dataclasses import dataclass

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds, lacking, reference_field, template_field
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.similarity import METRICS, TextTooLongError, check_length, similarity
from grader.templates import Template
from trajectory.types import GraderErrorKind, OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSimilarityGrader:
    """Compares two rendered texts."""

    input: Template
    reference: Template
    metric: str
    pass_threshold: float

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the similarity."""
        return await asyncio.to_thread(self._grade, sample)

    def _grade(self, sample: Sample) -> Graded:
        lack = lacking(sample, self.input)
        if lack is not None:
            return lack
        given, wanted = self.input.render(sample), self.reference.render(sample)
        self._check_reference(wanted)
        try:
            check_length(self.metric, given)
        except TextTooLongError as err:
            kind = sample.shortfall(OutcomeKind.FORMAT)
            return Graded(value=0.0, kind=kind, explanation=f"the text {err}")
        value = similarity(self.metric, given, wanted)
        explanation = f"{self.metric} {value:.4g}, pass_threshold {self.pass_threshold:g}"
        if value >= self.pass_threshold:
            return Graded(value=value, kind=None, explanation=explanation)
        short = OutcomeKind.REASONING if given.strip() else OutcomeKind.FORMAT
        return Graded(value=value, kind=sample.shortfall(short), explanation=explanation)

    def _check_reference(self, wanted: str) -> None:
        """Raise GradingFaultError if there is nothing to compare with, or too much."""
        problem = "" if wanted.strip() else "is empty"
        try:
            check_length(self.metric, wanted)
        except TextTooLongError as err:
            problem = str(err)
        if problem:
            raise GradingFaultError(
                f"reference: {self.reference.source} {problem}",
                kind=GraderErrorKind.REFERENCE,
                retryable=False,
                client=True,
            )


def parse(fields: Fields, kinds: Kinds) -> TextSimilarityGrader:
    """Read the definition."""
    return TextSimilarityGrader(
        input=template_field(fields, "input", "{{sample.output_text}}"),
        reference=reference_field(fields),
        metric=fields.choice("evaluation_metric", tuple(METRICS)),
        pass_threshold=fields.number("pass_threshold", 0.5, low=0.0, high=1.0),
    )
