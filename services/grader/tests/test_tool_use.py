"""`tool_use`: every form of expected calls, the figures, and the rows of BFCL against themselves."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.calls import Expected, Made, agreeing_count, agrees, read_expected
from grader.definition import Definitions
from grader.desk import GradingDesk
from servicekit.errors import InvalidArgument
from trajectory.types import Failure, GraderErrorKind, OutcomeKind, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
WithTurns = Callable[..., RolloutRecord]
SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
BFCL = SHARED / "data" / "bfcl" / "possible_answer"
needs_bfcl = pytest.mark.skipif(not BFCL.exists(), reason=f"{BFCL} is not there; set HONE_SHARED")
CALL = ("cell", '{"item": "Cash", "year": 2013}')
CALC = ("calc", '{"expression": "1 + 2"}')


async def _judge(desk: GradingDesk, record: RolloutRecord, expected: object, **more: object) -> Any:
    grader = {"type": "tool_use", "expected": expected, **more}
    return (await desk.judge(record, json.dumps(grader))).outcome


@pytest.mark.parametrize(
    "expected",
    [
        [{"name": "cell", "arguments": {"year": 2013.0, "item": "Cash"}}],
        [{"name": "cell", "arguments": '{"item": "Cash", "year": 2013}'}],
        [{"name": "cell", "kwargs": {"item": "Cash", "year": 2013}}],
        [
            {
                "type": "function",
                "function": {"name": "cell", "arguments": '{"item":"Cash","year":2013}'},
            }
        ],
        [{"name": "cell", "accepted": {"item": ["cash", "Cash"], "year": [2013], "unit": ["", 1]}}],
        [{"cell": {"item": ["Cash"], "year": [2012, 2013]}}],
        [{"name": "cell", "arguments": {"item": "{{item.row}}", "year": "{{item.year}}"}}],
        "{{item.calls}}",
        "{{item.calls_text}}",
    ],
)
@pytest.mark.parametrize(
    ("wrong", "f1"),
    [
        (("cell", '{"item": "Cash", "year": "2013"}'), 0.0),
        (("cell", '{"item": "Cash"}'), 0.0),
        (("cell", '{"item": "Cash", "year": 2013, "more": 1}'), 0.0),
        (("cel", CALL[1]), 0.0),
        (("cell", '{"item": "Cash", "year": 2013'), 0.0),
        (("cell", "[]"), 0.0),
    ],
)
async def test_gold_calls_are_one_and_wrong_ones_none_in_every_form(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    expected: object,
    wrong: tuple[str, str],
    f1: float,
) -> None:
    calls = [{"name": "cell", "arguments": {"item": "Cash", "year": 2013}}]
    item = {"row": "Cash", "year": 2013, "calls": calls, "calls_text": json.dumps(calls)}
    record = make_record(item=item)
    right = await _judge(desk, with_turns(record, [CALL]), expected)
    assert (right.score, right.kind) == (1.0, None)
    found = await _judge(desk, with_turns(record, [wrong]), expected)
    assert (found.score, found.kind) == (f1, OutcomeKind.TOOL_USE)


@pytest.mark.parametrize(
    ("match", "arguments", "value"),
    [
        ("names", "no json", 1.0),
        ("arguments", '{"item": "Cash", "year": 2013, "more": 1}', 1.0),
        ("arguments", '{"item": "Cash"}', 0.0),
        ("exact", '{"item": "Cash", "year": 2013, "more": 1}', 0.0),
        ("exact", '{"item": "Cash", "year": true}', 0.0),
    ],
)
async def test_match_says_how_much_of_a_call_must_agree(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    match: str,
    arguments: str,
    value: float,
) -> None:
    record = with_turns(make_record(), [("cell", arguments)])
    expected = [{"name": "cell", "arguments": {"item": "Cash", "year": 2013}}]
    assert (await _judge(desk, record, expected, match=match)).score == value


async def test_true_is_not_one_and_a_name_alone_is_a_call_without_arguments(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record(), [("f", '{"a": true}'), ("g", "")])
    outcome = await _judge(desk, record, [{"name": "f", "arguments": {"a": 1}}, "g"])
    assert outcome.score == 0.5


@pytest.mark.parametrize(
    ("metric", "order", "value"),
    [
        ("precision", "any", 2 / 3),
        ("recall", "any", 1.0),
        ("f1", "any", 0.8),
        ("exact", "any", 0.0),
        ("precision", "in_order", 1 / 3),
        ("recall", "in_order", 0.5),
        ("f1", "in_order", 0.4),
    ],
)
async def test_the_figures(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    metric: str,
    order: str,
    value: float,
) -> None:
    record = with_turns(make_record(), [CALL], [CALL, CALC])
    expected = [
        {"name": "calc", "arguments": {"expression": "1 + 2"}},
        {"name": "cell", "arguments": {"item": "Cash", "year": 2013}},
    ]
    outcome = await _judge(desk, record, expected, metric=metric, order=order)
    assert outcome.score == pytest.approx(value)
    assert outcome.rewards[0].parts[metric] == outcome.score


@pytest.mark.parametrize("metric", ["f1", "precision", "recall", "exact"])
async def test_where_no_call_is_expected_none_is_right(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns, metric: str
) -> None:
    assert (await _judge(desk, make_record(), [], metric=metric)).score == 1.0
    record = with_turns(make_record(), [CALL])
    assert (await _judge(desk, record, [], metric=metric)).score == 0.0


async def test_failed_calls_count_unless_they_are_ignored(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record(), [(*CALC, "boom", "tool_error")], [CALC])
    expected = [{"name": "calc", "arguments": {"expression": "1 + 2"}}]
    assert (await _judge(desk, record, expected)).score == pytest.approx(2 / 3)
    assert (await _judge(desk, record, expected, failed_calls="ignore")).score == 1.0


async def test_calls_of_ignored_tools_do_not_matter(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record(), [("look", "{}"), CALC, ("look", "{}")])
    calc = {"name": "calc", "arguments": {"expression": "1 + 2"}}
    assert (await _judge(desk, record, [calc], ignore=["look"])).score == 1.0
    assert (await _judge(desk, record, ["look"], ignore=["look"])).score == 0.0
    assert (await _judge(desk, record, ["look"], ignore=["look", "calc"])).score == 1.0


@pytest.mark.parametrize("calls", ["none", {"a": 1}, [3], [{"arguments": {}, "x": 1}], [""]])
async def test_calls_of_the_task_that_are_none_are_the_datasets_fault(
    desk: GradingDesk, make_record: MakeRecord, calls: object
) -> None:
    outcome = await _judge(desk, make_record(item={"calls": calls}), "{{item.calls}}")
    assert isinstance(outcome, Failure)
    assert outcome.grader_error is GraderErrorKind.REFERENCE
    assert outcome.detail.startswith("expected: ")


@pytest.mark.parametrize(
    "expected",
    [
        "cell",
        3,
        [3],
        [{}],
        [{"f": {"a": 1}}],
        [{"name": "f", "arguments": 1}],
        "{{items.x}}",
        "{{sample.output_json.plan}}",
        [{"f": {"a": ["{{sample.output_text}}"]}}],
    ],
)
def test_a_wrong_definition_names_its_field(expected: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        definition = json.dumps({"type": "tool_use", "expected": expected})
        Definitions(package_version="1").parse(definition)
    assert set(caught.value.violations) == {"expected"}


@pytest.mark.slow
async def test_ten_thousand_calls_are_judged_soon(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    start = time.process_time()
    calls = [("f", json.dumps({"a": n % 7})) for n in range(10_000)]
    record = with_turns(make_record(), calls)
    expected = [{"f": {"a": [n % 7, (n + 1) % 7]}} for n in range(128)]
    for order in ("any", "in_order"):
        outcome = await _judge(desk, record, expected, metric="recall", order=order)
        assert outcome.score == 1.0
    assert time.process_time() - start < 5.0


@needs_bfcl
def test_the_gold_calls_of_bfcl_agree_with_themselves() -> None:
    rows = wrong = 0
    for path in sorted(BFCL.glob("*.json")):
        if "multi_turn" in path.name:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            gold = json.loads(line)["ground_truth"]
            expected = read_expected(gold)
            made = [
                Made(name=name, arguments=_first(args)) for c in gold for name, args in c.items()
            ]
            found = agreeing_count(expected, made, match="exact", in_order=True)
            rows += 1
            wrong += (
                found != len(gold)
                or agreeing_count(expected, made[1:], match="exact", in_order=False)
                != len(gold) - 1
            )
    assert rows == 1258
    assert wrong == 0


def _first(accepted: Any) -> Any:
    """Return arguments with the first accepted value of each, as BFCL nests them."""
    given = {key: choices[0] for key, choices in accepted.items() if choices and choices[0] != ""}
    return {key: _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(inner, list) for inner in value.values()):
        return _first(value)
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


names = st.sampled_from("abc")
arguments = st.dictionaries(st.sampled_from("xy"), st.sampled_from([1, 2, "1", None]), max_size=2)
calls = st.lists(st.tuples(names, arguments), max_size=8)
Calls = list[tuple[str, dict[str, object]]]


def _count(expected: Calls, made: Calls, **options: Any) -> int:
    wanted = [
        Expected(name=name, accepted={k: [v] for k, v in given.items()}) for name, given in expected
    ]
    done = [Made(name=name, arguments=given) for name, given in made]
    return agreeing_count(wanted, done, **{"match": "exact", "in_order": False, **options})


@given(calls, calls)
def test_the_match_is_that_of_multisets(one: Calls, other: Calls) -> None:
    left = [json.dumps(call, sort_keys=True) for call in one]
    right = [json.dumps(call, sort_keys=True) for call in other]
    wanted = sum(min(left.count(text), right.count(text)) for text in set(left))
    assert _count(one, other) == _count(other, one) == wanted


@given(calls, calls)
def test_an_ordered_match_is_symmetric_and_never_larger(one: Calls, other: Calls) -> None:
    ordered = _count(one, other, in_order=True)
    assert ordered == _count(other, one, in_order=True) == _longest_common(one, other)
    assert ordered <= _count(one, other) <= _count(one, other, match="names")
    assert _count(one, one, in_order=True) == len(one)


def _longest_common(one: Calls, other: Calls) -> int:
    """Return the length of the longest common subsequence, by the textbook table."""
    row = [0] * (len(other) + 1)
    for left in one:
        row = _next_row(row, left, other)
    return row[-1]


def _next_row(row: list[int], left: object, other: Calls) -> list[int]:
    following = [0]
    for index, right in enumerate(other):
        best = row[index] + 1 if left == right else max(row[index + 1], following[index])
        following.append(best)
    return following


accepted = st.dictionaries(
    st.sampled_from("xy"), st.lists(st.sampled_from([1, 2, "", [1]]), min_size=1, max_size=3)
)


@given(st.lists(accepted, max_size=5), st.lists(arguments, max_size=5))
def test_with_alternatives_as_many_pairs_as_possible_are_formed(
    wanted: list[dict[str, list[object]]], done: list[dict[str, object]]
) -> None:
    expected = [Expected(name="f", accepted=one, nested=True) for one in wanted]
    made = [Made(name="f", arguments=one) for one in done]

    def best(index: int, free: frozenset[int]) -> int:
        if index == len(expected):
            return 0
        pairs = (i for i in free if agrees(expected[index], made[i], "exact"))
        return max([best(index + 1, free), *(1 + best(index + 1, free - {i}) for i in pairs)])

    found = agreeing_count(expected, made, match="exact", in_order=False)
    assert found == best(0, frozenset(range(len(made))))
