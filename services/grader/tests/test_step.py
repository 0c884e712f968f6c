"""`step`: which turns earn which rewards, and how they become one value."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.returns import returns_to_go, total_reward
from servicekit.errors import InvalidArgument
from trajectory.types import (
    Failure,
    GraderErrorKind,
    Masked,
    OutcomeKind,
    RolloutRecord,
    Scored,
)

MakeRecord = Callable[..., RolloutRecord]
WithTurns = Callable[..., RolloutRecord]
ANSWER = {"type": "answer", "reference": "{{item.answer}}"}
TURNS = (
    [("cell", '{"item": "Cash"}', "213"), ("cell", '{"item": "Goodwill"}', "x", "tool_error")],
    [("calc", '{"expression": "213 + 5"}', "218")],
    [("cell", '{"item": "Cash"}', "213")],
    [],
)


async def _judge(desk: GradingDesk, record: RolloutRecord, **grader: object) -> Any:
    return (await desk.judge(record, json.dumps({"type": "step", **grader}))).outcome


@pytest.mark.parametrize(
    ("when", "earned"),
    [
        ({"tool": "cell"}, (0.1, 0, 0.1, 0)),
        ({"tool": "cell", "first": True}, (0.1, 0, 0, 0)),
        ({"ok": False}, (0.1, 0, 0, 0)),
        ({"ok": True}, (0.1, 0.1, 0.1, 0)),
        ({"tool": "calc", "ok": False}, (0, 0, 0, 0)),
        ({"result_matches": "^21\\d$"}, (0.1, 0.1, 0.1, 0)),
        ({"arguments_match": "Goodwill", "ok": True}, (0, 0, 0, 0)),
        ({"tool": "cell", "arguments_match": "Cash", "result_matches": "213"}, (0.1, 0, 0.1, 0)),
        ({}, (0.1, 0.1, 0.1, 0.1)),
    ],
)
async def test_a_turn_earns_what_one_of_its_calls_fulfils(
    desk: GradingDesk,
    make_record: MakeRecord,
    with_turns: WithTurns,
    when: dict[str, object],
    earned: tuple[float, ...],
) -> None:
    record = with_turns(make_record(), *TURNS)
    outcome = await _judge(desk, record, rules=[{"when": when, "reward": 0.1}])
    assert outcome.step_rewards == pytest.approx(earned)
    assert outcome.score == pytest.approx(sum(earned))
    assert outcome.rewards[0].parts == pytest.approx({"rule_0": sum(earned)})


async def test_a_gold_trajectory_earns_one_and_a_wrong_one_none(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    definition: dict[str, Any] = {
        "rules": [{"name": "looked", "when": {"tool": "cell", "first": True}, "reward": 0.4}],
        "final": {"type": "length", "answer": ANSWER, "target": 0, "alpha": 0.4 / 16},
    }
    right = await _judge(desk, with_turns(make_record(), *TURNS), **definition)
    assert right.score == pytest.approx(1.0)
    assert right.step_rewards == pytest.approx((0.4, 0, 0, 0.6))
    assert right.rewards[0].parts == pytest.approx({"looked": 0.4, "final": 0.6})
    wrong = await _judge(desk, with_turns(make_record("Final Answer: 3"), [], []), **definition)
    assert (wrong.score, wrong.kind) == (0.0, OutcomeKind.REASONING)


async def test_a_discounted_total_is_the_return_of_the_first_turn(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record(), *TURNS)
    rules = [{"when": {"tool": "cell"}, "reward": 0.2}]
    outcome = await _judge(desk, record, rules=rules, final=ANSWER, gamma=0.5, total="discounted")
    assert outcome.score == pytest.approx(0.2 + 0.25 * 0.2 + 0.125 * 1.0)


async def test_a_final_answer_that_could_not_be_read_masks_the_whole(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    text = "Final Answer: \\boxed{\\frac{3x+}{}}"
    record = with_turns(make_record(text), *TURNS)
    assert isinstance((await desk.judge(record, json.dumps(ANSWER))).outcome, Masked)
    rules = [{"when": {}, "reward": 0.1}]
    assert isinstance(await _judge(desk, record, rules=rules, final=ANSWER), Masked)


async def test_without_turns_the_final_reward_is_all(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    rules = [{"when": {}, "reward": 0.1}]
    outcome = await _judge(desk, with_turns(make_record()), rules=rules, final=ANSWER)
    assert isinstance(outcome, Scored)
    assert outcome.score == 1.0


@pytest.mark.slow
async def test_a_pattern_that_never_ends_is_a_typed_fault(
    desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    record = with_turns(make_record(), [("cell", "{}", "a" * 5000 + "b")])
    rules = [{"when": {"result_matches": "(a+)+$"}, "reward": 0.1}]
    outcome = await _judge(desk, record, rules=rules)
    assert isinstance(outcome, Failure)
    assert outcome.grader_error is GraderErrorKind.TIMEOUT


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ({"reward": 0.1}, "rules[0].when"),
        ({"when": {}}, "rules[0].reward"),
        ({"when": {}, "reward": 1e308}, "rules[0].reward"),
        ({"when": {"tol": "x"}, "reward": 1}, "rules[0].when.tol"),
        ({"when": {"ok": 1}, "reward": 1}, "rules[0].when.ok"),
        ({"when": {"result_matches": "("}, "reward": 1}, "rules[0].when.result_matches"),
        (
            {"when": {"result_matches": "(?:(?:[ab]{1000}){1000}){1000}"}, "reward": 1},
            "rules[0].when.result_matches",
        ),
        ({"when": {}, "reward": 1, "name": "final"}, "rules"),
    ],
)
def test_a_wrong_rule_names_its_field(rule: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Definitions(package_version="1").parse(json.dumps({"type": "step", "rules": [rule]}))
    assert path in caught.value.violations


rewards = st.lists(st.floats(-10, 10), max_size=30)


@given(rewards, st.floats(0, 1))
def test_each_return_is_its_reward_and_the_discounted_rest(
    values: list[float], gamma: float
) -> None:
    returns = returns_to_go(values, gamma)
    assert len(returns) == len(values)
    for reward, now, following in zip(values, returns, [*returns[1:], 0.0], strict=False):
        assert now == pytest.approx(reward + gamma * following)


@given(rewards)
def test_undiscounted_the_first_return_is_the_total(values: list[float]) -> None:
    first = (*returns_to_go(values, 1.0), 0.0)[0]
    assert first == pytest.approx(total_reward(values), abs=1e-9)
    assert returns_to_go(values, 0.0) == tuple(values)
