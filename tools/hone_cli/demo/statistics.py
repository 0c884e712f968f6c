"""Means with intervals, and differences of paired measurements: plain functions, seeded.

Rollouts of one task are not independent, so every interval here resamples tasks, never single rollouts.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


TaskValues = Mapping[str, Sequence[float]]
"""task_id to the values of its samples."""


def mean_of_tasks(values: TaskValues) -> float:
    """Returns the mean over tasks of each task's mean.

    Raises:
        ValueError: there is no value.
    """
    if not values or any(not samples for samples in values.values()):
        raise ValueError("every task needs at least one value")
    return _mean([_mean(samples) for samples in values.values()])


def bootstrap_mean(values: TaskValues, rng: random.Random) -> Estimate:
    """Returns the mean with its percentile bootstrap interval over tasks (Efron 1979)."""
    means = [_mean(samples) for samples in values.values()]
    return Estimate(value=mean_of_tasks(values), **_interval(means, _mean, rng))


def paired_difference(before: TaskValues, after: TaskValues, rng: random.Random) -> Estimate:
    """Returns mean(after) - mean(before) over the same tasks, with its bootstrap interval.

    Raises:
        ValueError: the two do not cover the same tasks.
    """
    return pooled_difference([(before, after)], rng)


def pooled_difference(
    pairs: Sequence[tuple[TaskValues, TaskValues]], rng: random.Random
) -> Estimate:
    """Returns the difference over several seeds together: each seed's tasks count as tasks of their own.

    Raises:
        ValueError: before and after of a pair do not cover the same tasks.
    """
    differences: list[float] = []
    for before, after in pairs:
        if before.keys() != after.keys():
            odd = sorted(before.keys() ^ after.keys())[:3]
            raise ValueError(f"before and after cover different tasks, for example {odd}")
        differences += [_mean(after[task]) - _mean(before[task]) for task in before]
    if not differences:
        raise ValueError("there is no task to compare")
    return Estimate(value=_mean(differences), **_interval(differences, _mean, rng))


def wilson(successes: int, trials: int) -> Estimate:
    """Returns a proportion with its score interval (Wilson 1927).

    Raises:
        ValueError: the counts make no proportion.
    """
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no proportion")
    z = 1.959964
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return Estimate(value=share, low=max(0.0, middle - half), high=min(1.0, middle + half))


def _interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], rng: random.Random
) -> dict[str, float]:
    resampled = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    cut = round((1 - CONFIDENCE) / 2 * NUM_RESAMPLES)
    return {"low": resampled[cut], "high": resampled[-cut - 1]}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
