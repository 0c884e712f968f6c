"""Figures of graded rows: means with intervals, and what became of the rest."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grader.analysis.rows import GradedRow
from hone_cli.demo.statistics import bootstrap_mean
from trajectory.types import Failure, Masked

MAX_BOOTSTRAP_TASKS = 1000
"""Above it the normal interval over tasks is as good and takes no time."""
MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean over tasks of each task's mean, with its 95% interval."""

    value: float
    low: float | None
    """None for a single task, which says nothing of how tasks differ."""
    high: float | None
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSummary:
    """One named reward over all rows that have it."""

    name: str
    weight: float
    """0 for one that is measured only."""
    mean: Mean
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a grading found."""

    num_rows: int
    num_scored: int
    num_success: int
    """Scored, and nothing fell short."""
    num_failed: int
    score: Mean | None
    """None without a scored row."""
    rewards: Sequence[RewardSummary]
    kinds: Mapping[str, int]
    """Of scored rows that did not succeed, most frequent first."""
    masked: Mapping[str, int]
    failed: Mapping[str, int]
    """By what failed; grading faults by their kind, for example grader (timeout)."""
    failure_examples: Mapping[str, Sequence[str]]
    """For each of these what was said, at most MAX_EXAMPLES different things, with the first row of each."""
    flags: Mapping[str, int]
    errors: Mapping[str, int]
    """Of rewards that are measured only, by name and kind."""


def summarise(rows: Sequence[GradedRow], *, seed: int) -> Summary:
    """Works the figures out; intervals resample tasks, as responses to one task are not independent."""
    rng = random.Random(seed)
    scored = [(row, row.scored) for row in rows if row.scored is not None]
    scores: dict[str, list[float]] = {}
    values: dict[str, dict[str, list[float]]] = {}
    weights: dict[str, float] = {}
    for row, judged in scored:
        scores.setdefault(row.task_id, []).append(judged.score)
        for reward in judged.rewards:
            weights.setdefault(reward.name, reward.weight)
            of_task = values.setdefault(reward.name, {})
            of_task.setdefault(row.task_id, []).append(reward.value)
    failures = [row.outcome for row in rows if isinstance(row.outcome, Failure)]
    said: dict[str, dict[str, str]] = {}
    for row in rows:
        if isinstance(row.outcome, Failure):
            details = said.setdefault(_failure(row.outcome), {})
            if len(details) < MAX_EXAMPLES:
                details.setdefault(row.outcome.detail, row.row_id)
    masked = [row.outcome for row in rows if isinstance(row.outcome, Masked)]
    return Summary(
        num_rows=len(rows),
        num_scored=len(scored),
        num_success=sum(judged.kind is None for _, judged in scored),
        num_failed=len(failures),
        score=_mean(scores, rng) if scores else None,
        rewards=[
            RewardSummary(
                name=name,
                weight=weights[name],
                mean=_mean(by_task, rng),
                num_rows=sum(map(len, by_task.values())),
            )
            for name, by_task in values.items()
        ],
        kinds=_counted(str(judged.kind) for _, judged in scored if judged.kind is not None),
        masked=_counted(str(outcome.kind or "no opinion") for outcome in masked),
        failed=_counted(map(_failure, failures)),
        failure_examples={
            kind: [f"{row_id}: {detail}" for detail, row_id in details.items()]
            for kind, details in said.items()
        },
        flags=_counted(flag.name for _, judged in scored for flag in judged.flags),
        errors=_counted(
            f"{error.name} ({error.kind})" for _, judged in scored for error in judged.errors
        ),
    )


def _mean(by_task: Mapping[str, Sequence[float]], rng: random.Random) -> Mean:
    size = len(by_task)
    if 1 < size <= MAX_BOOTSTRAP_TASKS:
        found = bootstrap_mean(by_task, rng)
        return Mean(value=found.value, low=found.low, high=found.high, num_tasks=size)
    means = [math.fsum(values) / len(values) for values in by_task.values()]
    mean = math.fsum(means) / size
    if size == 1:
        return Mean(value=mean, low=None, high=None, num_tasks=1)
    spread = math.fsum((value - mean) ** 2 for value in means) / (size - 1)
    half = 1.959964 * math.sqrt(spread / size)
    return Mean(value=mean, low=mean - half, high=mean + half, num_tasks=size)


def _failure(outcome: Failure) -> str:
    stopped = f" ({outcome.grader_error})" if outcome.grader_error is not None else ""
    return f"{outcome.kind}{stopped}"


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())
