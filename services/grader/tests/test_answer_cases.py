"""The shared cases: right answers accepted, wrong ones never."""

import json
import os
from pathlib import Path

import pytest

from grader.answer.judge import AnswerJudgement, judge_answer
from grader.answer.symbolic import SymbolicProcess
from trajectory.types import OutcomeKind

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
CASES = SHARED / "cases" / "answers.jsonl"
needs_cases = pytest.mark.skipif(
    not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED"
)


def _judged(symbolic: SymbolicProcess) -> list[tuple[dict[str, object], AnswerJudgement]]:
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return [(row, judge_answer(row["prediction_text"], row["gold"], symbolic)) for row in rows]


@needs_cases
def test_shared_cases_reach_the_promised_accuracy(symbolic: SymbolicProcess) -> None:
    judged = _judged(symbolic)
    right = [row["expected_equal"] == found.correct for row, found in judged]
    core = [ok for ok, (row, _) in zip(right, judged, strict=True) if row["tier"] == "core"]
    wrong_accepts = [
        row["id"] for row, found in judged if found.correct and not row["expected_equal"]
    ]
    print(f"core {sum(core)}/{len(core)}, all {sum(right)}/{len(right)}")
    assert wrong_accepts == []
    assert sum(core) / len(core) >= 0.98
    assert sum(right) / len(right) >= 0.92


@needs_cases
def test_shared_cases_without_an_answer_are_of_kind_format(symbolic: SymbolicProcess) -> None:
    wrong = [
        row["id"]
        for row, found in _judged(symbolic)
        if row["verdict"] == "no_answer" and (found.kind is not OutcomeKind.FORMAT or found.masked)
    ]
    assert wrong == []


@needs_cases
def test_every_gold_answer_equals_itself(symbolic: SymbolicProcess) -> None:
    golds = {json.loads(line)["gold"] for line in CASES.read_text(encoding="utf-8").splitlines()}
    wrong = [
        gold for gold in golds if not judge_answer(f"Final Answer: {gold}", gold, symbolic).correct
    ]
    assert wrong == []
