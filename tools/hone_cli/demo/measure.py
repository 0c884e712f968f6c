"""What an evaluation says about each of its rollouts, and the figures made of that."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone_cli.demo.statistics import Estimate, bootstrap_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One scored rollout of an evaluation."""

    task_id: str
    rollout_id: str
    reward: float
    right: bool
    tool_calls: int
    sampled_tokens: int
    seconds: float
    unreadable: bool = False
    """An answer was stated that the grader could not read; it counts as wrong here, and is counted."""


class LostRolloutsError(Exception):
    """An evaluation lacks rollouts, so that its figures would not be those of all tasks."""


FIGURES = ("reward", "right", "tool_calls", "sampled_tokens", "seconds")
"""Attributes of Measured that are averaged, in the order of the table."""


def measured_from(rows: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Reads the rows of `hone rollout --run RUN --json`.

    A masked rollout counts as wrong: leaving it out would measure other tasks before than after.

    Raises:
        LostRolloutsError: a slot was not judged; such an evaluation must not pass for a whole one.
    """
    lost = [row for row in current(rows) if row["outcome"] not in ("scored", "masked")]
    if lost:
        raise LostRolloutsError(
            f"{len(lost)} rollouts of the evaluation were not judged, for example "
            f"{lost[0]['rollout_id']}; `hone rollout {lost[0]['rollout_id']}` says why"
        )
    return [
        Measured(
            task_id=row["task_id"],
            rollout_id=row["rollout_id"],
            reward=float(row["score"]) if row["outcome"] == "scored" else 0.0,
            right=row["outcome"] == "scored" and not row["kind"],
            tool_calls=int(row["tool_call_count"]),
            sampled_tokens=int(row["sampled_token_count"]),
            seconds=float(row["duration"]),
            unreadable=row["outcome"] == "masked",
        )
        for row in current(rows)
    ]


def current(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the rows of the attempt that fills each slot."""
    newest: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for row in rows:
        slot = row["slot"]
        key = tuple(slot[name] for name in ("phase", "step", "group_index", "sample_index"))
        if key not in newest or row["attempt"] > newest[key]["attempt"]:
            newest[key] = row
    return list(newest.values())


def by_task(rollouts: Sequence[Measured], figure: str) -> dict[str, list[float]]:
    """Returns the values of one figure by task."""
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        values.setdefault(rollout.task_id, []).append(float(getattr(rollout, figure)))
    return values


def estimates(rollouts: Sequence[Measured], rng: random.Random) -> dict[str, Estimate]:
    """Returns every figure with its 95 % interval over tasks."""
    return {figure: bootstrap_mean(by_task(rollouts, figure), rng) for figure in FIGURES}


def unreadable_note(rollouts: Sequence[Measured]) -> str:
    """Says how many answers could not be read and what accuracy is without them; empty if none."""
    count = sum(rollout.unreadable for rollout in rollouts)
    if not count:
        return ""
    readable = [rollout for rollout in rollouts if not rollout.unreadable]
    without = sum(rollout.right for rollout in readable) / len(readable) if readable else 0.0
    return (
        f"{count} of {len(rollouts)} answers could not be read and count as wrong; "
        f"accuracy without them {without:.3f}"
    )
