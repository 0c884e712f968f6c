"""Several graders made into one: means, formulas, nesting, abstention, and what is only measured."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from grader.combination import Combination, Finding, Member
from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.formula import FormulaError, parse_formula
from grader.gathering import gather
from grader.grading import grade
from grader.instruments.all import Instruments
from grader.results import Graded, GradingFaultError, abstain
from grader.sample import Sample, sample_of
from servicekit.errors import InvalidArgument
from trajectory.types import (
    Failure,
    FailureKind,
    GraderErrorKind,
    Masked,
    OutcomeKind,
    RolloutRecord,
    Scored,
)

MakeRecord = Callable[..., RolloutRecord]
RIGHT = {"type": "string_check", "operation": "like", "reference": "72"}
WRONG = {"type": "string_check", "operation": "like", "reference": "nothing"}


async def _judge(desk: GradingDesk, record: RolloutRecord, **definition: object) -> Any:
    return (await desk.judge(record, json.dumps({"type": "multi", **definition}))).outcome


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0.7*right + 0.3*wrong", 0.7),
        ("right - wrong^2", 1.0),
        ("2^3^0 * right / 4", 0.5),
        ("min(right, 0.25) + max(wrong, 0.5)", 0.75),
        ("sqrt(right) * exp(0) * abs(-1) * ceil(0.5) * floor(1.9) + log(1)", 1.0),
        ("0.5 if right > wrong else 0.1", 0.5),
        ("right and not wrong", 1.0),
    ],
)
async def test_a_formula_combines_by_name(
    desk: GradingDesk, make_record: MakeRecord, formula: str, value: float
) -> None:
    graders = {"right": RIGHT, "wrong": WRONG}
    outcome = await _judge(desk, make_record(), graders=graders, calculate_output=formula)
    assert outcome.score == pytest.approx(value)
    assert {reward.name: reward.value for reward in outcome.rewards} == {"right": 1.0, "wrong": 0.0}


@pytest.mark.parametrize(
    "formula", ["right / wrong", "log(wrong)", "sqrt(wrong - right)", "10^(400*right) - wrong"]
)
async def test_a_formula_without_a_value_is_a_failure_and_no_zero(
    desk: GradingDesk, make_record: MakeRecord, formula: str
) -> None:
    graders = {"right": RIGHT, "wrong": WRONG}
    outcome = await _judge(desk, make_record(), graders=graders, calculate_output=formula)
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.grader_error) == (FailureKind.GRADER, GraderErrorKind.FORMULA)
    assert "the values are" in outcome.detail


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "unknown + a",
        "a.real",
        "a[0]",
        "open('x')",
        "__import__('os')",
        "[a]",
        "lambda: a",
        "a if",
        "'x' * 3",
        "max(a, key=a)",
        "(" * 300 + "a" + ")" * 300,
        "a" + "+a" * 2000,
        "1 + 1",
        "max",
        "a := 3",
        "f'{a}'",
        "+".join(["a"] * 201),
        "-" * 300 + "a",
        "a | 1",
        "a << 2",
        "~a",
        "a in a",
        "a is a",
        "max(a)",
        "sqrt(a, a)",
        "log(a, 2, 3)",
        "exp() + a",
    ],
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text, {"a": 1.0})


@pytest.mark.parametrize(
    "text", ["9^9^9^9 * a", "3999999^3999999 * a", "ceil(3999999*a)^3999999", "(-a)^0.5"]
)
def test_a_formula_that_would_run_for_ever_has_no_value(text: str) -> None:
    formula = parse_formula(text, {"a": 1.0})
    start = time.process_time()
    with pytest.raises(FormulaError):
        formula.value({"a": 1.0})
    assert time.process_time() - start < 0.5


def test_a_formula_has_no_weights_beside_it() -> None:
    definition = {
        "type": "multi",
        "graders": {"a": {**RIGHT, "weight": 2}},
        "calculate_output": "a + b",
    }
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(definition))
    assert set(caught.value.violations) == {"graders.a.weight", "calculate_output"}
    assert "names b, and the graders are a" in caught.value.violations["calculate_output"]


async def test_multi_inside_multi_is_one_reward_with_its_figures(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    inner = {
        "type": "multi",
        "graders": {"right": RIGHT, "wrong": WRONG},
        "calculate_output": "right - 0.5*wrong",
    }
    outcome = await _judge(desk, make_record(), graders=[{"name": "inner", **inner}, WRONG])
    assert outcome.score == 0.5
    assert outcome.rewards[0].value == 1.0
    assert outcome.rewards[0].parts == {"right": 1.0, "wrong": 0.0}
    assert outcome.kind is OutcomeKind.REASONING


class Says:
    """A grader that finds what it is told to."""

    def __init__(self, found: Graded | GradingFaultError) -> None:
        self.found = found

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        if isinstance(self.found, GradingFaultError):
            raise self.found
        return self.found


def _member(name: str, weight: float, found: Graded | GradingFaultError) -> Member:
    return Member(name=name, type="says", weight=weight, grader=Says(found))


def _value(value: float) -> Graded:
    return Graded(value=value, kind=None, explanation="")


DOWN = GradingFaultError("down", kind=GraderErrorKind.SERVER, retryable=True, client=False)


async def _grade(
    record: RolloutRecord, instruments: Instruments, *members: Member
) -> Scored | Masked:
    definition = Definitions(package_version="1").parse(json.dumps(RIGHT))
    made = type(definition)(
        combination=Combination(members=members), bounds=definition.bounds, version="v"
    )
    return await grade(record, made, instruments)


async def test_an_abstaining_grader_leaves_the_mean(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    outcome = await _grade(
        make_record(), instruments, _member("a", 1, _value(0.5)), _member("b", 3, abstain("none"))
    )
    assert isinstance(outcome, Scored)
    assert (outcome.score, outcome.abstained) == (0.5, ("b",))
    assert [reward.name for reward in outcome.rewards] == ["a"]


async def test_without_any_opinion_there_is_no_score(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    outcome = await _grade(
        make_record(), instruments, _member("a", 1, abstain("none")), _member("b", 0, _value(1))
    )
    assert isinstance(outcome, Masked)
    assert "no opinion: a" in outcome.reason


async def test_a_fault_of_what_is_only_measured_costs_no_score(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    outcome = await _grade(
        make_record(), instruments, _member("a", 1, _value(1)), _member("b", 0, DOWN)
    )
    assert isinstance(outcome, Scored)
    assert outcome.score == 1.0
    assert [(e.name, e.kind) for e in outcome.errors] == [("b", GraderErrorKind.SERVER)]


async def test_a_fault_of_what_counts_is_raised(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    with pytest.raises(GradingFaultError, match="down"):
        await _grade(make_record(), instruments, _member("a", 1, _value(1)), _member("b", 1, DOWN))


async def test_of_several_faults_the_one_that_no_other_try_can_mend_is_raised(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    lasting = GradingFaultError(
        "no such model", kind=GraderErrorKind.DEFINITION, retryable=False, client=True
    )
    with pytest.raises(GradingFaultError, match="no such model"):
        await _grade(make_record(), instruments, _member("a", 1, DOWN), _member("b", 1, lasting))


@pytest.mark.parametrize(
    ("name", "formula"),
    [("tool-use", "tool-use"), ("2nd", "2nd * 2"), ("if", "if + 1"), ("a b", "a b"), ("", "x")],
)
def test_a_name_that_no_formula_can_write_is_explained(name: str, formula: str) -> None:
    definition = {"type": "multi", "graders": {name: RIGHT}, "calculate_output": formula}
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(definition))
    said = "; ".join(caught.value.violations.values())
    assert f"cannot write {name!r}" in said or "must be a non-empty text" in said


def test_a_long_sum_has_a_value() -> None:
    formula = parse_formula("+".join(["a"] * 190), {"a": 1.0})
    assert formula.value({"a": 1.0}) == 190.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["value", "parts", "step_values"])
async def test_what_is_not_finite_is_a_typed_fault(
    instruments: Instruments, make_record: MakeRecord, bad: float, field: str
) -> None:
    changed: dict[str, Any] = {"value": bad, "parts": {"p": bad}, "step_values": (bad,)}
    made = {"value": 1.0, field: changed[field]}
    found = Graded(kind=None, explanation="", **made)
    combination = Combination(members=(_member("a", 1, found),))
    with pytest.raises(GradingFaultError) as caught:
        await gather(combination, sample_of(make_record()), instruments)
    assert caught.value.kind is GraderErrorKind.CODE


async def test_a_mean_that_no_number_can_hold_is_a_typed_fault(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    for one, other in ((1.7e308, 1.7e308), (1.7e308, -1.7e308)):
        members = (_member("a", 2, _value(one)), _member("b", 3, _value(other)))
        with pytest.raises(GradingFaultError) as caught:
            await _grade(make_record(), instruments, *members)
        assert caught.value.kind is GraderErrorKind.FORMULA
        assert "the values are a=" in caught.value.detail


def test_the_key_of_a_grader_is_its_name_in_the_formula() -> None:
    compliant = {"name": "Is it compliant?", **RIGHT}
    definition = {
        "type": "multi",
        "graders": {"compliant": compliant},
        "calculate_output": "compliant",
    }
    parsed = Definitions(package_version="1").parse(json.dumps(definition))
    assert [member.name for member in parsed.combination.members] == ["compliant"]


def test_a_mean_of_what_is_there() -> None:
    members = (_member("a", 1, _value(0)), _member("b", 3, _value(1)))
    findings = [Finding(member=m, graded=m.grader.found) for m in members]  # type: ignore[attr-defined]
    assert Combination(members=members).value(findings) == 0.75
