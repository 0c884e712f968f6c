"""What there is to grade: rows of a file, as records that graders take."""

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hone.events.v1 import events_pb2

from hone_cli.errors import USAGE, CliError
from hone_cli.grading.graderfile import GraderFile
from hone_cli.plain import filled
from runspec.answered import AnsweredTask, read_answered
from runspec.jsonl import Row, read_rows
from runspec.problems import RowErrors
from runspec.rows import RowProblems, parse_tasks
from trajectory.convert import rollout_record_from_proto
from trajectory.types import (
    ChatMessage,
    Failure,
    Role,
    RolloutRecord,
    SamplingParams,
    StopReason,
    Task,
    TokenRecord,
    ToolCallRecord,
    TurnRecord,
)

T = TypeVar("T")
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One response to grade, or the failure that left none."""

    row_id: str
    task_id: str
    step: int | None = None
    phase: str = ""
    grader_json: str = ""
    digest: str = ""
    record: RolloutRecord | None = None
    failure: Failure | None = None
    """Set where there is no record."""


def read_file(path: Path) -> bytes:
    """Reads a data file.

    Raises:
        CliError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror or error}", USAGE) from error


def check_rows(
    data: bytes, grader: GraderFile, *, source: str, limit: int | None = None
) -> list[str]:
    """Reads every row once, so that nothing is graded before all are sound; returns their ids.

    Raises:
        CliError: the first 20 problems, or the grader needs what such rows do not have.
    """
    problems = RowProblems(source)
    ids = []
    try:
        for row in islice(read_rows(data, source), limit):
            if problems.full:
                break
            work = _work(row, grader, problems)
            if work is not None:
                ids.append(work.row_id)
        problems.raise_if_any()
    except RowErrors as error:
        raise CliError(str(error), USAGE) from error
    return ids


async def works_of_file(
    data: bytes, grader: GraderFile, *, source: str, limit: int | None = None
) -> AsyncIterator[Work]:
    """Yields checked rows, each read only when it is graded: records take many times the memory of their text.

    Rows hold responses, or stored records as `hone rollout ID --json` prints them.
    """
    problems = RowProblems(source)
    for row in islice(read_rows(data, source), limit):
        work = _work(row, grader, problems)
        assert work is not None
        yield work


def tasks_of_file(data: bytes, grader: GraderFile, *, source: str) -> dict[str, Task]:
    """Reads task rows without responses; returns tasks by file and line.

    Raises:
        CliError: the first 20 problems.
    """
    try:
        tasks = parse_tasks(data, source=source, required=grader.required)
        lines = [row.line for row in read_rows(data, source)]
    except RowErrors as error:
        raise CliError(str(error), USAGE) from error
    name = Path(source).name
    return {f"{name}:{line}": task for line, task in zip(lines, tasks, strict=True)}


def record_of(
    task: Task,
    response: Sequence[ChatMessage],
    *,
    grader_json: str,
    stop_reason: StopReason = StopReason.COMPLETED,
) -> RolloutRecord:
    """Makes a record of a conversation: a turn per assistant message, no tokens, no times."""
    results = {m.tool_call_id: m.text for m in response if m.role is Role.TOOL}
    said = [message for message in response if message.role is Role.ASSISTANT]
    turns = tuple(
        TurnRecord(
            turn=index,
            policy_version=0,
            prompt_token_count=0,
            sampled_token_count=0,
            generate_seconds=0.0,
            tools_seconds=0.0,
            tool_calls=tuple(
                ToolCallRecord(call=call, result=results.get(call.tool_call_id, ""))
                for call in message.tool_calls
            ),
        )
        for index, message in enumerate(said)
    )
    return RolloutRecord(
        task=task,
        messages=(*task.messages, *response),
        tokens=TokenRecord(rows=(), sampling=SamplingParams()),
        stop_reason=stop_reason,
        sandbox_id="",
        turns=turns,
        grader_json=grader_json,
        start_time=_NO_TIME,
        end_time=_NO_TIME,
    )


async def one_by_one(items: Sequence[T]) -> AsyncIterator[T]:
    """Yields items as a source does that has to ask for them."""
    for item in items:
        yield item


def _work(row: Row, grader: GraderFile, problems: RowProblems) -> Work | None:
    row_id = f"{Path(problems.source).name}:{row.line}"
    canonical = json.dumps(row.value, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    if "record" in row.value or "stop_reason" in row.value:
        record = _stored_record(row, problems)
    else:
        answered = read_answered(row, grader.required, problems)
        record = None if answered is None else _answered_record(row, answered, grader, problems)
    if record is None:
        return None
    return Work(
        row_id=row_id,
        task_id=record.task.task_id,
        grader_json=grader.text,
        digest=digest,
        record=record,
    )


def _answered_record(
    row: Row, answered: AnsweredTask, grader: GraderFile, problems: RowProblems
) -> RolloutRecord | None:
    if grader.counts_tokens:
        text = (
            "the grader counts policy_tokens, which only stored records have; "
            "use unit characters, or grade a run's rollouts with --run"
        )
        problems.add(row.line, "", text)
        return None
    stop = StopReason.MAX_TOKENS if answered.cut_off else StopReason.COMPLETED
    return record_of(answered.task, answered.response, grader_json=grader.text, stop_reason=stop)


def _stored_record(row: Row, problems: RowProblems) -> RolloutRecord | None:
    value, path = row.value, ""
    if "record" in value:
        inner = value["record"]
        if not isinstance(inner, dict):
            problems.add(row.line, "record", "found no object, expected a rollout record")
            return None
        value, path = inner, "record"
    try:
        return rollout_record_from_proto(filled(events_pb2.RolloutRecord(), value, path))
    except ValueError as error:
        name, _, what = str(error).partition(": ")
        problems.add(row.line, name, what)
        return None
