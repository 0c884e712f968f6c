"""`efficiency`: what a right answer is worth after the tool calls that it did not need.

    {"type": "efficiency", "answer": {"type": "answer", "reference": "{{item.answer}}"}, "penalty": 0.15, "minimum": 1}

value = correct * max(0, 1 - penalty * max(0, calls - minimum)). A wrong answer is 0 however few its calls, so that
saving calls never pays without being right. `minimum` is a number or a field of the task such as item.min_calls.
"""

import math
from dataclasses import dataclass

from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.kinds.base import Grader, Kinds, nested_grader
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import TemplateError, check_path, value_at
from trajectory.types import GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyGrader:
    """Prices needless tool calls of right answers."""

    answer: Grader
    penalty: float
    """Per call above the minimum."""
    minimum: float | str
    """Calls that are free: a number, or the path of one in the task."""

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the answer's value less the price of needless calls."""
        answer = await self.answer.grade(sample, instruments)
        if not answer.counts or answer.value == 0:
            return answer
        needless = max(0.0, sample.call_count - self._free_calls(sample))
        value = answer.value * max(0.0, 1.0 - self.penalty * needless)
        explanation = (
            f"{answer.explanation}; {sample.call_count} calls, {needless:g} of them needless"
        )
        return Graded(value=value, kind=answer.kind, explanation=explanation)

    def _free_calls(self, sample: Sample) -> float:
        if isinstance(self.minimum, float):
            return self.minimum
        found = value_at(self.minimum, sample)
        try:
            number = float(found) if isinstance(found, int | float | str) else math.nan
        except ValueError:
            number = math.nan
        if isinstance(found, bool) or not (math.isfinite(number) and number >= 0):
            raise GradingFaultError(
                f"minimum: {self.minimum} must be a number of at least 0 in the task, found {shown(found)}",
                kind=GraderErrorKind.REFERENCE,
                retryable=False,
                client=True,
            )
        return number


def parse(fields: Fields, kinds: Kinds) -> EfficiencyGrader | None:
    """Read the definition."""
    answer = nested_grader(fields, "answer", kinds)
    penalty = fields.number("penalty", low=0.0)
    minimum = _parse_minimum(fields)
    if answer is None:
        return None
    return EfficiencyGrader(answer=answer, penalty=penalty, minimum=minimum)


def _parse_minimum(fields: Fields) -> float | str:
    value = fields.values.get("minimum")
    if not isinstance(value, str):
        return fields.number("minimum", low=0.0)
    fields.has("minimum")
    path = value.strip().removeprefix("{{").removesuffix("}}").strip()
    try:
        check_path(path)
    except TemplateError:
        path = ""
    if not path.startswith("item."):
        fields.problems.add(
            fields.at("minimum"),
            f"must be a number of at least 0 or a field such as item.min_calls, found {shown(value)}",
        )
    return path
