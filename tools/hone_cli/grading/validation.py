"""Does the grader know right from wrong? Each task's gold answer must reach the top, its opposite must not.

The gold answer is the task's `gold` or `solution` (or the field that --gold names), else what the grader's `reference`
reads, with the calls that its `expected` reads. A text that is not accepted as it stands may say `Final Answer:` first.
The opposites are an empty message and the gold answer of another task.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.analysis.rows import GradedRow
from grader.desk import GradingDesk
from hone_cli.errors import USAGE, CliError
from hone_cli.grading.graderfile import GraderFile
from hone_cli.grading.judging import Pause, judge
from hone_cli.grading.sources import Work, record_of
from runspec.messages import read_messages
from trajectory.types import ChatMessage, Failure, Masked, Role, Task, ToolCall

GOLD_FIELDS = ("gold", "solution")
TOLERANCE = 1e-9
STATED = "Final Answer: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A task and what to try on it."""

    row_id: str
    task: Task
    golds: tuple[tuple[ChatMessage, ...], ...]
    """Ways to state the gold answer; one must do."""
    shown: str
    """The gold answer, for people."""
    other: tuple[ChatMessage, ...] | None
    """Another task's gold answer; None if all are the same."""
    other_shown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that the grader got wrong."""

    row_id: str
    task_id: str
    check: str
    """gold, empty or other."""
    text: str


def probes_of(
    tasks: Sequence[Task], grader: GraderFile, *, source: str, gold_field: str | None
) -> list[Probe]:
    """Finds each task's gold answer.

    Raises:
        CliError: a task has none, or its gold answer cannot be read.
    """
    golds = [_gold(task, grader, source, gold_field) for task in tasks]
    shown = [_shown(gold) for gold in golds]
    keys = [_key(task, grader) for task in tasks]
    probes = []
    for index, (task, gold) in enumerate(zip(tasks, golds, strict=True)):
        other = _other(index, shown, keys)
        probes.append(
            Probe(
                row_id=task.task_id,
                task=task,
                golds=_ways(gold),
                shown=shown[index],
                other=None if other is None else golds[other],
                other_shown="" if other is None else shown[other],
            )
        )
    return probes


async def validate(
    desk: GradingDesk, probe: Probe, grader_json: str, *, pause: Pause
) -> list[Mistake]:
    """Tries one task's gold answer and its opposites."""
    mistakes = []
    row: GradedRow | None = None
    for gold in probe.golds:
        row = await _graded(desk, probe, gold, grader_json, pause)
        if _at_top(row):
            break
    else:
        assert row is not None
        text = (
            f"the gold answer {_quoted(probe.shown)} does not score {row.high:g}: {found_of(row)}"
        )
        mistakes.append(_mistake(probe, "gold", text))
    empty = (ChatMessage(role=Role.ASSISTANT),)
    row = await _graded(desk, probe, empty, grader_json, pause)
    if _at_top(row):
        text = f"an empty message scores {row.high:g}: {found_of(row)}"
        mistakes.append(_mistake(probe, "empty", text))
    if probe.other is not None:
        row = await _graded(desk, probe, probe.other, grader_json, pause)
        if _at_top(row):
            text = (
                f"another task's gold answer {_quoted(probe.other_shown)} scores {row.high:g} "
                f"where {_quoted(probe.shown)} is right: {found_of(row)}"
            )
            mistakes.append(_mistake(probe, "other", text))
    return mistakes


def found_of(row: GradedRow) -> str:
    """What the grader said, in a line."""
    outcome = row.outcome
    if isinstance(outcome, Failure):
        stopped = f" ({outcome.grader_error})" if outcome.grader_error else ""
        return f"could not be graded{stopped}: {outcome.detail}"
    if isinstance(outcome, Masked):
        return f"masked{f' ({outcome.kind})' if outcome.kind else ''}: {outcome.reason}"
    rewards = "; ".join(
        f"{reward.name} {reward.value:g}: {reward.explanation}" for reward in outcome.rewards
    )
    return f"score {outcome.score:g}{f' ({outcome.kind})' if outcome.kind else ''}; {rewards}"


async def _graded(
    desk: GradingDesk, probe: Probe, response: Sequence[ChatMessage], grader_json: str, pause: Pause
) -> GradedRow:
    work = Work(
        row_id=probe.row_id,
        task_id=probe.task.task_id,
        grader_json=grader_json,
        record=record_of(probe.task, response, grader_json=grader_json),
    )
    return await judge(desk, work, pause=pause)


def _at_top(row: GradedRow) -> bool:
    return row.scored is not None and row.scored.score >= row.high - TOLERANCE


def _gold(
    task: Task, grader: GraderFile, source: str, gold_field: str | None
) -> tuple[ChatMessage, ...]:
    names = [gold_field] if gold_field else [n for n in GOLD_FIELDS if n in task.reference]
    if not names:
        names = grader.fields_at("reference")[:1] + grader.fields_at("expected")[:1]
    if not names:
        raise CliError(
            f"{source}: task {task.task_id} has neither {' nor '.join(GOLD_FIELDS)}, and the grader's "
            "reference reads no field of it; name the field of the gold answer by --gold FIELD",
            USAGE,
        )
    if gold_field or names[0] in GOLD_FIELDS:
        names = names[:1]
    messages: list[ChatMessage] = []
    for name in reversed(names):
        messages += _messages(_value(task, name, source), f"{source}: task {task.task_id}: {name}")
    return tuple(messages)


def _value(task: Task, name: str, source: str) -> object:
    value = _at(task, name)
    if value is None:
        has = ", ".join(task.reference) or "none"
        raise CliError(
            f"{source}: task {task.task_id}: {name}: missing; its reference fields are {has}", USAGE
        )
    return value


def _at(task: Task, name: str) -> object:
    value: object = task.reference
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _messages(value: object, place: str) -> tuple[ChatMessage, ...]:
    """Turns a gold answer into what an agent would have said."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        if all("role" in item for item in value):
            return _read("a list of messages", value, place)
        if all("name" in item or "function" in item for item in value):
            return _with_calls(value, place)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return (ChatMessage(role=Role.ASSISTANT, content=(text,)),)


def _with_calls(calls: Sequence[Mapping[str, object]], place: str) -> tuple[ChatMessage, ...]:
    shaped = [call if "function" in call else {"function": call} for call in calls]
    (said,) = _read("a list of calls", [{"role": "assistant", "tool_calls": shaped}], place)
    named = [
        ToolCall(tool_call_id=f"call_{i}", name=call.name, arguments_json=call.arguments_json)
        for i, call in enumerate(said.tool_calls)
    ]
    results = [ChatMessage(role=Role.TOOL, tool_call_id=call.tool_call_id) for call in named]
    return (ChatMessage(role=Role.ASSISTANT, tool_calls=tuple(named)), *results)


def _read(what: str, value: object, place: str) -> tuple[ChatMessage, ...]:
    problems: list[str] = []
    messages = read_messages(value, "", lambda name, text: problems.append(f"{name}: {text}"))
    if problems:
        raise CliError(f"{place}: is {what} with a problem: {problems[0]}", USAGE)
    return messages


def _ways(gold: tuple[ChatMessage, ...]) -> tuple[tuple[ChatMessage, ...], ...]:
    last = gold[-1]
    if last.role is not Role.ASSISTANT or not last.text:
        return (gold,)
    stated = ChatMessage(
        role=Role.ASSISTANT, content=(f"{STATED}{last.text}",), tool_calls=last.tool_calls
    )
    return (gold, (*gold[:-1], stated))


def _shown(gold: Sequence[ChatMessage]) -> str:
    calls = [f"{c.name}({c.arguments_json})" for message in gold for c in message.tool_calls]
    return " ".join([*calls, gold[-1].text]).strip()


def _key(task: Task, grader: GraderFile) -> tuple[str, ...]:
    """Returns what the grader reads of a task: where it is the same, so is the right answer."""
    found = (_at(task, name) for name in sorted(grader.required))
    return tuple(json.dumps(value, sort_keys=True) for value in found)


def _other(index: int, shown: Sequence[str], keys: Sequence[tuple[str, ...]]) -> int | None:
    """Returns the next task with another gold answer, going round."""
    for step in range(1, len(shown)):
        other = (index + step) % len(shown)
        same_key = bool(keys[index]) and keys[index] == keys[other]
        if not same_key and not _same(shown[index], shown[other]):
            return other
    return None


def _same(left: str, right: str) -> bool:
    if " ".join(left.split()).casefold() == " ".join(right.split()).casefold():
        return True
    try:
        return float(left) == float(right)
    except ValueError:
        return False


def _mistake(probe: Probe, check: str, text: str) -> Mistake:
    return Mistake(row_id=probe.row_id, task_id=probe.task.task_id, check=check, text=text)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
