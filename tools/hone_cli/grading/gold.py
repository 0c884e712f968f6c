"""The gold answer of a task, as what an agent would have said.

It is the task's `gold` or `solution`, or the field that --gold names: a text, any other value as JSON, or a list of
assistant and tool messages. Otherwise it is what the grader's `reference` reads, after the calls that its `expected`
reads (forms of calls: `grader.calls`).
"""

import json
from collections.abc import Mapping

from grader.calls import Expected, ExpectedCallsError, read_expected
from hone_cli.errors import USAGE, CliError
from hone_cli.grading.graderfile import GraderFile
from runspec.graderfields import field_value
from runspec.messages import read_messages
from trajectory.types import ChatMessage, Role, Task, ToolCall

GOLD_FIELDS = ("gold", "solution")


def gold_of(
    task: Task, grader: GraderFile, *, place: str, gold_field: str | None
) -> tuple[ChatMessage, ...]:
    """Returns the gold answer.

    Raises:
        CliError: there is none, or it cannot be read; names the row (`place`) and the field.
    """
    names = [gold_field] if gold_field else [n for n in GOLD_FIELDS if n in task.reference]
    if names:
        return _said(_value(task, names[0], place), f"{place}: {names[0]}")
    answers, calls = grader.fields_at("reference"), grader.fields_at("expected")
    if not answers and not calls:
        raise CliError(
            f"{place}: the task has neither {' nor '.join(GOLD_FIELDS)}, and the grader's reference "
            "reads no field of it; name the field of the gold answer by --gold FIELD",
            USAGE,
        )
    messages: tuple[ChatMessage, ...] = ()
    for name in calls[:1]:
        messages += _calls(_value(task, name, place), f"{place}: {name}")
    for name in answers[:1]:
        messages += (_text(_value(task, name, place)),)
    return messages or (ChatMessage(role=Role.ASSISTANT),)


def shown(gold: tuple[ChatMessage, ...]) -> str:
    """The gold answer in a line."""
    calls = [f"{c.name}({c.arguments_json})" for message in gold for c in message.tool_calls]
    return " ".join([*calls, gold[-1].text]).strip()


def _value(task: Task, name: str, place: str) -> object:
    value = field_value(task.reference, name)
    if value is None:
        has = ", ".join(task.reference) or "none"
        raise CliError(f"{place}: {name}: missing; the row's reference fields are {has}", USAGE)
    return value


def _said(value: object, place: str) -> tuple[ChatMessage, ...]:
    roles = [item.get("role") if isinstance(item, dict) else None for item in _list(value)]
    if not roles or None in roles:
        return (_text(value),)
    problems: list[str] = []
    messages = read_messages(value, "", lambda name, text: problems.append(f"{name}: {text}"))
    if problems:
        raise CliError(f"{place}: is no list of messages: {problems[0]}", USAGE)
    return messages


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> ChatMessage:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return ChatMessage(role=Role.ASSISTANT, content=(text,))


def _calls(value: object, place: str) -> tuple[ChatMessage, ...]:
    try:
        expected = read_expected(value)
    except ExpectedCallsError as error:
        raise CliError(f"{place}: {error}", USAGE) from error
    calls = tuple(
        ToolCall(
            tool_call_id=f"call_{index}",
            name=call.name,
            arguments_json=json.dumps(_arguments(call), ensure_ascii=False),
        )
        for index, call in enumerate(expected)
    )
    if not calls:
        return ()
    results = (ChatMessage(role=Role.TOOL, tool_call_id=call.tool_call_id) for call in calls)
    return (ChatMessage(role=Role.ASSISTANT, tool_calls=calls), *results)


def _arguments(call: Expected) -> dict[str, object]:
    """Takes the first accepted value of each argument that must be there."""
    return {
        name: _first(values[0]) if call.nested else values[0]
        for name, values in call.accepted.items()
        if values and not (call.nested and "" in values)
    }


def _first(value: object) -> object:
    """Takes the first accepted value inside objects too."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: _first(inner[0]) if isinstance(inner, list) and inner else inner
        for name, inner in value.items()
    }
