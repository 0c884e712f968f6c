"""`label_model`: 1 if the label that a model gives the response is one of `passing_labels`, else 0.

    {"type": "label_model", "model": "judge", "labels": ["polite", "neutral", "rude"],
     "passing_labels": ["polite", "neutral"],
     "input": [{"role": "developer", "content": "Name the tone of the reply."},
               {"role": "user", "content": "{{sample.output_text}}"}]}

A response without text fails and costs no call.
"""

from dataclasses import dataclass, replace

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds
from grader.kinds.judging import Asking, parse_asking
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from trajectory.types import GraderErrorKind, OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelModelGrader:
    """Has a model choose a label for the response."""

    asking: Asking
    labels: tuple[str, ...]
    passing_labels: frozenset[str]

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return 1 for a passing label, else 0."""
        question = self.asking.question(sample, instruments)
        if question is None:
            return _failed(sample, OutcomeKind.FORMAT, "the response has nothing to judge")
        try:
            found = await instruments.judges.judge(replace(question, labels=self.labels))
        except GradingFaultError as fault:
            if fault.kind is GraderErrorKind.REFUSAL and self.asking.refusal_fails:
                return _failed(sample, OutcomeKind.REASONING, fault.detail)
            raise
        if found.label not in self.labels:
            raise GradingFaultError(
                f"the judge's label must be one of {', '.join(self.labels)}, found {found.label!r}",
                kind=GraderErrorKind.PARSE,
                retryable=True,
                client=False,
            )
        reasons = " ".join(found.reasoning.split())
        explanation = f"{found.model or 'the judge'} says {found.label}: {reasons}"
        if found.label in self.passing_labels:
            return Graded(value=1.0, kind=None, explanation=explanation)
        return _failed(sample, OutcomeKind.REASONING, explanation)


def parse(fields: Fields, kinds: Kinds) -> LabelModelGrader:
    """Read the definition."""
    labels = fields.texts("labels")
    passing = fields.texts("passing_labels")
    if labels and len({label.casefold() for label in labels}) < max(2, len(labels)):
        fields.problems.add(
            fields.at("labels"), "must be two or more that differ in more than case"
        )
    for label in passing:
        if labels and label not in labels:
            fields.problems.add(
                fields.at("passing_labels"), f"names {label!r}, and labels are {', '.join(labels)}"
            )
    return LabelModelGrader(
        asking=parse_asking(fields), labels=labels, passing_labels=frozenset(passing)
    )


def _failed(sample: Sample, kind: OutcomeKind, explanation: str) -> Graded:
    return Graded(value=0.0, kind=sample.shortfall(kind), explanation=explanation)
