"""Options of the kind `answer`: where the answer is looked for, how near it must be; wrong ones are named."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from grader.definition import Definitions
from grader.desk import GradingDesk
from servicekit.errors import InvalidArgument
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord, Scored

MakeRecord = Callable[..., RolloutRecord]


async def _judge(
    desk: GradingDesk, make_record: MakeRecord, text: str, reference: str, **options: object
) -> Any:
    grader = {"type": "answer", "reference": reference, **options}
    return (await desk.judge(make_record(text), json.dumps(grader))).outcome


@pytest.mark.parametrize(
    ("extract", "text", "reference"),
    [
        ({"pattern": r"Result: (\S+)"}, "Result: 71 no\nResult: 72 yes", "72"),
        ({"pattern": r"Result: (\S+)", "which": "first"}, "Result: 72 no\nResult: 71", "72"),
        ({"pattern": r"(\d+) of (\d+)", "group": 2}, "71 of 72. Final Answer: 9", "72"),
        ({"pattern": r"got (?P<n>\d+)", "group": "n"}, "we got 72.", "72"),
        ({"pattern": r"\d+$", "group": 0}, "5 and 72", "72"),
        ({"pattern": r"= (.+)"}, "x = 3/4", "0.75"),
        ({"json_field": "answer"}, '{"answer": 72, "result": 5}', "72"),
        ({"json_field": "value"}, 'so ```json\n{"value": "seventy-two"}\n```', "72"),
        ({"json_field": "out.values[1]"}, '{"out": {"values": [1, 72.0]}}', "72"),
        ({"json_field": "answer"}, '{"answer": 5}\n{"answer": 72}', "72"),
        ({"json_field": "answer"}, '{"answer": [1, 2]}', "2, 1"),
        ("boxed", "\\boxed{72}. Final Answer: 71", "72"),
        ("hash", "#### 72\nThe answer is 71", "72"),
        ("last_number", "The answer is 71, or so. I checked 72 times", "72"),
        ("auto", "The answer is 72, as checked", "72"),
    ],
)
async def test_answer_is_found_where_the_definition_says(
    desk: GradingDesk, make_record: MakeRecord, extract: object, text: str, reference: str
) -> None:
    outcome = await _judge(desk, make_record, text, reference, extract=extract)
    assert isinstance(outcome, Scored)
    assert outcome.rewards[0].value == 1


@pytest.mark.parametrize(
    ("extract", "text"),
    [
        ({"pattern": r"Result: (\d+)"}, "Final Answer: 72"),
        ({"pattern": r"Result:( *)"}, "Result: 72"),
        ({"pattern": r"(?:a(\d+))|72"}, "72"),
        ({"json_field": "answer"}, "Final Answer: 72"),
        ({"json_field": "answer"}, '{"answers": 72}'),
        ({"json_field": "answer"}, '{"answer": null}'),
        ({"json_field": "answer"}, '{"answer": 72'),
        ({"json_field": "a[3]"}, '{"a": [72]}'),
        ("boxed", "Final Answer: 72"),
        ("hash", "\\boxed{72}"),
        ("last_number", "seventy-two"),
    ],
)
async def test_answer_elsewhere_is_none_of_kind_format(
    desk: GradingDesk, make_record: MakeRecord, extract: object, text: str
) -> None:
    outcome = await _judge(desk, make_record, text, "72", extract=extract)
    assert isinstance(outcome, Scored)
    assert outcome.rewards[0].value == 0
    assert outcome.kind is OutcomeKind.FORMAT


@pytest.mark.parametrize(
    ("tolerance", "text", "reference", "near"),
    [
        ({"absolute": 0.01}, "3.15", "3.14", True),
        ({"absolute": 0.01}, "3.151", "3.14", False),
        ({"relative": 0.01}, "101", "100", True),
        ({"relative": 0.01}, "101.1", "100", False),
        ({"relative": 0.01}, "-101", "-100", True),
        ({"relative": 0.01}, "0.001", "0", False),
        ({"absolute": 0.5, "relative": 0.1}, "109", "100", True),
        ({}, "3.15", "3.14", False),
        ({"absolute": 0.01}, "\\boxed{\\sqrt{2}}", "1.414", True),
        ({"absolute": 0.01}, "\\boxed{2\\pi}", "6.28", True),
        ({"absolute": 0.01}, "\\boxed{2\\pi}", "6.2", False),
        ({"absolute": 0.01}, "(1.001, 2)", "(1, 2)", True),
        ({"absolute": 0.01}, "3.14 kg", "3.14 m", False),
        ({"absolute": 0.01}, "between 3 and 4", "3.14", False),
    ],
)
async def test_number_may_differ_by_the_tolerance(
    desk: GradingDesk,
    make_record: MakeRecord,
    tolerance: object,
    text: str,
    reference: str,
    near: bool,
) -> None:
    outcome = await _judge(
        desk, make_record, f"Final Answer: {text}", reference, tolerance=tolerance
    )
    assert isinstance(outcome, Scored)
    assert outcome.rewards[0].value == near


async def test_pattern_that_backtracks_without_end_is_a_fault_of_the_definition(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    text = "a" * 50_000 + "!"
    outcome = await _judge(desk, make_record, text, "72", extract={"pattern": r"((?:a|aa)+)$"})
    assert isinstance(outcome, Failure)
    assert outcome.grader_error is GraderErrorKind.TIMEOUT


@pytest.mark.parametrize(
    ("options", "path", "said"),
    [
        ({"extract": "box"}, "extract", "did you mean 'boxed'"),
        ({"extract": {"pattern": "("}}, "extract.pattern", "is no regular expression"),
        ({"extract": {"pattern": "a", "group": 1}}, "extract.group", "no group 1"),
        ({"extract": {"pattern": "(a)", "group": "n"}}, "extract.group", "no group"),
        ({"extract": {"pattern": "a", "which": "all"}}, "extract.which", "not known"),
        ({"extract": {"pattern": "a", "flags": "i"}}, "extract.flags", "unknown key"),
        ({"extract": {}}, "extract.pattern", "is required"),
        ({"extract": {"json_field": "a..b"}}, "extract.json_field", "must be a path"),
        ({"tolerance": 0.1}, "tolerance", "must be an object"),
        ({"tolerance": {"absolute": -1}}, "tolerance.absolute", "at least 0"),
        ({"tolerance": {"relative": 2}}, "tolerance.relative", "from 0 to 1"),
        ({"tolerance": {"abs": 1}}, "tolerance.abs", "did you mean 'absolute'"),
    ],
)
def test_wrong_option_is_named_by_its_path(options: object, path: str, said: str) -> None:
    assert isinstance(options, dict)
    definition = json.dumps({"type": "answer", "reference": "72", **options})
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(definition)
    assert said in caught.value.violations[path]
