"""`length`: what a right answer is worth after the length that it did not need.

    {"type": "length", "answer": {...}, "unit": "characters", "target": 200, "alpha": 0.001}
    {"type": "length", "answer": {...}, "unit": "policy_tokens", "penalty": "soft_overlong",
     "maximum": 20480, "cache": 4096}

unit is characters of the last message, policy_tokens of all turns, or turns. penalty linear (the default) gives
answer * max(0, 1 - alpha * max(0, length - target)): with target 200, alpha 0.001 and 500 characters a right answer is
worth 0.7. penalty soft_overlong gives answer * (1 + p) with DAPO's p from -1 to 0, see
`grader.penalties.soft_overlong`. An answer that is not right (worth 0 or less, or of a kind of shortfall) stays as it
is: brevity never pays without being right, and a wrong answer is not pushed below 0.
"""

from dataclasses import dataclass
from typing import Protocol

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Grader, Kinds, nested_grader
from grader.kinds.pricing import is_right, priced, turn_count
from grader.penalties import linear_share, soft_overlong
from grader.results import Graded
from grader.sample import Sample

UNITS = ("characters", "policy_tokens", "turns")
PENALTIES = ("linear", "soft_overlong")


class Penalty(Protocol):
    """Prices a length."""

    def share(self, length: float) -> float:
        """Return the share of the answer's value that is left, from 0 to 1."""
        ...

    @property
    def limit(self) -> str:
        """The free length, for explanations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Costs the same for each unit."""

    target: float
    alpha: float
    """Per unit above the target."""

    def share(self, length: float) -> float:
        """Return max(0, 1 - alpha * max(0, length - target))."""
        return linear_share(length - self.target, self.alpha)

    @property
    def limit(self) -> str:
        """The free length, for explanations."""
        return f"target {self.target:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftOverlong:
    """Costs nothing far below the maximum and everything beyond it."""

    maximum: float
    cache: float

    def share(self, length: float) -> float:
        """Return 1 + DAPO's penalty."""
        return 1.0 + soft_overlong(length, maximum=self.maximum, cache=self.cache)

    @property
    def limit(self) -> str:
        """The free length, for explanations."""
        return f"free up to {self.maximum - self.cache:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthGrader:
    """Prices needless length of right answers."""

    answer: Grader
    unit: str
    penalty: Penalty

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the answer's value less the price of needless length; an answer that is not right as it is."""
        answer = await self.answer.grade(sample, instruments)
        if not is_right(answer):
            return answer
        length = self._length(sample)
        remark = f"{length} {self.unit}, {self.penalty.limit}"
        return priced(answer, self.penalty.share(length), remark, {self.unit: length})

    def _length(self, sample: Sample) -> int:
        if self.unit == "characters":
            return len(sample.output_text)
        if self.unit == "turns":
            return turn_count(sample)
        return sample.policy_token_count


def parse(fields: Fields, kinds: Kinds) -> LengthGrader | None:
    """Read the definition."""
    answer = nested_grader(fields, "answer", kinds)
    unit = fields.choice("unit", UNITS, "characters")
    penalty = _parse_penalty(fields)
    if answer is None:
        return None
    return LengthGrader(answer=answer, unit=unit, penalty=penalty)


def _parse_penalty(fields: Fields) -> Penalty:
    if fields.choice("penalty", PENALTIES, "linear") == "linear":
        return Linear(
            target=fields.number("target", low=0.0), alpha=fields.number("alpha", low=0.0)
        )
    maximum = fields.number("maximum", low=1.0)
    cache = fields.number("cache", low=1.0)
    if cache > maximum:
        fields.problems.add(
            fields.at("cache"), f"must be at most the maximum, {maximum}, found {cache}"
        )
    return SoftOverlong(maximum=maximum, cache=cache)
