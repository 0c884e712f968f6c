"""Task rows that come with a response, for grading without a rollout.

A task row in any shape of `runspec.rows`, and the response beside it in `response` or `completion`, as text or as a
list of assistant and tool messages; or `messages` that go on after the last user message and end with assistant.
`finish_reason: length` says that the response was cut off.
"""

from dataclasses import dataclass
from typing import cast

from runspec.jsonl import Row
from runspec.messages import read_messages
from runspec.problems import described
from runspec.rows import RowProblems, read_task
from trajectory.types import ChatMessage, Role, Task

RESPONSE_KEYS = ("response", "completion")
FINISH_REASONS = ("stop", "length", "tool_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTask:
    """A task and what an agent said to it."""

    task: Task
    response: tuple[ChatMessage, ...]
    """Assistant and tool messages after the prompt."""
    cut_off: bool = False
    """Whether the last message ended for want of tokens."""


def read_answered(
    row: Row, required: set[str] | frozenset[str], problems: RowProblems
) -> AnsweredTask | None:
    """Reads one row; problems are noted, and the row that has one is None.

    Args:
        row: the line.
        required: reference fields that the row must have, as dotted names.
        problems: takes what is wrong.
    """
    if row.error:
        problems.add(row.line, "", row.error)
        return None
    before = len(problems.found)
    value = dict(row.value)
    keys = [key for key in RESPONSE_KEYS if value.get(key) is not None]
    if len(keys) > 1:
        problems.add(row.line, "completion", "found response and completion, expected one of them")
        return None
    finish = value.pop("finish_reason", None)
    if finish not in (None, *FINISH_REASONS):
        known = ", ".join(FINISH_REASONS)
        problems.add(row.line, "finish_reason", f"found {described(finish)}, expected {known}")
    if keys:
        response = _read_response(row.line, value.pop(keys[0]), keys[0], problems)
    else:
        value["messages"], response = _split(row, problems)
    if len(problems.found) > before:
        return None
    task = read_task(Row(line=row.line, value=value), required, problems)
    if task is None:
        return None
    return AnsweredTask(task=task, response=response, cut_off=finish == "length")


def _read_response(
    line: int, value: object, key: str, problems: RowProblems
) -> tuple[ChatMessage, ...]:
    if isinstance(value, str):
        return (ChatMessage(role=Role.ASSISTANT, content=(value,) if value else ()),)
    messages = read_messages(value, key, lambda name, message: problems.add(line, name, message))
    for index, message in enumerate(messages):
        if message.role not in (Role.ASSISTANT, Role.TOOL):
            place = f"{key}[{index}].role"
            problems.add(line, place, f"found {message.role}, expected assistant or tool")
    return messages


def _split(row: Row, problems: RowProblems) -> tuple[object, tuple[ChatMessage, ...]]:
    """Cuts a whole conversation after its last user message."""
    messages = row.value.get("messages")
    if not isinstance(messages, list):
        has = ", ".join(row.value) or "no keys"
        problems.add(row.line, "response", f"missing; the row has {has}")
        return messages, ()
    roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
    end = max((i + 1 for i, role in enumerate(roles) if role == "user"), default=0)
    if end == len(messages):
        what = "missing; the row has no response or completion, and messages end with user"
        problems.add(row.line, "response", what)
        return messages, ()
    before = len(problems.found)
    read = read_messages(
        messages, "messages", lambda name, message: problems.add(row.line, name, message)
    )
    if len(problems.found) == before and read[-1].role is not Role.ASSISTANT:
        place = f"messages[{len(read) - 1}].role"
        problems.add(row.line, place, f"found {read[-1].role}, expected the last to be assistant")
    return cast("list[object]", messages)[:end], read[end:]
