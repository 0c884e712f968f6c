"""Runs side by side: settings that differ, figures at the same steps, and who did better on held-out tasks.

Pure; `queries` asks the services, `render_compare` writes for people. The others are compared with the first run.
"""

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from hone_cli.bradley_terry import NoStrengths, strengths
from hone_cli.demo.statistics import Estimate, TaskValues, paired_difference

_HIGHER = re.compile(
    r"(eval/)?(reward/(mean|best_of_k)|success_rate|pass@\d+|accuracy|rewards/(accuracies|margins|probability|.+/mean))"
)
_LOWER = re.compile(r"(eval/)?loss|time/.*")
_OF_CONTENT = re.compile(r"task_[0-9a-f]{16}")
MIN_TASKS = 5
"""Below it an interval says nothing."""

_MAIN = ("reward/mean", "rewards/accuracies", "loss", "eval/reward/mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What a run's last evaluation gave, task by task."""

    step: int
    """Updates before it."""
    data_set: str
    scores: TaskValues
    num_unscored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run as far as it is compared."""

    run_id: str
    algorithm: str
    state: str
    step: int
    settings: Mapping[str, object]
    steps: Sequence[tuple[int, Mapping[str, float]]]
    """Figures by step, from 0, in order."""
    held_out: HeldOut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """A value and the step that had it."""

    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of all runs; None where a run does not report it."""

    name: str
    common_step: int | None
    """The last step at which all runs that report it do so."""
    at_common_step: Sequence[float | None]
    best: Sequence[Extreme | None]
    """None also where neither high nor low is good."""
    last: Sequence[Extreme | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a run does against the first on the tasks that both evaluated; the estimate is None for the reason given."""

    run_id: str
    num_tasks: int
    num_left_out: int
    """Tasks that only one of the two has scored."""
    estimate: Estimate | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """In a word: better, worse, or no clear difference."""
        if self.estimate is None:
            return "unknown"
        if self.estimate.low > 0:
            return "better"
        return "worse" if self.estimate.high < 0 else "no clear difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How strong each run is on the tasks that all evaluated, by who did better on each (Bradley-Terry)."""

    num_tasks: int
    strengths: Sequence[float] | None
    """In the order of the runs, with geometric mean 1: run i does better than j with chance s_i / (s_i + s_j)."""
    reason: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that differs."""

    runs: Sequence[RunFigures]
    settings: Mapping[str, Sequence[object]]
    """Settings that are not the same in all runs; None where a run has none."""
    figures: Sequence[Figure]
    main: str
    """The figure to look at first; empty where there is none."""
    curves: Mapping[int, Sequence[float | None]]
    """The main figure by step."""
    differences: Sequence[Difference] = field(default=())
    ranking: Ranking | None = None
    """Of three runs or more."""


def compare(runs: Sequence[RunFigures]) -> Comparison:
    """Compares at least two runs. A figure that is not a number is as one that was not told."""
    runs = [replace(run, steps=_told(run.steps)) for run in runs]
    names = dict.fromkeys(name for run in runs for _, metrics in run.steps for name in metrics)
    main = next((name for name in _MAIN if name in names), "")
    return Comparison(
        runs=runs,
        settings=_differing([run.settings for run in runs]),
        figures=[_figure(name, runs) for name in sorted(names)],
        main=main,
        curves=_curves(main, runs),
        differences=[_difference(runs[0], run) for run in runs[1:]],
        ranking=_ranking(runs) if len(runs) > 2 else None,
    )


def held_out_of(scored: Iterable[tuple[int, str, float | None]], data_set: str) -> HeldOut | None:
    """Puts the last evaluation of a run together; None if there was none.

    Args:
        scored: step, task and score of each slot's rollout that counts; None where it has no score.
        data_set: which set the tasks are of.
    """
    found = list(scored)
    if not found:
        return None
    last = max(step for step, _, _ in found)
    scores: dict[str, list[float]] = {}
    missing = 0
    for step, task_id, score in found:
        if step == last and score is not None:
            scores.setdefault(task_id, []).append(score)
        missing += step == last and score is None
    return HeldOut(step=last, data_set=data_set, scores=scores, num_unscored=missing)


def news(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of `after` that `before` does not tell; what is not a number is no news of such."""
    return {
        name: value
        for name, value in after.items()
        if before.get(name) != value and not (math.isnan(value) and name in before)
    }


def _told(steps: Sequence[tuple[int, Mapping[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    return [
        (step, {name: value for name, value in found.items() if math.isfinite(value)})
        for step, found in steps
    ]


def _differing(settings: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    names = sorted({name for one in settings for name in one})
    rows = {name: [one.get(name) for one in settings] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _figure(name: str, runs: Sequence[RunFigures]) -> Figure:
    series = [{step: found[name] for step, found in run.steps if name in found} for run in runs]
    told = [one for one in series if one]
    common = set.intersection(*(set(one) for one in told))
    step = max(common) if common and len(told) > 1 else None
    better = max if _HIGHER.fullmatch(name) else min if _LOWER.fullmatch(name) else None
    return Figure(
        name=name,
        common_step=step,
        at_common_step=[one.get(step) if step is not None else None for one in series],
        best=[
            _extreme(one, better(one, key=one.__getitem__)) if better and one else None
            for one in series
        ],
        last=[_extreme(one, max(one)) if one else None for one in series],
    )


def _extreme(series: Mapping[int, float], step: int) -> Extreme:
    return Extreme(step=step, value=series[step])


def _curves(main: str, runs: Sequence[RunFigures]) -> dict[int, list[float | None]]:
    series = [dict(run.steps) for run in runs]
    steps = sorted({step for one in series for step, found in one.items() if main in found})
    return {step: [one.get(step, {}).get(main) for one in series] for step in steps}


def _difference(first: RunFigures, other: RunFigures) -> Difference:
    def without(reason: str, count: int = 0, left_out: int = 0) -> Difference:
        return Difference(
            run_id=other.run_id,
            num_tasks=count,
            num_left_out=left_out,
            estimate=None,
            reason=reason,
        )

    before, after = first.held_out, other.held_out
    for run in (first, other):
        if run.held_out is None:
            return without(f"the archive has no evaluation of {run.run_id}")
    assert before is not None
    assert after is not None
    same_set = before.data_set == after.data_set
    shared = _shared([before, after])
    left_out = len(before.scores.keys() | after.scores.keys()) - len(shared)
    if len(shared) < MIN_TASKS:
        what = "" if same_set else " of different data sets"
        reason = f"both have scored {len(shared)} same tasks{what}, and fewer than {MIN_TASKS} tell nothing"
        return without(reason, len(shared), left_out)
    estimate = paired_difference(
        {task: before.scores[task] for task in shared},
        {task: after.scores[task] for task in shared},
        random.Random(0),
    )
    return Difference(
        run_id=other.run_id, num_tasks=len(shared), num_left_out=left_out, estimate=estimate
    )


def _shared(evaluations: Sequence[HeldOut]) -> list[str]:
    """Returns the tasks that all have scored.

    Ids that a person gave may stand for other tasks in another set; those made of the content do not.
    """
    first = evaluations[0]
    same_set = all(one.data_set == first.data_set for one in evaluations)
    return [
        task
        for task in first.scores
        if all(task in one.scores for one in evaluations)
        and (same_set or _OF_CONTENT.fullmatch(task))
    ]


def _ranking(runs: Sequence[RunFigures]) -> Ranking:
    evaluations = [run.held_out for run in runs if run.held_out is not None]
    tasks = _shared(evaluations) if len(evaluations) == len(runs) else []
    if len(tasks) < MIN_TASKS:
        reason = f"all have scored {len(tasks)} same tasks, and fewer than {MIN_TASKS} tell nothing"
        return Ranking(num_tasks=len(tasks), strengths=None, reason=reason)
    means = [[fmean(one.scores[task]) for task in tasks] for one in evaluations]
    wins = [
        [sum(_won(a, b) for a, b in zip(mine, theirs, strict=True)) for theirs in means]
        for mine in means
    ]
    try:
        return Ranking(num_tasks=len(tasks), strengths=strengths(wins))
    except NoStrengths as error:
        return Ranking(num_tasks=len(tasks), strengths=None, reason=str(error))


def _won(mine: float, theirs: float) -> float:
    """Returns 1 for a win, and half of one for a tie."""
    return 0.5 if math.isclose(mine, theirs, abs_tol=1e-9) else float(mine > theirs)
