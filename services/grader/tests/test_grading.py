import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from grader.combination import Combination, Member
from grader.definition import Definition, Definitions
from grader.desk import GradingDesk
from grader.gathering import gather
from grader.instruments.all import Instruments
from grader.results import Graded
from grader.sample import Sample, sample_of
from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    Masked,
    OutcomeKind,
    RolloutRecord,
    Scored,
    StopReason,
)

MakeRecord = Callable[..., RolloutRecord]
ANSWER = {"type": "answer", "reference": "{{item.answer}}"}


async def _scored(desk: GradingDesk, record: RolloutRecord) -> Scored:
    outcome = (await desk.judge(record, record.grader_json)).outcome
    assert isinstance(outcome, Scored)
    return outcome


@pytest.mark.parametrize(("calls", "score"), [(0, 1.0), (1, 1.0), (2, 0.85), (3, 0.7), (9, 0.0)])
async def test_needless_calls_of_a_right_answer_are_priced(
    desk: GradingDesk, make_record: MakeRecord, calls: int, score: float
) -> None:
    outcome = await _scored(desk, make_record(calls=calls))
    assert outcome.score == pytest.approx(score)
    assert outcome.kind is None
    assert [r.name for r in outcome.rewards] == ["reward", "accuracy"]
    assert outcome.rewards[1].value == 1.0


async def test_a_wrong_answer_is_0_however_few_its_calls(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    outcome = await _scored(desk, make_record("Final Answer: 71"))
    assert (outcome.score, outcome.kind) == (0.0, OutcomeKind.REASONING)


async def test_minimum_is_read_from_the_task(desk: GradingDesk, make_record: MakeRecord) -> None:
    grader = {"type": "efficiency", "answer": ANSWER, "penalty": 0.5, "minimum": "item.min_calls"}
    record = make_record(
        calls=3, item={"answer": 72, "min_calls": 2}, grader_json=json.dumps(grader)
    )
    assert (await _scored(desk, record)).score == 0.5


async def test_length_penalty_of_the_method(desk: GradingDesk, make_record: MakeRecord) -> None:
    grader = {"type": "length", "answer": ANSWER, "target": 200, "alpha": 0.001}
    text = "Final Answer: 72".rjust(500)
    assert (
        await _scored(desk, make_record(text, grader_json=json.dumps(grader)))
    ).score == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("operation", "text", "score"),
    [("eq", "72", 1), ("eq", "72 ", 0), ("ne", "71", 1), ("like", "so 72", 1), ("ilike", "x", 0)],
)
async def test_string_check(
    desk: GradingDesk, make_record: MakeRecord, operation: str, text: str, score: float
) -> None:
    grader = {"type": "string_check", "reference": "{{item.answer}}", "operation": operation}
    assert (await _scored(desk, make_record(text, grader_json=json.dumps(grader)))).score == score


async def test_weights_make_a_mean(desk: GradingDesk, make_record: MakeRecord) -> None:
    check = {"type": "string_check", "reference": "nothing", "weight": 3}
    grader = {"type": "multi", "graders": [{**ANSWER, "weight": 1}, check]}
    assert (await _scored(desk, make_record(grader_json=json.dumps(grader)))).score == 0.25


@pytest.mark.parametrize(
    ("rule", "score"),
    [({"range": [0, 0.5]}, 0.5), ({"range": [-1, 1], "rule": "affine", "from": [0, 2]}, 0.0)],
)
async def test_combined_score_lands_in_the_declared_range(
    desk: GradingDesk, make_record: MakeRecord, rule: dict[str, object], score: float
) -> None:
    grader = {"type": "multi", "graders": [ANSWER], **rule}
    outcome = await _scored(desk, make_record(grader_json=json.dumps(grader)))
    assert outcome.score == score
    assert outcome.rewards[0].value == 1.0


async def test_rule_refuse_is_a_failure_and_no_reward(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    grader = {"type": "multi", "graders": [ANSWER], "range": [0, 0.5], "rule": "refuse"}
    outcome = (await desk.judge(make_record(), json.dumps(grader))).outcome
    assert isinstance(outcome, Failure)
    assert "outside the range" in outcome.detail


@pytest.mark.parametrize(
    ("text", "options", "kind"),
    [
        ("Final Answer: 71", {}, OutcomeKind.REASONING),
        ("I cannot say.", {}, OutcomeKind.FORMAT),
        ("", {}, OutcomeKind.FORMAT),
        ("Let me see", {"stop_reason": StopReason.MAX_TURNS}, OutcomeKind.BUDGET),
        ("so 48 + 24 = 7", {"stop_reason": StopReason.MAX_TOKENS}, OutcomeKind.BUDGET),
        ("Final Answer: 71", {"calls": 1, "call_error": "invalid_json"}, OutcomeKind.TOOL_USE),
        ("Final Answer: 71", {"calls": 1}, OutcomeKind.REASONING),
        ("72", {"pending_call": True}, OutcomeKind.FORMAT),
    ],
)
async def test_kind_of_an_attempt_that_did_not_succeed(
    desk: GradingDesk,
    make_record: MakeRecord,
    text: str,
    options: dict[str, object],
    kind: OutcomeKind,
) -> None:
    outcome = await _scored(desk, make_record(text, **options))
    assert (outcome.score, outcome.kind) == (0.0, kind)


async def test_an_answer_that_cannot_be_read_is_masked(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    record = make_record("Final Answer: 5 hours and 30 minutes")
    outcome = (await desk.judge(record, record.grader_json)).outcome
    assert isinstance(outcome, Masked)
    assert outcome.kind is OutcomeKind.EXTRACTION


@pytest.mark.parametrize("item", [{"anser": "72"}, {"answer": None}, {"answer": ""}])
async def test_a_task_without_reference_is_the_datasets_fault(
    desk: GradingDesk, make_record: MakeRecord, item: dict[str, object]
) -> None:
    outcome = (await desk.judge(make_record(item=item), make_record().grader_json)).outcome
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.retryable) == (FailureKind.GRADER, False)
    assert outcome.attributable is Attribution.CLIENT


async def test_bad_definition_is_an_outcome_with_a_version(
    desk: GradingDesk, make_record: MakeRecord
) -> None:
    verdict = await desk.judge(make_record(), '{"type": "answr"}')
    assert isinstance(verdict.outcome, Failure)
    assert verdict.grader_version.startswith("1.2.3+unsound.")


@pytest.mark.parametrize(
    "answer", ["72", 72, 72.0, "$72", "7.2e1", "seventy-two", "{1,2}", "x^2", "(1, 2)", "B"]
)
async def test_gold_answers_score_1(
    desk: GradingDesk, make_record: MakeRecord, answer: object
) -> None:
    record = make_record(f"Final Answer: {answer}", item={"answer": answer})
    assert (await _scored(desk, record)).score == 1.0


class WatchedDefinitions(Definitions):
    """Notes which threads read definitions."""

    def __init__(self) -> None:
        super().__init__(package_version="1")
        self.threads: list[threading.Thread] = []

    def parse(self, text: str) -> Definition:
        self.threads.append(threading.current_thread())
        return super().parse(text)


async def test_a_definition_is_read_once_and_off_the_event_loop(
    instruments: Instruments, make_record: MakeRecord
) -> None:
    definitions = WatchedDefinitions()
    desk = GradingDesk(definitions, instruments)
    for _ in range(3):
        await _scored(desk, make_record())
    (reader,) = definitions.threads
    assert reader is not threading.current_thread()


class Breaking:
    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        await asyncio.sleep(0)
        raise ZeroDivisionError("a defect")


class Waiting:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError("nothing wakes it")


async def test_a_defect_of_one_grader_ends_the_others(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    """They would go on in boxes that are being removed."""
    waiting = Waiting()
    members = tuple(
        Member(name=type(grader).__name__, type="x", weight=1.0, grader=grader)
        for grader in (waiting, Breaking())
    )
    with pytest.raises(ZeroDivisionError):
        await gather(Combination(members=members), sample_of(make_record()), instruments)
    async with asyncio.timeout(5):
        await waiting.ended.wait()
