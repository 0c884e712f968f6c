"""`grounding`: which claims have a source, what calculators may add, and what costs nothing to make up."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.figures import figures_in
from servicekit.errors import InvalidArgument
from trajectory.types import ChatMessage, Masked, OutcomeKind, Role, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
WithTurns = Callable[..., RolloutRecord]
CELL = ("cell", '{"item": "Cash"}', "213")
SEARCH = ("search", "{}", "found doc12 in docs/a.md: 1,500,000 users, up 28%")


async def _judge(desk: GradingDesk, record: RolloutRecord, **grader: object) -> Any:
    return (await desk.judge(record, json.dumps({"type": "grounding", **grader}))).outcome


def _asked(record: RolloutRecord, question: str) -> RolloutRecord:
    asked = ChatMessage(role=Role.USER, content=(question,))
    return replace(record, messages=(asked, *record.messages[1:]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Cash was 213.", 1.0),
        ("Cash was $213.00 and there are 1500000 users.", 1.0),
        ("1.5 million users, 0.28 more", 1.0),
        ("28 percent", 1.0),
        ("minus 213", 1.0),
        ("In 2013: 213", 1.0),
        ("1. Cash: 213\n2) Users: 1.5M", 1.0),
        ("<think>maybe 999</think>213", 1.0),
        ("\uff12\uff11\uff13", 1.0),
        ("Cash was 214.", 0.0),
        ("Cash was 21.", 0.0),
        ("213 and 214", 0.5),
        ("213, 213, 213, 213 and 214", 0.5),
        ("213 of HAT136 on card_44", 1.0),
        ("document 12", 1.0),
        ("213 on 2024-05-16", 0.25),
        ("9" * 5000, 0.0),
    ],
)
async def test_a_number_is_grounded_if_its_value_was_told(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns, text: str, value: float
) -> None:
    record = _asked(with_turns(make_record(text), [CELL, SEARCH]), "What was Cash in 2013?")
    outcome = await _judge(desk, record)
    assert outcome.score == value
    assert outcome.kind is (None if value == 1.0 else OutcomeKind.REASONING)


async def test_the_figures_name_what_has_no_source(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record("213 plus 4 is 217"), [CELL])
    outcome = await _judge(desk, record, pass_threshold=0.3)
    assert outcome.rewards[0].parts == {"claims": 3.0, "grounded": 1.0}
    assert outcome.score == pytest.approx(1 / 3)
    assert outcome.kind is None
    assert outcome.rewards[0].explanation == "without a source: 4, 217"


@pytest.mark.parametrize(
    ("expression", "result", "answer", "derived", "value"),
    [
        ("213 * 2", "426", "426", True, 1.0),
        ("213 * 2", "426", "426", False, 0.0),
        ("213 + 5", "218", "218", True, 0.0),
        ("999", "999", "999", True, 0.0),
        ("7 * 60", "420", "420", True, 0.0),
        ("213 * 2", "426", "427", True, 0.0),
    ],
)
async def test_a_derived_number_needs_a_grounded_calculation(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    expression: str,
    result: str,
    answer: str,
    derived: bool,
    value: float,
) -> None:
    calculation = ("calculator", json.dumps({"expression": expression}), result)
    record = with_turns(make_record(answer), [CELL], [calculation])
    assert (await _judge(desk, record, derived=derived)).score == value


async def test_a_calculation_may_use_the_result_of_an_earlier_one_and_not_of_a_later(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    double = ("calc", '{"expression": "213 * 2"}', "426")
    again = ("calc", '{"expression": "426 * 10"}', "4260")
    record = make_record("4260")
    assert (await _judge(desk, with_turns(record, [CELL, double], [again]))).score == 1.0
    assert (await _judge(desk, with_turns(record, [again], [double, CELL]))).score == 0.0


async def test_what_a_failed_call_or_another_tool_says_is_no_source(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = make_record("213")
    failed = with_turns(record, [("cell", "{}", "no item 213", "tool_error")])
    assert (await _judge(desk, failed)).score == 0.0
    other = with_turns(record, [CELL])
    assert (await _judge(desk, other, tools=["search"])).score == 0.0
    assert (await _judge(desk, other, tools=["cell"])).score == 1.0


@pytest.mark.parametrize(
    ("name", "arguments", "result", "value"),
    [
        ("shell", '{"command": "echo 999"}', "999", 0.0),
        ("search", '{"query": "profit 999"}', "nothing found for profit 999", 0.0),
        ("search", '{"query": "profit 999"}', "nothing found for profit 999.0", 0.0),
        ("search", "no json 999", "not found: 999", 0.0),
        ("search", '{"999": [true]}', "no key 999", 0.0),
        ("search", '{"query": "profit"}', "profit: 999", 1.0),
    ],
)
async def test_a_number_that_the_agent_wrote_into_the_call_is_no_news(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    name: str,
    arguments: str,
    result: str,
    value: float,
) -> None:
    record = with_turns(make_record("999"), [(name, arguments, result)])
    assert (await _judge(desk, record)).score == value
    known = ("search", "{}", "999")
    record = with_turns(make_record("999"), [known, (name, arguments, result)])
    assert (await _judge(desk, record)).score == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("See [doc12].", 1.0),
        ("See [doc1].", 0.0),
        ("See [doc12] and [doc13], also [doc12].", 0.5),
    ],
)
async def test_a_cited_source_occurs_as_a_word_of_its_own(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns, text: str, value: float
) -> None:
    record = with_turns(make_record(text), [SEARCH])
    assert (await _judge(desk, record, claims={"pattern": r"\[(doc\d+)\]"})).score == value


async def test_without_numbers_there_is_no_opinion_and_without_text_no_reward(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    assert isinstance(await _judge(desk, make_record("I do not know.")), Masked)
    empty = await _judge(desk, make_record(" \n"))
    assert (empty.score, empty.kind) == (0.0, OutcomeKind.FORMAT)
    words = await _judge(desk, make_record("nine hundred"), required=True)
    assert (words.score, words.kind) == (0.0, OutcomeKind.FORMAT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["1," * 500_000, "1 " * 500_000, "9" * 1_000_000, "\u0663 " * 500_000, "1e9" * 300_000]
)
async def test_hostile_texts_are_judged_soon(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns, text: str
) -> None:
    start = time.process_time()
    record = with_turns(make_record(text), [("cell", "{}", text)])
    await _judge(desk, record)
    await _judge(desk, record, claims={"pattern": r"\S+"})
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("grader", "path"),
    [
        ({"claims": "words"}, "claims"),
        ({"claims": {"pattern": "["}}, "claims.pattern"),
        ({"claims": {"regex": "a"}}, "claims.regex"),
        ({"tools": []}, "tools"),
        ({"derived": "yes"}, "derived"),
        ({"required": 1}, "required"),
        ({"constants": ["1"]}, "constants"),
    ],
)
def test_a_wrong_definition_names_its_field(grader: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps({"type": "grounding", **grader}))
    assert path in caught.value.violations


numbers = st.decimals(min_value=0, max_value=10**9, places=2)


@given(numbers)
def test_every_way_of_writing_a_number_has_one_value(number: Decimal) -> None:
    plain = f"{number:f}"
    written = [
        plain,
        f"{number:,f}",
        f"${plain}",
        f"0{plain}",
        f"{plain}0",
        f"({plain})",
        f"{plain}.",
    ]
    values = [[figure.values for figure in figures_in(text)] for text in written]
    assert values == [[(number,)]] * len(written)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.integers(0, 50), max_size=6), st.lists(st.integers(0, 50), min_size=1))
def test_the_share_is_that_of_the_distinct_numbers(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    told: list[int],
    said: list[int],
) -> None:
    record = make_record(" and ".join(map(str, said)))
    record = with_turns(record, [("cell", "{}", str(number)) for number in told])
    share = len(set(said) & set(told)) / len(set(said))
    assert asyncio.run(_judge(desk, record)).score == pytest.approx(share)
