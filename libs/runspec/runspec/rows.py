"""Task rows in JSONL: {"messages" or "prompt": [... the last from user], "id": optional, any reference fields}.

A prompt may also be a text, which is what the user says. Errors name file, line and field.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from runspec.graderfields import field_value
from runspec.jsonl import Row, read_rows
from runspec.messages import read_messages
from runspec.problems import RowError, RowErrors, described, nearest
from trajectory.types import ChatMessage, Role, Task

Parsed = TypeVar("Parsed")

_MAX_ERRORS = 20
_PROMPT_KEYS = ("messages", "prompt")


@dataclass(slots=True)
class RowProblems:
    """Gathers problems until there are enough to stop."""

    source: str
    found: list[RowError] = field(default_factory=list)

    def add(self, line: int, name: str, message: str) -> None:
        """Notes a problem of a line's field."""
        self.found.append(RowError(line=line, field=name, message=message))

    @property
    def full(self) -> bool:
        """Whether there are enough."""
        return len(self.found) >= _MAX_ERRORS

    def raise_if_any(self) -> None:
        """Raises RowErrors with what was found, if anything was."""
        if self.found:
            raise RowErrors(self.source, self.found[:_MAX_ERRORS], more=self.full)


def parse_rows(
    data: bytes, source: str, read: Callable[[Row, RowProblems], Parsed | None]
) -> list[Parsed]:
    """Reads each row by `read`, which adds its problems and returns None where there are any.

    Raises:
        RowErrors: the first 20 problems.
    """
    errors = RowProblems(source)
    rows: list[Parsed] = []
    for row in read_rows(data, source):
        if errors.full:
            break
        parsed = read(row, errors)
        if parsed is not None:
            rows.append(parsed)
    errors.raise_if_any()
    return rows


def parse_tasks(data: bytes, *, source: str, required: set[str] | frozenset[str]) -> list[Task]:
    """Reads task rows.

    Args:
        data: the JSONL file.
        source: its name, for errors.
        required: reference fields that every row must have, as dotted names; see `required_fields`.

    Raises:
        RowErrors: the first 20 problems.
    """
    errors = RowProblems(source)
    tasks: list[Task] = []
    lines_by_id: dict[str, int] = {}
    for row in read_rows(data, source):
        if errors.full:
            break
        task = read_task(row, required, errors)
        if task is None:
            continue
        first = lines_by_id.setdefault(task.task_id, row.line)
        if first != row.line:
            named = row.value.get("id") is not None
            what = f"found {task.task_id!r}" if named else "the row's content is"
            errors.add(row.line, "id" if named else "", f"{what} again; first on line {first}")
            continue
        tasks.append(task)
    errors.raise_if_any()
    return tasks


def read_task(row: Row, required: set[str] | frozenset[str], errors: RowProblems) -> Task | None:
    """Reads one task row; problems are noted, and the row that has one is None."""
    before = len(errors.found)
    if row.error:
        errors.add(row.line, "", row.error)
        return None
    key = _prompt_key(row, errors)
    if key is None:
        return None
    messages = read_prompt(row, key, errors)
    if messages and messages[-1].role is not Role.USER and len(errors.found) == before:
        place = f"{key}[{len(messages) - 1}].role"
        errors.add(row.line, place, f"found {messages[-1].role}, expected the last to be user")
    reference = {k: v for k, v in row.value.items() if k not in (key, "id") and v is not None}
    for name in sorted(required):
        _check_reference(row, reference, name, errors)
    task_id = row.value.get("id")
    if isinstance(task_id, bool) or not isinstance(task_id, str | int | None) or task_id == "":
        errors.add(row.line, "id", f"found {described(task_id)}, expected a text or a whole number")
    if len(errors.found) > before:
        return None
    stable_id = str(task_id) if task_id is not None else _content_id(row.value)
    return Task(task_id=stable_id, messages=messages, reference=reference)


def _prompt_key(row: Row, errors: RowProblems) -> str | None:
    keys = [key for key in _PROMPT_KEYS if row.value.get(key) is not None]
    if len(keys) == 1:
        return keys[0]
    if keys:
        errors.add(row.line, "prompt", "found messages and prompt, expected one of them")
        return None
    for key in _PROMPT_KEYS:
        if key in row.value:
            errors.add(row.line, key, f"found {described(None)}, expected a question or a task")
            return None
    close = [key for key in row.value if nearest(key, _PROMPT_KEYS)]
    hint = f"; did you mean messages by {close[0]}?" if close else ""
    has = ", ".join(row.value) or "no keys"
    errors.add(row.line, "messages", f"missing; the row has {has}{hint}")
    return None


def read_prompt(row: Row, key: str, errors: RowProblems) -> tuple[ChatMessage, ...]:
    """Reads messages, or the text of a user; problems are noted."""
    value = row.value[key]
    if key == "prompt" and isinstance(value, str):
        if not value.strip():
            errors.add(row.line, key, "found an empty text, expected a question or a task")
        return (ChatMessage(role=Role.USER, content=(value,)),)
    return read_messages(value, key, lambda name, message: errors.add(row.line, name, message))


def _check_reference(
    row: Row, reference: Mapping[str, object], name: str, errors: RowProblems
) -> None:
    value = field_value(reference, name)
    if value is not None and value != "":
        return
    top = re.split(r"[.\[]", name)[0]
    meant = nearest(top, reference) if top not in reference else None
    hint = f"; did you mean {meant}?" if meant else ""
    fields = (
        f"the row's reference fields are {', '.join(reference)}"
        if reference
        else "the row has no reference fields"
    )
    state = "empty" if value == "" or top in row.value else "missing"
    errors.add(
        row.line,
        name,
        f"{state}; the grader reads {{{{item.{name}}}}}, {fields}{hint}",
    )


def _content_id(value: Mapping[str, object]) -> str:
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"task_{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"
