"""`efficiency`: what a right answer is worth after the effort that it did not need.

    {"type": "efficiency", "answer": {"type": "answer", "reference": "{{item.answer}}"}, "penalty": 0.15, "minimum": 1}
    {"type": "efficiency", "answer": {...}, "cost": "policy_tokens", "penalty": 0.002, "median": "item.median_tokens"}

value = answer * max(0, 1 - penalty * max(0, cost - free)). cost is calls (the default), turns, policy_tokens of all
turns, or seconds of generating and tools. What is free is the `minimum` that the task needs or the `median` of earlier
attempts: a number, or a field of the task such as item.min_calls. An answer that is not right (worth 0 or less, or of a
kind of shortfall) stays as it is, so that saving calls never pays without being right.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.kinds.base import Grader, Kinds, nested_grader
from grader.kinds.pricing import is_right, priced, seconds, turn_count
from grader.penalties import linear_share
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import TemplateError, check_path, value_at
from trajectory.types import GraderErrorKind

COSTS: Mapping[str, Callable[[Sample], float]] = {
    "calls": lambda sample: sample.call_count,
    "turns": turn_count,
    "policy_tokens": lambda sample: sample.policy_token_count,
    "seconds": seconds,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyGrader:
    """Prices needless effort of right answers."""

    answer: Grader
    cost: str
    penalty: float
    """Per unit above what is free."""
    against: str
    """minimum or median: which of the two is free."""
    free: float | str
    """Cost that is free: a number, or the path of one in the task."""

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the answer's value less the price of needless effort; an answer that is not right as it is."""
        answer = await self.answer.grade(sample, instruments)
        if not is_right(answer):
            return answer
        cost = COSTS[self.cost](sample)
        needless = max(0.0, cost - self._free(sample))
        remark = f"{cost:g} {self.cost}, {needless:g} of them needless"
        parts = {self.cost: cost, "needless": needless}
        return priced(answer, linear_share(needless, self.penalty), remark, parts)

    def _free(self, sample: Sample) -> float:
        if isinstance(self.free, float):
            return self.free
        found = value_at(self.free, sample)
        try:
            number = float(found) if isinstance(found, int | float | str) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if isinstance(found, bool) or not (math.isfinite(number) and number >= 0):
            raise GradingFaultError(
                f"{self.against}: {self.free} must be a number of at least 0 in the task, found {shown(found)}",
                kind=GraderErrorKind.REFERENCE,
                retryable=False,
                client=True,
            )
        return number


def parse(fields: Fields, kinds: Kinds) -> EfficiencyGrader | None:
    """Read the definition."""
    answer = nested_grader(fields, "answer", kinds)
    cost = fields.choice("cost", tuple(COSTS), "calls")
    penalty = fields.number("penalty", low=0.0)
    against = "median" if fields.has("median") else "minimum"
    if against == "median" and fields.has("minimum"):
        fields.problems.add(fields.at("median"), "and minimum are two bases; give one of them")
    free = _parse_free(fields, against)
    if answer is None:
        return None
    return EfficiencyGrader(answer=answer, cost=cost, penalty=penalty, against=against, free=free)


def _parse_free(fields: Fields, key: str) -> float | str:
    value = fields.values.get(key)
    if not isinstance(value, str):
        return fields.number(key, low=0.0)
    fields.has(key)
    path = value.strip().removeprefix("{{").removesuffix("}}").strip()
    try:
        check_path(path)
    except TemplateError:
        path = ""
    if not path.startswith("item."):
        fields.problems.add(
            fields.at(key),
            f"must be a number of at least 0 or a field such as item.{key}_calls, found {shown(value)}",
        )
    return path
