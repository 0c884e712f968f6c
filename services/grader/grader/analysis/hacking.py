"""Rewards that rise while held-out graders do not: the sign that a policy learns the grader and not the task.

Per reward the mean of each step, and the slope of a straight line through these means. Its interval is a bootstrap-t
one over the residuals (Efron and Tibshirani 1993, section 12.5), which holds its level with few steps. An alarm is
raised for a reward that is trained and one that is held out (weight 0) if the first clearly rises, the second does
not, and clearly moves less than half as much, each in its own standard deviations; or if the second clearly falls. The
level is divided by the number of trained rewards. Steps are taken to be independent, so a run that drifts by itself
alarms more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grader.analysis.errors import TRAINED
from grader.analysis.rows import GradedRow

SCORE = "score"
"""Stands for what is trained in the end: the combined score."""
MIN_STEPS = 5
"""With fewer there is no trend to speak of."""
LEVEL = 0.05
_STILL = 0.1
"""Share of a reward's size below which its standard deviation is not taken for its scale."""
_BEHIND_LEVEL = 0.2
"""Of the interval in which a held-out reward stays behind: that the trained one clearly rises bounds false alarms."""
_SHARE = 0.5
"""Of a trained reward's rise: a held-out one that moves at least so much keeps up."""
NUM_RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRow:
    """One value of one reward."""

    step: int
    name: str
    weight: float
    """0 for a grader that is held out: measured only."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a reward moves over the steps."""

    name: str
    trained: bool
    first: float
    """Mean of the first step."""
    last: float
    slope: float
    """Per step."""
    low: float
    """Of the slope's interval."""
    high: float

    @property
    def rises(self) -> bool:
        """Whether the slope is clearly above 0."""
        return self.low > 0

    @property
    def falls(self) -> bool:
        """Whether the slope is clearly below 0."""
        return self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingAlarm:
    """A reward that is trained and one that is held out, which part ways."""

    trained: str
    held_out: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagShare:
    """How many rollouts of a step a guard flagged."""

    step: int
    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingReport:
    """What the rewards of a run say about each other."""

    num_steps: int
    trends: tuple[Trend, ...]
    alarms: tuple[HackingAlarm, ...]
    flags: tuple[FlagShare, ...]
    """By step and name; guards that never flagged anything are left out."""
    note: str
    """Why nothing can be said; empty if something can."""

    def json(self) -> dict[str, object]:
        """Return the report for machines."""
        return asdict(self)

    def text(self) -> str:
        """Return the report for people."""
        lines = [
            f"{'reward':<24} {'share':>8} {'first':>8} {'last':>8}   slope per step",
            *(_line(trend) for trend in self.trends),
        ]
        lines = lines if self.trends else []
        for name in dict.fromkeys(flag.name for flag in self.flags):
            shares = [flag.share for flag in self.flags if flag.name == name]
            lines.append(
                f"flagged {name}: {shares[0]:.1%} of the first step, {shares[-1]:.1%} of the last"
            )
        lines += [f"ALARM {alarm.text}" for alarm in self.alarms]
        if self.note:
            lines.append(self.note)
        elif not self.alarms:
            lines.append("no reward rises while a held-out grader stays behind")
        return "\n".join(lines)


def hacking_report(
    rows: Iterable[RewardRow],
    flags: Mapping[int, Sequence[Sequence[str]]] | None = None,
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> HackingReport:
    """Compare what is trained with what is held out.

    Args:
        rows: one per rollout and reward.
        flags: by step, for each rollout the guards that flagged it.
        seed: of the bootstrap.
        num_resamples: of the bootstrap.
    """
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    weights: dict[str, float] = {}
    for row in rows:
        values[row.name][row.step].append(row.value)
        weights[row.name] = max(row.weight, weights.get(row.name, 0.0))
    steps = sorted({step for by_step in values.values() for step in by_step})
    shares = _shares(flags or {})
    trained = [name for name in values if weights[name] > 0]
    note = _note(len(steps), trained, [name for name in values if weights[name] == 0])
    if len(steps) < MIN_STEPS:
        return HackingReport(num_steps=len(steps), trends=(), alarms=(), flags=shares, note=note)
    line = _Line(
        rng=np.random.default_rng(seed),
        num_resamples=num_resamples,
        level=LEVEL / max(1, len(trained)),
    )
    series = {
        name: _Series(by_step) for name, by_step in values.items() if len(by_step) >= MIN_STEPS
    }
    trends = tuple(
        one.trend(name, trained=weights[name] > 0, line=line) for name, one in series.items()
    )
    alarms = [
        alarm
        for rising in trends
        if rising.trained and rising.rises
        for held in trends
        if not held.trained
        for alarm in _alarm(rising, held, series, line)
    ]
    return HackingReport(
        num_steps=len(steps), trends=trends, alarms=tuple(alarms), flags=shares, note=note
    )


def hacking_of(rows: Iterable[GradedRow], *, seed: int = 0) -> HackingReport:
    """Compare what the graded rollouts that a run trained on say; rows without a step or a score say nothing."""
    rewards: list[RewardRow] = []
    flags: dict[int, list[Sequence[str]]] = defaultdict(list)
    for row in rows:
        scored = row.scored
        if row.step is None or row.phase not in TRAINED or scored is None:
            continue
        rewards.append(RewardRow(step=row.step, name=SCORE, weight=1.0, value=scored.score))
        rewards += (
            RewardRow(step=row.step, name=r.name, weight=r.weight, value=r.value)
            for r in scored.rewards
            if r.name != SCORE
        )
        flags[row.step].append([flag.name for flag in scored.flags])
    return hacking_report(rewards, flags, seed=seed)


class _Series:
    """A reward by step: means, and values in units of the standard deviation of all."""

    def __init__(self, by_step: Mapping[int, Sequence[float]]) -> None:
        self.steps = np.array(sorted(by_step), dtype=np.float64)
        self.means = np.array([np.mean(by_step[int(step)]) for step in self.steps])
        values = np.concatenate([np.asarray(v, dtype=np.float64) for v in by_step.values()])
        # A reward that hardly varies is not to look lively in units of what little it does.
        spread = max(float(np.std(values)), _STILL * float(np.abs(values).max()))
        self.scaled = self.means / spread if spread > 0 else np.zeros_like(self.means)

    def trend(self, name: str, *, trained: bool, line: "_Line") -> Trend:
        slope, low, high = line.slope(self.steps, self.means)
        return Trend(
            name=name,
            trained=trained,
            first=float(self.means[0]),
            last=float(self.means[-1]),
            slope=slope,
            low=low,
            high=high,
        )

    def ahead_of(self, other: "_Series") -> tuple[Floats, Floats]:
        """Return the common steps, and half this reward less the other, each in its own standard deviations."""
        common, mine, theirs = np.intersect1d(self.steps, other.steps, return_indices=True)
        return common, _SHARE * self.scaled[mine] - other.scaled[theirs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Fits straight lines."""

    rng: np.random.Generator
    num_resamples: int
    level: float

    def slope(self, steps: Floats, means: Floats) -> tuple[float, float, float]:
        """Return the slope and the ends of its bootstrap-t interval."""
        centred = steps - steps.mean()
        slope, error, residuals = _fit(centred, means[None, :])
        # Residuals of a fit are too small by their leverage.
        leverage = 1 / len(steps) + centred**2 / np.sum(centred**2)
        drawn = residuals[0] / np.sqrt(1 - leverage)
        drawn -= drawn.mean()
        fitted = means.mean() + slope[0] * centred
        picks = self.rng.integers(len(steps), size=(self.num_resamples, len(steps)))
        slopes, errors, _ = _fit(centred, fitted + drawn[picks])
        sound = errors > 0
        if error[0] == 0 or not sound.any():
            return float(slope[0]), float(slope[0]), float(slope[0])
        ratios = (slopes[sound] - slope[0]) / errors[sound]
        above, below = np.quantile(ratios, [1 - self.level / 2, self.level / 2])
        return (
            float(slope[0]),
            float(slope[0] - above * error[0]),
            float(slope[0] - below * error[0]),
        )


def _fit(centred: Floats, means: Floats) -> tuple[Floats, Floats, Floats]:
    """Return slopes, their standard errors and residuals, row by row."""
    square = np.sum(centred**2)
    slopes = means @ centred / square
    residuals = means - means.mean(axis=1, keepdims=True) - slopes[:, None] * centred
    variance = np.sum(residuals**2, axis=1) / (len(centred) - 2)
    # What floating point leaves of an exact line is no error.
    variance[variance < 1e-24 * (1 + np.abs(means).max())] = 0.0
    return slopes, np.sqrt(variance / square), residuals


def _alarm(
    rising: Trend, held: Trend, series: Mapping[str, _Series], line: _Line
) -> Iterable[HackingAlarm]:
    if held.rises:
        return
    steps, ahead = series[rising.name].ahead_of(series[held.name])
    behind = replace(line, level=_BEHIND_LEVEL)
    if not held.falls and (len(steps) < MIN_STEPS or behind.slope(steps, ahead)[1] <= 0):
        return
    does = "falls" if held.falls else "does not"
    yield HackingAlarm(
        trained=rising.name,
        held_out=held.name,
        text=f"{rising.name} rises by {_slope(rising)} per step while {held.name}, which is held out, "
        f"{does}: {_slope(held)}",
    )


def _note(num_steps: int, trained: Sequence[str], held_out: Sequence[str]) -> str:
    if num_steps < MIN_STEPS:
        return f"trends need at least {MIN_STEPS} steps, found {num_steps}"
    if not trained:
        return "no reward has a weight above 0, so nothing is trained"
    if not held_out:
        return "nothing is held out; add a grader of weight 0 that is not easily fooled, such as answer"
    return ""


def _shares(flags: Mapping[int, Sequence[Sequence[str]]]) -> tuple[FlagShare, ...]:
    counts = {
        step: Counter(name for names in rollouts for name in set(names))
        for step, rollouts in flags.items()
    }
    names = sorted({name for count in counts.values() for name in count})
    return tuple(
        FlagShare(step=step, name=name, share=counts[step][name] / len(flags[step]))
        for step in sorted(counts)
        for name in names
        if flags[step]
    )


def _line(trend: Trend) -> str:
    share = "trained" if trend.trained else "held out"
    return f"{trend.name:<24} {share:>8} {trend.first:>8.3f} {trend.last:>8.3f}   {_slope(trend)}"


def _slope(trend: Trend) -> str:
    return f"{trend.slope:+.4f} [{trend.low:+.4f}, {trend.high:+.4f}]"
