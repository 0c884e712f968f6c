"""Parts of `hone grade` that a command line cannot show: the pool under Ctrl-C, the meter, figures, retries."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hone.common.v1 import outcome_pb2
from hone.console.v1 import console_pb2
from hone.events.v1 import events_pb2

from grader.analysis.rows import GradedRow
from grader.definition import Definitions
from grader.desk import Verdict
from grader.results import GradingFaultError
from hone_cli.errors import CliError
from hone_cli.grading.judging import judge
from hone_cli.grading.meter import Meter
from hone_cli.grading.pool import pooled
from hone_cli.grading.session import GIVE_UP_AFTER, Outage
from hone_cli.grading.sources import Work, one_by_one, record_of
from hone_cli.grading.summary import MAX_BOOTSTRAP_TASKS, summarise
from hone_cli.plain import filled, plain
from hone_cli.watching import StopButton
from trajectory.types import (
    Attribution,
    ChatMessage,
    Failure,
    FailureKind,
    GraderErrorKind,
    Masked,
    OutcomeKind,
    Reward,
    Role,
    Scored,
    Task,
)


async def test_pool_does_everything_with_bounded_parallelism() -> None:
    under_way, most = 0, 0

    async def do(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return item * item

    found: list[int] = []
    items = one_by_one(range(50))
    assert await pooled(items, do, found.append, parallel=4, button=StopButton())
    assert sorted(found) == [n * n for n in range(50)]
    assert most == 4


async def test_first_press_takes_nothing_new_and_finishes_what_is_under_way() -> None:
    button, gate = StopButton(), asyncio.Event()

    async def do(item: int) -> int:
        if item == 1:
            button.press()
            gate.set()
        else:
            await gate.wait()
        return item

    found: list[int] = []
    complete = await pooled(one_by_one(range(9)), do, found.append, parallel=2, button=button)
    assert not complete
    assert sorted(found) == [0, 1]


async def test_second_press_leaves_what_is_under_way() -> None:
    button, never = StopButton(), asyncio.Event()

    async def do(item: int) -> int:
        if item == 1:
            await asyncio.sleep(0)
            button.press()
            button.press()
        await never.wait()
        return item

    found: list[int] = []
    complete = await pooled(one_by_one(range(9)), do, found.append, parallel=2, button=button)
    assert (complete, found) == (False, [])


async def test_press_after_the_last_item_is_no_stop() -> None:
    button = StopButton()

    async def do(item: int) -> int:
        await asyncio.sleep(0)
        return item

    found: list[int] = []
    assert await pooled(one_by_one([1]), do, found.append, parallel=3, button=button)
    assert found == [1]


async def test_source_that_breaks_ends_the_pool() -> None:
    async def source() -> AsyncIterator[int]:
        yield 1
        raise CliError("the console is away")

    async def do(item: int) -> int:
        return item

    found: list[int] = []
    with pytest.raises(CliError, match="away"):
        await pooled(source(), do, found.append, parallel=2, button=StopButton())
    assert found == [1]


def test_meter_says_how_many_failed() -> None:
    now, told = [0.0], list[str]()
    meter = Meter(4, live=False, write=told.append, clock=lambda: now[0])
    for failed in (True, False):
        now[0] += 10
        meter.tick(failed=failed)
    assert told[-1] == "graded 2/4 (1 failed), 0.1/s, about 20.0 s left\n"


def test_outage_is_noticed_once_and_not_for_rows_that_fail_by_themselves() -> None:
    away, wrong = (
        replace(failure(FailureKind.GRADER, GraderErrorKind.SERVER), retryable=retryable)
        for retryable in (True, False)
    )
    outage = Outage()
    mixed = [*[away] * (GIVE_UP_AFTER - 1), wrong]
    assert not any(outage.lasts(outcome) for outcome in mixed * 2)
    assert [outage.lasts(away) for _ in range(2 * GIVE_UP_AFTER)].index(True) == GIVE_UP_AFTER - 1
    assert not outage.lasts(away)


def test_meter_tells_rate_and_time_left() -> None:
    now, told = [0.0], list[str]()
    meter = Meter(110, live=False, write=told.append, clock=lambda: now[0])
    for _ in range(10):
        meter.skip()
    for _ in range(40):
        now[0] += 0.5
        meter.tick()
    meter.close()
    assert told == [
        "graded 20/100, 2/s, about 40.0 s left\n",
        "graded 40/100, 2/s, about 30.0 s left\n",
    ]


# One response.


class Desk:
    """Answers with what a test wrote down."""

    def __init__(self, *answers: Exception | Scored) -> None:
        self.answers = list(answers)
        self.definitions = Definitions(package_version="1")

    async def judge(self, record: Any, grader_json: str) -> Verdict:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Verdict(outcome=answer, grader_version="v")

    def definition(self, grader_json: str) -> Any:
        return self.definitions.parse(grader_json)

    def version_of(self, grader_json: str) -> str:
        return "v"


def work() -> Work:
    task = Task(task_id="t", messages=(ChatMessage(role=Role.USER, content=("q",)),))
    response = (ChatMessage(role=Role.ASSISTANT, content=("a",)),)
    definition = '{"type": "answer", "reference": "1"}'
    record = record_of(task, response, grader_json=definition)
    return Work(row_id="r", task_id="t", grader_json=definition, record=record)


async def judged(*answers: Exception | Scored) -> tuple[GradedRow, list[float]]:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    desk: Any = Desk(*answers)
    return await judge(desk, work(), pause=pause), pauses


def fault(*, retryable: bool) -> GradingFaultError:
    return GradingFaultError("away", kind=GraderErrorKind.SERVER, retryable=retryable, client=False)


async def test_fault_that_may_pass_is_tried_again() -> None:
    row, pauses = await judged(fault(retryable=True), Scored(rewards=(), score=1.0))
    assert isinstance(row.outcome, Scored)
    assert pauses == [1.0]


async def test_fault_that_stays_is_a_failure_of_its_kind() -> None:
    row, pauses = await judged(*[fault(retryable=True)] * 3)
    assert isinstance(row.outcome, Failure)
    assert row.outcome.grader_error is GraderErrorKind.SERVER
    assert len(pauses) == 2


async def test_grader_that_breaks_costs_its_own_row_alone() -> None:
    row, pauses = await judged(ZeroDivisionError("no"))
    assert isinstance(row.outcome, Failure)
    assert (row.outcome.grader_error, pauses) == (GraderErrorKind.INTERNAL, [])
    assert "ZeroDivisionError: no" in row.outcome.detail


# Figures.


def scored(task: int, score: float, *, kind: OutcomeKind | None = None) -> GradedRow:
    reward = Reward(name="a", value=score, weight=1, grader_name="x", grader_version="v")
    return GradedRow(
        row_id=f"r{task}-{score}",
        task_id=f"t{task}",
        outcome=Scored(rewards=(reward,), score=score, kind=kind),
    )


def other(outcome: Masked | Failure) -> GradedRow:
    return GradedRow(row_id="x", task_id="x", outcome=outcome)


def failure(kind: FailureKind, stopped: GraderErrorKind | None) -> Failure:
    return Failure(
        kind=kind,
        retryable=False,
        attributable=Attribution.INFRA,
        detail="",
        grader_error=stopped,
    )


def test_figures_count_every_row_once() -> None:
    rows = [
        scored(1, 1.0),
        scored(2, 0.0, kind=OutcomeKind.FORMAT),
        other(Masked(kind=OutcomeKind.EXTRACTION, reason="")),
        other(Masked(kind=None, reason="")),
        other(failure(FailureKind.GRADER, GraderErrorKind.TIMEOUT)),
        other(failure(FailureKind.ENGINE, None)),
    ]
    found = summarise(rows, seed=0)
    assert (found.num_rows, found.num_scored, found.num_success, found.num_failed) == (6, 2, 1, 2)
    assert found.kinds == {"format": 1}
    assert found.masked == {"extraction": 1, "no opinion": 1}
    assert found.failed == {"grader (timeout)": 1, "engine": 1}
    assert found.score is not None and found.score.value == 0.5


def test_different_causes_of_one_kind_of_failure_are_shown() -> None:
    kind = failure(FailureKind.GRADER, GraderErrorKind.SERVER)
    said = ["asked by another", "asked by another", "connection refused"]
    rows = [
        replace(other(replace(kind, detail=detail)), row_id=f"r{index}")
        for index, detail in enumerate(said)
    ]
    examples = summarise(rows, seed=0).failure_examples
    assert examples == {"grader (server)": ["r0: asked by another", "r2: connection refused"]}


def test_nothing_scored_has_no_mean() -> None:
    assert summarise([other(Masked(kind=None, reason=""))], seed=0).score is None


def test_many_tasks_get_the_normal_interval() -> None:
    size = 4 * MAX_BOOTSTRAP_TASKS
    found = summarise([scored(i, float(i % 2)) for i in range(size)], seed=0).score
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / size**0.5, rel=1e-3)


def test_samples_of_one_task_are_one_draw() -> None:
    rows = [scored(1, 1.0)] * 50 + [scored(2, 0.0)] * 2
    found = summarise(rows, seed=0).score
    assert found is not None
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


# Messages as plain values and back.


def test_message_survives_plain_values() -> None:
    record = events_pb2.RolloutRecord(
        stop_reason=events_pb2.STOP_REASON_MAX_TURNS,
        sandbox_id="sbx_1",
        turns=[events_pb2.TurnRecord(turn=1, policy_version=7)],
        tokens={
            "rows": [{"token_ids": [1], "loss_mask": [True], "logprobs": [-0.5]}],
            "sampling": {"seed": 0, "temperature": 0.5},
        },
    )
    record.turns[0].generate_duration.FromTimedelta(timedelta(seconds=1.5))
    record.start_time.FromJsonString("2026-01-31T00:00:00.25Z")
    assert filled(events_pb2.RolloutRecord(), plain(record)) == record
    reward = outcome_pb2.Reward(name="a", value=0.5, parts={"precision": 0.25})
    reply = console_pb2.GetRolloutResponse(
        reward_assigned=events_pb2.RewardAssigned(scored=outcome_pb2.Scored(rewards=[reward]))
    )
    assert filled(console_pb2.GetRolloutResponse(), plain(reply)) == reply


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"turns": [{"turn": "x"}]}, r"turns\[0\].turn: "),
        ({"turn": []}, "turn: unknown key; known are task, messages"),
        ({"start_time": 5}, "start_time: "),
        ({"turns": 5}, "turns: "),
        ({"tokens": {"rows": [{"token_ids": [1.5]}]}}, r"tokens.rows\[0\].token_ids: "),
        ({"task": "t"}, "task: "),
    ],
)
def test_wrong_plain_values_name_their_place(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}"):
        filled(events_pb2.RolloutRecord(), values)
