"""`format`: each rule with a text that keeps it and ones that do not, and bounds on what definitions can ask."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from grader.definition import Definitions
from grader.desk import GradingDesk
from servicekit.errors import InvalidArgument
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord, StopReason

MakeRecord = Callable[..., RolloutRecord]
SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]\\d{2}$"}, "n": {"minimum": 1}},
    "required": ["code"],
    "additionalProperties": False,
}
LAUGHS = {
    "$defs": {
        "d0": {"minLength": 1},
        **{f"d{n + 1}": {"allOf": [{"$ref": f"#/$defs/d{n}"}] * 10} for n in range(9)},
    },
    "$ref": "#/$defs/d9",
}
TAGS = {"names": ["think", "answer"], "only": True}


async def _judge(desk: GradingDesk, record: RolloutRecord, must: object, **more: object) -> Any:
    grader = {"type": "format", "must": must, **more}
    return (await desk.judge(record, json.dumps(grader))).outcome


@pytest.mark.parametrize(
    ("must", "gold", "wrong"),
    [
        ("json", ' {"a": [1, null]} ', "{'a': 1}"),
        ({"json": True}, "3", '```json\n{"a": 1}\n```'),
        ({"json": True}, "[]", '{"a": NaN}'),
        ({"json": True}, "{}", "{} {}"),
        ({"json_schema": {"schema": SCHEMA}}, '{"code": "A12"}', '{"code": "A1"}'),
        ({"json_schema": {"schema": SCHEMA}}, '{"code": "A12", "n": 1.0}', '{"n": 2}'),
        ({"json_schema": {"schema": {"uniqueItems": True}}}, "[1, true, [1]]", "[{}, 1, {}]"),
        ({"json_schema": {"schema": {"uniqueItems": True}}}, "[1, 2]", "[[1], [1.0]]"),
        ({"json_schema": {"schema": {"multipleOf": 0.1}}}, "0.3", "0.35"),
        ({"json_schema": {"schema": {"multipleOf": 0.5}}}, "1" + "0" * 400, "1" + "0" * 400 + ".3"),
        ({"json_schema": {"schema": {"multipleOf": 3}}}, "true", "1e300"),
        ({"json": True}, "1e308", "1e309"),
        ({"regex": {"pattern": "\\d{3}"}}, "code 123.", "code 12"),
        ({"regex": {"pattern": "\\d{3}", "whole": True}}, "123", "123."),
        ({"tags": TAGS}, "<think>a</think>\n<answer>b</answer>\n", "<answer>b</answer>"),
        ({"tags": TAGS}, "<think>a</think><answer>b</answer>", "<think>a<answer>b</answer>"),
        (
            {"tags": TAGS},
            "<think>a</think><answer>b</answer>",
            "<answer>b</answer><think>a</think>",
        ),
        (
            {"tags": TAGS},
            "<think>a</think><answer>b</answer>",
            "<think>a</think><answer> </answer>",
        ),
        (
            {"tags": TAGS},
            "<think>a</think><answer>b</answer>",
            "<think>a</think>x<answer>b</answer>",
        ),
        (
            {"tags": TAGS},
            "<think>a</think><answer>b</answer>",
            "<think>a</think><answer>b</answer>x",
        ),
        (
            {"tags": TAGS},
            "<think>a</think><answer>b</answer>",
            "<think>a</think><answer>b</answer><answer>c</answer>",
        ),
        (
            {"tags": {"names": ["think", "answer"]}},
            "x <think>a</think> y <answer>b</answer> z",
            "<think>a<answer>b</answer></think>",
        ),
        ({"max_characters": 3}, "abc", "abcd"),
        ({"min_characters": 3}, "abc", "ab"),
        ({"min_characters": 3}, "a c", " ab \n\n\n"),
    ],
)
async def test_gold_keeps_a_rule_and_wrong_does_not(
    desk: GradingDesk, make_record: MakeRecord, must: object, gold: str, wrong: str
) -> None:
    right = await _judge(desk, make_record(gold), must)
    assert (right.score, right.kind) == (1.0, None)
    found = await _judge(desk, make_record(wrong), must)
    assert (found.score, found.kind) == (0.0, OutcomeKind.FORMAT)


async def test_each_rule_is_a_part_of_the_value(desk: GradingDesk, make_record: MakeRecord) -> None:
    must = {"json": True, "max_characters": 5, "min_characters": 1, "regex": {"pattern": "x"}}
    outcome = await _judge(desk, make_record("[1, 2, 3]"), must)
    parts = {"json": 1, "max_characters": 0, "min_characters": 1, "regex": 0}
    assert outcome.rewards[0].parts == parts
    assert (outcome.score, outcome.kind) == (0.5, OutcomeKind.FORMAT)
    assert "max_characters: the text has 9 characters" in outcome.rewards[0].explanation


async def test_an_empty_text_keeps_no_rule_and_a_cut_off_one_was_a_matter_of_budget(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    assert (await _judge(desk, make_record(" "), {"max_characters": 5})).score == 0.0
    record = make_record('{"a": ', stop_reason=StopReason.MAX_TOKENS)
    assert (await _judge(desk, record, "json")).kind is OutcomeKind.BUDGET


async def test_the_text_may_be_a_field_of_the_response(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    more = {"input": "{{sample.output_json.code}}"}
    must = {"regex": {"pattern": "[A-Z]\\d", "whole": True}}
    assert (await _judge(desk, make_record('{"code": "A1"}'), must, **more)).score == 1.0
    assert (await _judge(desk, make_record('{"cod": "A1"}'), must, **more)).score == 0.0


@pytest.mark.parametrize(
    ("must", "path"),
    [
        ("xml", "must"),
        ({}, "must"),
        ({"jsn": True}, "must.jsn"),
        ({"json": False}, "must.json"),
        ({"json_schema": {"schema": {"type": "objekt"}}}, "must.json_schema.schema"),
        ({"json_schema": {"schema": 3}}, "must.json_schema.schema"),
        ({"json_schema": {}}, "must.json_schema.schema"),
        ({"json_schema": {"schema": {"$ref": "http://h/s"}}}, "must.json_schema.schema"),
        ({"json_schema": {"schema": {"patternProperties": {}}}}, "must.json_schema.schema"),
        ({"json_schema": {"schema": {"pattern": "("}}}, "must.json_schema.schema"),
        ({"regex": {"pattern": "("}}, "must.regex.pattern"),
        ({"regex": {"pattern": "a" * 2001}}, "must.regex.pattern"),
        ({"regex": {"pattern": "(" * 500 + ")" * 500}}, "must.regex.pattern"),
        ({"tags": {"names": []}}, "must.tags.names"),
        ({"tags": {"names": ["a", "b", "a"]}}, "must.tags.names"),
        ({"max_characters": -1}, "must.max_characters"),
        ({"max_characters": 3, "min_characters": 4}, "must.min_characters"),
    ],
)
def test_a_wrong_definition_names_its_field(must: object, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps({"type": "format", "must": must}))
    assert path in caught.value.violations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("must", "kind"),
    [
        ({"regex": {"pattern": "(a+)+$"}}, GraderErrorKind.TIMEOUT),
        ({"json_schema": {"schema": {"pattern": "(a+)+$"}}}, GraderErrorKind.TIMEOUT),
        ({"json_schema": {"schema": LAUGHS}}, GraderErrorKind.TIMEOUT),
        ({"json_schema": {"schema": {"$ref": "#"}}}, GraderErrorKind.DEFINITION),
        ({"json_schema": {"schema": {"$ref": "#/$defs/x"}}}, GraderErrorKind.DEFINITION),
    ],
)
async def test_what_a_definition_asks_without_end_is_a_typed_fault(
    desk: GradingDesk, make_record: MakeRecord, must: object, kind: GraderErrorKind
) -> None:
    outcome = await _judge(desk, make_record(json.dumps("a" * 5000 + "b")), must)
    assert isinstance(outcome, Failure), outcome
    assert (outcome.grader_error, outcome.retryable) == (kind, False)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500_000,
        "[" + "{}," * 30_000 + "{}]",
        '{"a":' * 200 + "1" + "}" * 200,
        "9" * 1_000_000,
        "<think>" * 140_000,
        "\x00\u202e" * 100_000,
    ],
)
async def test_hostile_texts_are_judged_soon(
    desk: GradingDesk, make_record: MakeRecord, text: str
) -> None:
    must = {
        "json": True,
        "json_schema": {"schema": {"type": "array", "uniqueItems": True}},
        "tags": TAGS,
        "regex": {"pattern": "^<think>.*</think>$"},
    }
    start = time.process_time()
    outcome = await _judge(desk, make_record(text), must)
    assert outcome.score < 1.0
    assert time.process_time() - start < 2.0


def test_an_unsound_schema_is_refused_soon() -> None:
    start = time.process_time()
    bad = {"required": [{} if n % 2 else n for n in range(40_000)]}
    must = {"json_schema": {"schema": bad}}
    with pytest.raises(InvalidArgument, match=r"\$\.required"):
        Definitions(package_version="1").parse(json.dumps({"type": "format", "must": must}))
    assert time.process_time() - start < 3.0
