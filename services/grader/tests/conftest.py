"""Fixtures of the grader's tests: one checker process, records, definitions."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from grader.answer.symbolic import SymbolicProcess
from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.instruments.all import Instruments
from trajectory.types import (
    ChatMessage,
    Role,
    RolloutRecord,
    SamplingParams,
    StopReason,
    Task,
    TokenRecord,
    ToolCall,
    ToolCallRecord,
    TurnRecord,
)

MakeRecord = Callable[..., RolloutRecord]
EPOCH = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture(scope="session")
def symbolic() -> Iterator[SymbolicProcess]:
    process = SymbolicProcess(timeout_seconds=3.0)
    yield process
    process.close()


@pytest.fixture
def instruments(symbolic: SymbolicProcess) -> Instruments:
    return Instruments(symbolic=symbolic)


@pytest.fixture
def desk(instruments: Instruments) -> GradingDesk:
    return GradingDesk(Definitions(package_version="1.2.3"), instruments)


@pytest.fixture
def demo_json() -> str:
    answer = {"type": "answer", "reference": "{{item.answer}}"}
    reward = {
        "name": "reward",
        "type": "efficiency",
        "weight": 1,
        "answer": answer,
        "penalty": 0.15,
        "minimum": 1,
    }
    return json.dumps(
        {"type": "multi", "graders": [reward, {"name": "accuracy", "weight": 0, **answer}]}
    )


@pytest.fixture
def make_record(demo_json: str) -> MakeRecord:
    def make(
        text: str = "Final Answer: 72",
        *,
        item: dict[str, object] | None = None,
        calls: int = 0,
        call_error: str = "",
        stop_reason: StopReason = StopReason.COMPLETED,
        grader_json: str = demo_json,
        pending_call: bool = False,
    ) -> RolloutRecord:
        call = ToolCall(tool_call_id="c", name="calculator", arguments_json='{"expression": "1"}')
        made = tuple(
            ToolCallRecord(call=call, result="1", error_kind=call_error) for _ in range(calls)
        )
        turn = TurnRecord(
            turn=0,
            policy_version=1,
            prompt_token_count=3,
            sampled_token_count=5,
            generate_seconds=0.1,
            tools_seconds=0.1,
            tool_calls=made,
        )
        said = ChatMessage(
            role=Role.ASSISTANT, content=(text,), tool_calls=(call,) if pending_call else ()
        )
        asked = ChatMessage(role=Role.USER, content=("How many clips?",))
        return RolloutRecord(
            task=Task(task_id="t", messages=(asked,), reference=item or {"answer": "72"}),
            messages=(asked, said),
            tokens=TokenRecord(rows=(), sampling=SamplingParams()),
            stop_reason=stop_reason,
            sandbox_id="",
            turns=(turn,),
            grader_json=grader_json,
            start_time=EPOCH,
            end_time=EPOCH,
        )

    return make


WithTurns = Callable[..., RolloutRecord]


def made_call(name: str, arguments: str, result: str = "1", error_kind: str = "") -> ToolCallRecord:
    call = ToolCall(tool_call_id="c", name=name, arguments_json=arguments)
    return ToolCallRecord(call=call, result=result, error_kind=error_kind)


@pytest.fixture
def with_turns() -> WithTurns:
    """Give a record turns; each is a list of calls: name, arguments as JSON, result, kind of error."""

    def give(record: RolloutRecord, *turns: Sequence[Sequence[str]]) -> RolloutRecord:
        made = (
            replace(
                record.turns[0], turn=turn, tool_calls=tuple(made_call(*call) for call in calls)
            )
            for turn, calls in enumerate(turns)
        )
        return replace(record, turns=tuple(made))

    return give
