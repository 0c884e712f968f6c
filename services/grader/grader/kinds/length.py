"""`length`: what a right answer is worth after the length that it did not need.

    {"type": "length", "answer": {...}, "unit": "characters", "target": 200, "alpha": 0.001}

value = correct * max(0, 1 - alpha * max(0, length - target)); unit is characters of the last message or policy_tokens
of all turns. With target 200, alpha 0.001 and 500 characters a right answer is worth 0.7.
"""

from dataclasses import dataclass

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Grader, Kinds, nested_grader
from grader.results import Graded
from grader.sample import Sample

UNITS = ("characters", "policy_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthGrader:
    """Prices needless length of right answers."""

    answer: Grader
    unit: str
    target: float
    alpha: float
    """Per unit above the target."""

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the answer's value less the price of needless length."""
        answer = await self.answer.grade(sample, instruments)
        if not answer.counts or answer.value == 0:
            return answer
        length = len(sample.output_text) if self.unit == "characters" else sample.policy_token_count
        value = answer.value * max(0.0, 1.0 - self.alpha * max(0.0, length - self.target))
        explanation = f"{answer.explanation}; {length} {self.unit}, target {self.target:g}"
        return Graded(value=value, kind=answer.kind, explanation=explanation)


def parse(fields: Fields, kinds: Kinds) -> LengthGrader | None:
    """Read the definition."""
    answer = nested_grader(fields, "answer", kinds)
    unit = fields.choice("unit", UNITS, "characters")
    target = fields.number("target", low=0.0)
    alpha = fields.number("alpha", low=0.0)
    if answer is None:
        return None
    return LengthGrader(answer=answer, unit=unit, target=target, alpha=alpha)
