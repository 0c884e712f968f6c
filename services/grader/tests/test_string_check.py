"""`string_check`: each operation with a gold and a wrong text, and what holds of anything."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from grader.desk import GradingDesk
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]


async def _judge(desk: GradingDesk, record: RolloutRecord, **grader: object) -> Any:
    return (await desk.judge(record, json.dumps({"type": "string_check", **grader}))).outcome


@pytest.mark.parametrize(
    ("operation", "gold", "wrong"),
    [
        ("eq", "Yes", "yes"),
        ("ne", "no", "Yes"),
        ("like", "Oh Yes.", "oh yes."),
        ("ilike", "oh YES.", "no"),
    ],
)
async def test_gold_is_one_and_wrong_none_in_every_operation(
    desk: GradingDesk, make_record: MakeRecord, operation: str, gold: str, wrong: str
) -> None:
    grader = {"reference": "{{item.label}}", "operation": operation}
    right = await _judge(desk, make_record(gold, item={"label": "Yes"}), **grader)
    assert (right.score, right.kind) == (1.0, None)
    found = await _judge(desk, make_record(wrong, item={"label": "Yes"}), **grader)
    assert (found.score, found.kind) == (0.0, OutcomeKind.REASONING)


@pytest.mark.parametrize("operation", ["like", "ilike"])
@pytest.mark.parametrize("blank", ["", " \n"])
async def test_a_blank_reference_that_any_text_holds_is_the_datasets_fault(
    desk: GradingDesk, make_record: MakeRecord, operation: str, blank: str
) -> None:
    record = make_record("a b\n \nc", item={"label": blank})
    outcome = await _judge(desk, record, reference="{{item.label}}", operation=operation)
    assert isinstance(outcome, Failure)
    assert outcome.grader_error is GraderErrorKind.REFERENCE
    assert outcome.detail == "reference: {{item.label}} is blank, and every text holds that"


@pytest.mark.parametrize("quote", ["", " "])
async def test_a_response_that_quotes_nothing_earns_nothing(
    desk: GradingDesk, make_record: MakeRecord, quote: str
) -> None:
    grader = {
        "input": "{{item.document}}",
        "reference": "{{sample.output_json.quote}}",
        "operation": "like",
    }
    item = {"document": "a long text"}
    right = await _judge(desk, make_record('{"quote": "long"}', item=item), **grader)
    assert right.score == 1.0
    found = await _judge(desk, make_record(json.dumps({"quote": quote}), item=item), **grader)
    assert (found.score, found.kind) == (0.0, OutcomeKind.FORMAT)
