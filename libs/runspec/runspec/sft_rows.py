"""Rows to imitate in JSONL, in the three shapes that users know.

    {"messages": [... the last from assistant]}                    all that the assistant says is learned
    {"prompt": text or messages, "completion": text or messages}   only what the assistant says in the completion
    {"text": ...}                                                  every token, and the end of the sequence

The first two take "tools" and go through the model's chat template, a text as what the user or the assistant says; the
third goes to the model as it stands. Other columns are not read. Errors name file, line and field.
"""

from dataclasses import dataclass

from runspec.jsonl import Row
from runspec.messages import Note, read_messages, read_tools
from runspec.problems import described, nearest
from runspec.rows import RowProblems, parse_rows, read_prompt
from trajectory.types import ChatMessage, Role, ToolDefinition

_SHAPES = ("messages", "prompt", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRow:
    """One conversation or text to imitate."""

    messages: tuple[ChatMessage, ...] = ()
    """The conversation; empty where the row is a text."""
    num_given: int = 0
    """How many messages at the start are not learned, whoever says them: the prompt of a completion."""
    text: str = ""
    """Learned whole; empty where the row is a conversation."""
    tools: tuple[ToolDefinition, ...] = ()


def parse_sft_rows(data: bytes, *, source: str) -> list[SftRow]:
    """Reads rows to imitate.

    Args:
        data: the JSONL file.
        source: its name, for errors.

    Raises:
        RowErrors: the first 20 problems.
    """
    return parse_rows(data, source, _read)


def _read(row: Row, errors: RowProblems) -> SftRow | None:
    before = len(errors.found)
    if row.error:
        errors.add(row.line, "", row.error)
        return None
    key = _shape(row, errors)
    if key is None:
        return None
    for name in row.value:
        meant = nearest(name, ("tools", "completion")) if name not in (*_SHAPES, "id") else None
        if meant not in (None, name):
            errors.add(row.line, name, f"unknown key; did you mean {meant}?")
    made = _read_text(row, errors) if key == "text" else _read_conversation(row, key, errors)
    return made if len(errors.found) == before else None


def _shape(row: Row, errors: RowProblems) -> str | None:
    """Finds the column that says which shape the row has."""
    said = [key for key in _SHAPES if row.value.get(key) is not None]
    if len(said) == 1:
        return said[0]
    if said:
        errors.add(row.line, said[1], f"found {' and '.join(said)}, expected one of them")
        return None
    for key in _SHAPES:
        if key in row.value:
            errors.add(row.line, key, f"found {described(None)}, expected what is to be imitated")
            return None
    close = [(key, nearest(key, _SHAPES)) for key in row.value if nearest(key, _SHAPES)]
    hint = f"; did you mean {close[0][1]} by {close[0][0]}?" if close else ""
    has = ", ".join(row.value) or "no keys"
    what = f"missing, and so are prompt and text; the row has {has}{hint}"
    errors.add(row.line, "messages", what)
    return None


def _read_text(row: Row, errors: RowProblems) -> SftRow:
    text = row.value["text"]
    if not isinstance(text, str) or not text:
        errors.add(row.line, "text", f"found {described(text)}, expected a text to imitate")
    for key in ("completion", "tools"):
        if row.value.get(key) is not None:
            errors.add(row.line, key, "has no effect beside text, which is learned as it stands")
    return SftRow(text=str(text))


def _read_conversation(row: Row, key: str, errors: RowProblems) -> SftRow:
    before = len(errors.found)
    prompt = read_prompt(row, key, errors)
    said = row.value.get("tools")
    tools = read_tools(said, "tools", _noting(row, errors)) if said is not None else ()
    if row.value.get("completion") is not None:
        completion = _read_completion(row, errors)
        if len(errors.found) == before:
            _check_prompt(row, key, prompt, errors)
        return SftRow(messages=prompt + completion, num_given=len(prompt), tools=tools)
    if len(errors.found) == before and prompt[-1].role is not Role.ASSISTANT:
        place = key if key == "prompt" else f"{key}[{len(prompt) - 1}].role"
        hint = "; or add a completion" if key == "prompt" else ""
        what = f"ends with {prompt[-1].role}, expected the last message to be by assistant{hint}"
        errors.add(row.line, place, what)
    return SftRow(messages=prompt, tools=tools)


def _read_completion(row: Row, errors: RowProblems) -> tuple[ChatMessage, ...]:
    value = row.value["completion"]
    if isinstance(value, str) and value:
        return (ChatMessage(role=Role.ASSISTANT, content=(value,)),)
    before = len(errors.found)
    messages = read_messages(value, "completion", _noting(row, errors))
    for index in (0, -1) if len(errors.found) == before else ():
        if messages[index].role is not Role.ASSISTANT:
            place = f"completion[{index % len(messages)}].role"
            where = "first" if index == 0 else "last"
            what = f"found {messages[index].role}, expected the {where} message to be by assistant"
            errors.add(row.line, place, what)
            break
    return messages


def _check_prompt(row: Row, key: str, prompt: tuple[ChatMessage, ...], errors: RowProblems) -> None:
    if prompt[-1].role is Role.ASSISTANT:
        place = f"{key}[{len(prompt) - 1}].role"
        errors.add(row.line, place, "found assistant, expected the completion to be its next turn")


def _noting(row: Row, errors: RowProblems) -> Note:
    return lambda name, message: errors.add(row.line, name, message)
