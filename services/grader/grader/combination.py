"""Several graders made into one number: the weighted mean, or a formula over their names.

    {"graders": [{"name": "accuracy", "type": "answer", "weight": 0.7, ...}, ...]}
    {"graders": {"accuracy": {"type": "answer", ...}, "form": {"type": "format", ...}},
     "calculate_output": "0.7 * accuracy + 0.3 * form"}

In a mean a grader of weight 0 is measured only; in a formula one that it does not name. A grader that abstains leaves
the mean; a formula that needs it abstains as a whole.
"""

import keyword
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grader.fields import Fields, Problems
from grader.formula import Formula, FormulaError, parse_formula
from grader.kinds.base import Grader, Kinds
from grader.results import Graded, GradingFaultError
from trajectory.types import GraderErrorKind

MAX_WEIGHT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One grader of a combination."""

    name: str
    type: str
    weight: float
    """In a formula 1 for a grader that it names, else 0."""
    grader: Grader

    @property
    def counted(self) -> bool:
        """Whether it has a share in the combined number."""
        return self.weight > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one member found; an error only where it is measured and does not count."""

    member: Member
    graded: Graded | None
    error: GradingFaultError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Graders and how their values become one."""

    members: tuple[Member, ...]
    formula: Formula | None = None

    def value(self, findings: Sequence[Finding]) -> float | None:
        """Combine the counted values, none of them masked; None if too many abstained.

        Raises:
            GradingFaultError: the formula, or the mean, has no finite value for these, kind formula.
        """
        values = {
            finding.member.name: finding.graded.value
            for finding in findings
            if finding.member.counted and finding.graded is not None and finding.graded.counts
        }
        if self.formula is not None:
            if any(name not in values for name in self.formula.names):
                return None
            try:
                return self.formula.value(values)
            except FormulaError as err:
                raise _without_value(f"calculate_output: {err}", values) from err
        weights = {member.name: member.weight for member in self.members if member.name in values}
        total = math.fsum(weights.values())
        if total == 0:
            return None
        try:
            mean = math.fsum(weights[name] * values[name] for name in values) / total
        except (OverflowError, ValueError) as err:
            raise _without_value(f"the weighted mean has no value: {err}", values) from err
        if not math.isfinite(mean):
            raise _without_value(f"the weighted mean is {mean}", values)
        return mean


def parse_members(fields: Fields, kinds: Kinds) -> Combination:
    """Read `graders` and `calculate_output`; problems go to the fields."""
    members = []
    children = _children(fields)
    for child in children:
        grader = kinds.parse(child)
        kind = child.values.get("type")
        weight = child.number("weight", 1.0, low=0.0, high=MAX_WEIGHT)
        name = child.text("name", kind if isinstance(kind, str) and kind else "grader")
        if grader is not None:
            child.finish()
            members.append(Member(name=name, type=str(kind), weight=weight, grader=grader))
    _check_names(members, fields.at("graders"), fields.problems)
    if not fields.has("calculate_output"):
        if members and len(members) == len(children) and not any(m.counted for m in members):
            fields.problems.add(
                fields.at("graders"),
                "the weights add up to 0; at least one grader needs a weight above 0",
            )
        return Combination(members=tuple(members))
    return _with_formula(fields, children, members)


def _children(fields: Fields) -> list[Fields]:
    """Return the graders of a list, or of an object; its keys are their names, whatever `name` they have besides."""
    if not isinstance(fields.values.get("graders"), dict):
        return fields.children("graders")
    named = fields.child("graders")
    assert named is not None
    children = []
    for name in named.values:
        child = named.child(name)
        if child is not None:
            children.append(Fields({**child.values, "name": name}, child.path, child.problems))
    if not named.values:
        fields.problems.add(fields.at("graders"), "must hold at least one grader")
    return children


def _with_formula(
    fields: Fields, children: Sequence[Fields], members: Sequence[Member]
) -> Combination:
    text = fields.text("calculate_output")
    for child in children:
        if "weight" in child.values:
            child.problems.add(
                child.at("weight"), "is for a weighted mean, and calculate_output is the formula"
            )
    try:
        formula = parse_formula(text, {member.name: None for member in members})
    except FormulaError as err:
        if len(members) == len(children):
            hint = _unwritable(members)
            fields.problems.add(fields.at("calculate_output"), f"{err}{hint}")
        return Combination(members=tuple(members))
    weighed = (
        Member(
            name=member.name,
            type=member.type,
            weight=float(member.name in formula.names),
            grader=member.grader,
        )
        for member in members
    )
    return Combination(members=tuple(weighed), formula=formula)


def _unwritable(members: Sequence[Member]) -> str:
    """Return a hint where a grader has a name that no formula can write."""
    for member in members:
        if not member.name.isidentifier() or keyword.iskeyword(member.name):
            return (
                f"; a formula cannot write {member.name!r}: in it names are letters, digits and _, "
                "do not begin with a digit, and are no words such as if or and"
            )
    return ""


def _check_names(members: Sequence[Member], path: str, problems: Problems) -> None:
    counts = Counter(member.name for member in members)
    for name in sorted(name for name, count in counts.items() if count > 1):
        problems.add(path, f"the name {name!r} is used more than once; each needs its own")


def _without_value(problem: str, values: dict[str, float]) -> GradingFaultError:
    listed = ", ".join(f"{name}={value:g}" for name, value in values.items())
    return GradingFaultError(
        f"{problem}; the values are {listed}",
        kind=GraderErrorKind.FORMULA,
        retryable=False,
        client=True,
    )
