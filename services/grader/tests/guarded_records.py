"""Records with calls, and what guards of a definition say about them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.instruments.all import Instruments
from trajectory.types import (
    ChatMessage,
    Role,
    RolloutRecord,
    Scored,
    ToolCall,
    ToolCallRecord,
)

MakeRecord = Callable[..., RolloutRecord]
ANSWER = {"type": "answer", "reference": "{{item.answer}}"}
CLIPS = "Natalia sold 48 clips in April and half as many in May. How many did she sell altogether?"


def tool_call(name: str, arguments: object, result: str, error_kind: str = "") -> ToolCallRecord:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = ToolCall(tool_call_id="c", name=name, arguments_json=text)
    return ToolCallRecord(call=call, result=result, error_kind=error_kind)


def record_with(
    make_record: MakeRecord,
    text: str,
    *calls: ToolCallRecord,
    prompt: str = CLIPS,
    item: dict[str, object] | None = None,
    before: str = "",
) -> RolloutRecord:
    """A record of one turn with calls, if there are any, and a last message."""
    made = make_record(text, item=item)
    asked = ChatMessage(role=Role.USER, content=(prompt,))
    first = ChatMessage(
        role=Role.ASSISTANT, content=(before,), tool_calls=tuple(call.call for call in calls)
    )
    told = tuple(
        ChatMessage(role=Role.TOOL, content=(call.result,), tool_call_id="c") for call in calls
    )
    said = (asked, first, *told, made.messages[-1]) if calls else (asked, made.messages[-1])
    turns = (replace(made.turns[0], tool_calls=calls), replace(made.turns[0], turn=1))
    return replace(made, messages=said, turns=turns if calls else turns[1:])


async def outcome_of(
    instruments: Instruments,
    record: RolloutRecord,
    guards: Mapping[str, object],
    grader: Mapping[str, object] = ANSWER,
) -> Any:
    desk = GradingDesk(Definitions(package_version="1"), instruments)
    return (await desk.judge(record, json.dumps({**grader, "guards": guards}))).outcome


async def flags_of(
    instruments: Instruments,
    record: RolloutRecord,
    name: str,
    options: Mapping[str, object] | None = None,
    grader: Mapping[str, object] = ANSWER,
) -> list[str]:
    outcome = await outcome_of(instruments, record, {name: options or {}}, grader)
    assert isinstance(outcome, Scored), outcome
    assert [flag.name for flag in outcome.flags] in ([], [name])
    return [flag.detail for flag in outcome.flags]
