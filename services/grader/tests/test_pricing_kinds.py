"""`length` and `efficiency`: only right answers are priced, by the formula, and nothing of the answer is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.instruments.all import Instruments
from grader.kinds.length import LengthGrader, Linear
from grader.kinds.pricing import is_right
from grader.results import Graded, abstain
from grader.sample import Sample, sample_of
from servicekit.errors import InvalidArgument
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
WithTurns = Callable[..., RolloutRecord]
ANSWER = {"type": "answer", "reference": "{{item.answer}}"}
EFFICIENCY = {"type": "efficiency", "answer": ANSWER, "penalty": 0.1}
LENGTH = {"type": "length", "answer": ANSWER}


async def _judge(desk: GradingDesk, record: RolloutRecord, grader: dict[str, object]) -> Any:
    return (await desk.judge(record, json.dumps(grader))).outcome


@pytest.mark.parametrize(
    ("cost", "free", "value"),
    [
        ("calls", 1, 0.8),
        ("turns", 0, 0.8),
        ("policy_tokens", 8, 0.8),
        ("seconds", 0.4, 1.0),
        ("calls", 3, 1.0),
        ("calls", 9, 1.0),
    ],
)
async def test_needless_effort_of_a_right_answer_is_priced(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    cost: str,
    free: float,
    value: float,
) -> None:
    record = with_turns(make_record(), [("f", "{}"), ("f", "{}")], [("f", "{}")])
    grader = {**EFFICIENCY, "cost": cost, "minimum": free}
    assert (await _judge(desk, record, grader)).score == pytest.approx(value)


@pytest.mark.parametrize("free", ["item.median_calls", "{{ item.cost.median[0] }}"])
async def test_the_median_may_be_a_field_of_the_task(
    desk: GradingDesk, make_record: MakeRecord, free: str
) -> None:
    item = {"answer": "72", "median_calls": 1.5, "cost": {"median": ["1.5"]}}
    outcome = await _judge(desk, make_record(item=item, calls=4), {**EFFICIENCY, "median": free})
    assert outcome.score == pytest.approx(0.75)
    assert outcome.rewards[0].parts == {"calls": 4.0, "needless": 2.5}


async def test_a_median_that_is_no_number_is_the_datasets_fault(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    record = make_record(item={"answer": "72", "m": 10**400})
    outcome = await _judge(desk, record, {**EFFICIENCY, "median": "item.m"})
    assert isinstance(outcome, Failure)
    assert outcome.grader_error is GraderErrorKind.REFERENCE
    assert "median: item.m must be a number" in outcome.detail


@pytest.mark.parametrize(
    ("unit", "target", "value"),
    [("characters", 6, 0.9), ("policy_tokens", 6, 0.6), ("turns", 1, 0.9), ("turns", 2, 1.0)],
)
async def test_needless_length_of_a_right_answer_is_priced(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    unit: str,
    target: int,
    value: float,
) -> None:
    record = with_turns(make_record("#### 72"), [], [])
    grader = {**LENGTH, "unit": unit, "target": target, "alpha": 0.1}
    assert (await _judge(desk, record, grader)).score == pytest.approx(value)


@pytest.mark.parametrize(("maximum", "cache", "value"), [(20, 4, 1.0), (8, 4, 0.25), (6, 2, 0.0)])
async def test_an_overlong_right_answer_is_worth_less_and_never_less_than_nothing(
    desk: GradingDesk, make_record: MakeRecord, maximum: int, cache: int, value: float
) -> None:
    grader = {**LENGTH, "penalty": "soft_overlong", "maximum": maximum, "cache": cache}
    assert (await _judge(desk, make_record("#### 72"), grader)).score == pytest.approx(value)


class Says:
    """A grader that finds what it is told to."""

    def __init__(self, found: Graded) -> None:
        self.found = found

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        return self.found


@pytest.mark.parametrize(
    "found",
    [
        Graded(value=0.0, kind=OutcomeKind.REASONING, explanation=""),
        Graded(value=0.6, kind=OutcomeKind.TOOL_USE, explanation=""),
        Graded(value=-1.0, kind=None, explanation=""),
        Graded(value=1.0, kind=OutcomeKind.EXTRACTION, explanation="", masked=True),
        abstain("none"),
    ],
)
async def test_what_is_not_right_is_not_priced(
    instruments: Instruments, make_record: MakeRecord, found: Graded
) -> None:
    grader = LengthGrader(
        answer=Says(found), unit="characters", penalty=Linear(target=0, alpha=1.0)
    )
    assert not is_right(found)
    assert await grader.grade(sample_of(make_record()), instruments) == found


async def test_a_priced_answer_keeps_its_figures_and_steps(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    found = Graded(value=1, kind=None, explanation="e", parts={"p": 0.5}, step_values=(0.1, 0.9))
    grader = LengthGrader(
        answer=Says(found), unit="characters", penalty=Linear(target=0, alpha=0.125)
    )
    graded = await grader.grade(sample_of(make_record("1234")), instruments)
    wanted = replace(
        found,
        value=0.5,
        explanation="e; 4 characters, target 0",
        parts={"p": 0.5, "characters": 4},
    )
    assert graded == wanted


@pytest.mark.parametrize(
    ("grader", "path"),
    [
        ({**EFFICIENCY}, "minimum"),
        ({**EFFICIENCY, "minimum": 1, "median": 2}, "median"),
        ({**EFFICIENCY, "median": "calls"}, "median"),
        ({**EFFICIENCY, "median": "sample.output_text"}, "median"),
        ({**EFFICIENCY, "minimum": 1, "cost": "money"}, "cost"),
        ({**LENGTH, "penalty": "soft_overlong", "maximum": 10, "cache": 20}, "cache"),
        ({**LENGTH, "penalty": "soft_overlong", "maximum": 10, "cache": 0}, "cache"),
        ({**LENGTH, "penalty": "soft_overlong", "cache": 1, "maximum": 2, "alpha": 1}, "alpha"),
        ({**LENGTH, "unit": "words", "target": 1, "alpha": 1}, "unit"),
    ],
)
def test_a_wrong_definition_names_its_field(grader: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps(grader))
    assert path in caught.value.violations


def test_a_number_just_above_its_limit_is_told_whole() -> None:
    grader = {**LENGTH, "penalty": "soft_overlong", "maximum": 10, "cache": 10.00000001}
    with pytest.raises(InvalidArgument, match=r"found 10\.00000001"):
        Definitions(package_version="1").parse(json.dumps(grader))
