"""The rows of the shared losses.json on rewards, through the graders that give them."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grader.desk import GradingDesk
from grader.formula import parse_formula
from grader.penalties import soft_overlong
from grader.returns import returns_to_go
from trajectory.types import RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
WithTurns = Callable[..., RolloutRecord]
SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
CASES = SHARED / "cases" / "losses.json"
needs_cases = pytest.mark.skipif(
    not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED"
)
ANSWER = {"type": "answer", "reference": "{{item.answer}}"}


def _cases(*topics: str) -> list[Any]:
    if not CASES.exists():
        return []
    cases = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["id"]) for case in cases if case["topic"] in topics]


def _cases_named(*names: str) -> list[Any]:
    found = [p for p in _cases("length_penalty", "step_reward", "graders") if p.id in names]
    assert len(found) == len(names) or not CASES.exists()
    return found


def _text(length: int, right: bool) -> str:
    """Return an answer of so many characters."""
    statement = f"Final Answer: {72 if right else 3}"
    return " " * (length - len(statement)) + statement


def _wide(grader: dict[str, object]) -> str:
    """Return a definition that leaves the combined score as it is."""
    return json.dumps({**grader, "range": [-100, 100], "rule": "refuse"})


@needs_cases
def test_every_row_on_rewards_is_tested_here() -> None:
    ids = {p.id for p in _cases("length_penalty", "step_reward", "graders")}
    assert ids == {
        "dapo_soft_overlong",
        "dapo_soft_overlong_small",
        "length_penalty_seed",
        "step_reward_sum",
        "discounted_return_0.9",
        "discounted_return_0.99",
        "discounted_return_0.0",
        "multi_grader_weighted",
    }


@pytest.mark.parametrize("case", _cases_named("length_penalty_seed"))
async def test_the_length_penalty(case: Any, desk: GradingDesk, make_record: MakeRecord) -> None:
    found = []
    for row in case["inputs"]["rows"]:
        grader = {
            "type": "length",
            "answer": ANSWER,
            "target": row["target"],
            "alpha": row["alpha"],
        }
        record = make_record(_text(row["actual"], bool(row["correct"])))
        found.append((await desk.judge(record, _wide(grader))).outcome.score)  # type: ignore[union-attr]
    assert found == pytest.approx(case["expected"]["rewards"], abs=case["tol"])


@pytest.mark.parametrize("case", _cases_named("dapo_soft_overlong", "dapo_soft_overlong_small"))
async def test_the_soft_overlong_penalty(
    case: Any, desk: GradingDesk, make_record: MakeRecord
) -> None:
    limits = {"maximum": case["inputs"]["L_max"], "cache": case["inputs"]["L_cache"]}
    lengths = case["inputs"]["lengths"]
    penalties = [soft_overlong(length, **limits) for length in lengths]
    assert penalties == pytest.approx(case["expected"]["penalty"], abs=case["tol"])
    grader = {"type": "length", "answer": ANSWER, "penalty": "soft_overlong", **limits}
    for length, penalty in zip(lengths, case["expected"]["penalty"], strict=True):
        outcome: Any = (await desk.judge(make_record(_text(length, True)), _wide(grader))).outcome
        assert outcome.score == pytest.approx(1.0 + penalty, abs=case["tol"])


@pytest.mark.parametrize(
    "case",
    _cases_named(
        "step_reward_sum",
        "discounted_return_0.9",
        "discounted_return_0.99",
        "discounted_return_0.0",
    ),
)
async def test_step_rewards_and_returns(
    case: Any, desk: GradingDesk, make_record: MakeRecord, with_turns: WithTurns
) -> None:
    wanted, gamma = case["inputs"]["step_rewards"], case["inputs"]["gamma"]
    names = [f"tool_{turn}" for turn in range(len(wanted))]
    rules = [{"when": {"tool": name}, "reward": r} for name, r in zip(names, wanted, strict=True)]
    record = with_turns(make_record(), *([(name, "{}")] for name in names))
    grader = {"type": "step", "rules": rules, "gamma": gamma}
    discounted: Any = (await desk.judge(record, _wide({**grader, "total": "discounted"}))).outcome
    returns = case["expected"]["returns_to_go"]
    assert list(discounted.step_rewards) == pytest.approx(wanted, abs=case["tol"])
    assert discounted.score == pytest.approx(returns[0], abs=case["tol"])
    found = returns_to_go(discounted.step_rewards, gamma)
    assert list(found) == pytest.approx(returns, abs=case["tol"])
    if "total" in case["expected"]:
        summed: Any = (await desk.judge(record, _wide(grader))).outcome
        assert summed.score == pytest.approx(case["expected"]["total"], abs=case["tol"])


@pytest.mark.parametrize("case", _cases_named("multi_grader_weighted"))
async def test_the_weighted_formula(case: Any, desk: GradingDesk, make_record: MakeRecord) -> None:
    text = case["inputs"]["output"]
    values = {name: case["inputs"][name] for name in ("accuracy", "format")}
    score = parse_formula(text, values).value(values)
    assert score == pytest.approx(case["expected"]["score"], abs=case["tol"])
    half = {"must": {"max_characters": 100, "json": True}, "type": "format"}
    definition = {
        "type": "multi",
        "graders": {"accuracy": ANSWER, "format": half},
        "calculate_output": text,
    }
    record = replace(make_record("Final Answer: 72"))
    outcome: Any = (await desk.judge(record, json.dumps(definition))).outcome
    assert {r.name: r.value for r in outcome.rewards} == values
    assert outcome.score == pytest.approx(case["expected"]["score"], abs=case["tol"])
