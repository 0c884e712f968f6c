"""`multi` inside another grader: its graders become one number and its figures; see `grader.combination`.

{"type": "multi", "graders": {...}, "calculate_output": "accuracy * form"}
"""

from dataclasses import dataclass

from grader.combination import Combination, parse_members
from grader.fields import Fields
from grader.gathering import gather
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds
from grader.results import Graded, abstain
from grader.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGrader:
    """Combines graders."""

    combination: Combination

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the combined value; masked if a grader that counts is, abstaining if too many do."""
        findings = await gather(self.combination, sample, instruments)
        found = [(f.member, f.graded) for f in findings if f.graded is not None]
        counted = [(member, graded) for member, graded in found if member.counted]
        masked = next((graded for _, graded in counted if graded.masked), None)
        if masked is not None:
            return masked
        value = self.combination.value(findings)
        explanation = "; ".join(f"{member.name}: {graded.explanation}" for member, graded in found)
        if value is None:
            return abstain(explanation)
        return Graded(
            value=value,
            kind=next((graded.kind for _, graded in counted if graded.kind is not None), None),
            explanation=explanation,
            parts={member.name: graded.value for member, graded in found if graded.counts},
        )


def parse(fields: Fields, kinds: Kinds) -> MultiGrader | None:
    """Read the definition."""
    combination = parse_members(fields, kinds)
    return MultiGrader(combination=combination) if combination.members else None
