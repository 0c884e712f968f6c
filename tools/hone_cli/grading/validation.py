"""Does the grader know right from wrong? Each task's gold answer must reach the top, its opposite must not.

A gold answer (see `hone_cli.grading.gold`) that is not accepted as it stands may say `Final Answer:` first.
The opposites are an empty message and the gold answer of another task.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.analysis.rows import GradedRow
from grader.desk import GradingDesk
from hone_cli.grading.gold import gold_of, shown
from hone_cli.grading.graderfile import GraderFile
from hone_cli.grading.judging import Pause, judge
from hone_cli.grading.sources import Work, record_of
from runspec.graderfields import field_value
from trajectory.types import ChatMessage, Failure, Masked, Role, Task

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
    tasks: Mapping[str, Task], grader: GraderFile, *, gold_field: str | None
) -> list[Probe]:
    """Finds each task's gold answer.

    Args:
        tasks: by row.
        grader: says which fields hold the gold answer.
        gold_field: the field that does instead.

    Raises:
        CliError: a task has none, or its gold answer cannot be read.
    """
    golds = [gold_of(task, grader, place=row, gold_field=gold_field) for row, task in tasks.items()]
    texts = [shown(gold) for gold in golds]
    keys = [_key(task, grader) for task in tasks.values()]
    probes = []
    for index, (row_id, task) in enumerate(tasks.items()):
        other = _other(index, texts, keys)
        probes.append(
            Probe(
                row_id=row_id,
                task=task,
                golds=_ways(golds[index]),
                shown=texts[index],
                other=None if other is None else golds[other],
                other_shown="" if other is None else texts[other],
            )
        )
    return probes


async def validate(
    desk: GradingDesk, probe: Probe, grader_json: str, *, pause: Pause
) -> list[Mistake]:
    """Tries one task's gold answer and its opposites; without guards, since these do not show how they came about."""
    grader_json = without_guards(grader_json)
    row = await _best(desk, probe, grader_json, pause)
    mistakes = []
    if not _at_top(row):
        text = f"the gold answer {_quoted(probe.shown)} does not score {row.high:g}"
        mistakes.append(_mistake(probe, "gold", text, row))
    gradable = not isinstance(row.outcome, Failure)
    opposites: list[tuple[str, str, Sequence[ChatMessage]]] = []
    if probe.shown:
        opposites.append(("empty", "an empty message", (ChatMessage(role=Role.ASSISTANT),)))
    if probe.other is not None:
        said = f"another task's gold answer {_quoted(probe.other_shown)}"
        opposites.append(("other", said, probe.other))
    for check, said, response in opposites:
        row = await _graded(desk, probe, response, grader_json, pause)
        if _at_top(row):
            text = f"{said} scores {row.high:g} where {_quoted(probe.shown)} is right"
            mistakes.append(_mistake(probe, check, text, row))
        elif gradable and isinstance(row.outcome, Failure):
            mistakes.append(_mistake(probe, check, f"{said} breaks the grader", row))
    return mistakes


def without_guards(grader_json: str) -> str:
    """A definition without its guards."""
    values = json.loads(grader_json)
    return json.dumps({key: value for key, value in values.items() if key != "guards"})


async def _best(desk: GradingDesk, probe: Probe, grader_json: str, pause: Pause) -> GradedRow:
    """Returns the first way to state the gold answer that reaches the top, else the first way."""
    rows = []
    for gold in probe.golds:
        rows.append(await _graded(desk, probe, gold, grader_json, pause))
        if _at_top(rows[-1]):
            return rows[-1]
    return rows[0]


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


def _ways(gold: tuple[ChatMessage, ...]) -> tuple[tuple[ChatMessage, ...], ...]:
    last = gold[-1]
    if last.role is not Role.ASSISTANT or not last.text:
        return (gold,)
    stated = ChatMessage(
        role=Role.ASSISTANT, content=(f"{STATED}{last.text}",), tool_calls=last.tool_calls
    )
    return (gold, (*gold[:-1], stated))


def _key(task: Task, grader: GraderFile) -> tuple[str, ...]:
    """Returns what the grader reads of a task: where it is the same, so is the right answer."""
    found = (field_value(task.reference, name) for name in sorted(grader.required))
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


def _mistake(probe: Probe, check: str, text: str, row: GradedRow) -> Mistake:
    return Mistake(
        row_id=probe.row_id,
        task_id=probe.task.task_id,
        check=check,
        text=f"{text}: {found_of(row)}",
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
