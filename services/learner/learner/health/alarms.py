"""Alarms over the figures of a run: pure functions of the series, no clock, no disk.

A run is healthy while what it is paid for, what it is meant to do, and how it speaks move together. Each detector reads
the figures of the steps so far and returns a sentence, or nothing. A fall or rise counts only where it is both large
(the limit) and clear of the noise (SIGMAS standard errors), so that a small batch does not raise alarms.

Series: one mapping of figures per step that is done, oldest first; a figure may be missing from a step. Units: rewards
as the grader gives them, entropy and KL in nats per policy token.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

Figures = Mapping[str, float]
"""Figures of one step, by name."""

TRAINING_REWARD = "reward/mean"
HELD_OUT_REWARD = "eval/reward/mean"
ENTROPY = "entropy"
KL = "kl"
REPETITION = "completions/repetition"
OFF_TASK = "health/off_task/logprob"
PREFIX = "alarms/"
"""The figure `alarms/<kind>` is 1 in the step in which an alarm was raised."""

SIGMAS = 5.0
"""Standard errors of a difference of means that count as clear of the noise, after searching for the best window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When figures are no longer healthy; a limit of 0 switches its alarm off."""

    window: int = 5
    """Steps over which means are taken; at least 2."""
    reward_fall: float = 0.3
    """reward_collapse: fall of the training reward from its best window, as a share of the best."""
    entropy_floor: float = 0.1
    """entropy_collapse: share of the first window's entropy."""
    repetition_rise: float = 0.2
    """repetition: rise of the share of repeated 4-grams over the first window."""
    forgetting: float = 0.05
    """forgetting: relative fall of the off-task log-probability from its first value."""
    hacking_gap: float = 0.05
    """reward_hacking: by which the training reward rises while the held-out reward falls, as shares of each."""
    kl_rise: float = 0.1
    """kl_drift: nats per token by which the KL grows past the best reward."""
    held_out: str = HELD_OUT_REWARD
    """Figure that says how good the policy truly is: the held-out reward, or a component that is not paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that a person should look at."""

    kind: str
    """A name of DETECTORS."""
    detail: str
    """What was found, in a sentence with the figures."""


def new_alarms(history: Sequence[Figures], limits: Limits) -> list[Alarm]:
    """Returns the alarms that hold after the last step of `history` and did not hold before it."""
    before = {alarm.kind for alarm in standing_alarms(history[:-1], limits)}
    return [alarm for alarm in standing_alarms(history, limits) if alarm.kind not in before]


def standing_alarms(history: Sequence[Figures], limits: Limits) -> list[Alarm]:
    """Returns the alarms that hold after the last step of `history`."""
    found = ((kind, detect(history, limits)) for kind, detect in DETECTORS.items())
    return [Alarm(kind=kind, detail=detail) for kind, detail in found if detail]


def reward_collapse(history: Sequence[Figures], limits: Limits) -> str:
    """Says by how much the training reward has fallen from its best window, if it has."""
    rewards = _Series.of(history, TRAINING_REWARD, limits.window)
    if not limits.reward_fall or not rewards.is_long:
        return ""
    best = rewards.best()
    fall = rewards.mean(best) - rewards.last
    if fall <= 0 or fall < max(limits.reward_fall * rewards.scale(best), rewards.noise(best)):
        return ""
    return (
        f"the mean reward over {rewards.window} steps fell from {rewards.mean(best):.4g} to "
        f"{rewards.last:.4g}"
    )


def entropy_collapse(history: Sequence[Figures], limits: Limits) -> str:
    """Says how little of the first entropy is left, if it is too little."""
    entropy = _Series.of(history, ENTROPY, limits.window)
    if not limits.entropy_floor or not entropy.is_long:
        return ""
    first = entropy.mean(0)
    if first <= 0 or entropy.last >= limits.entropy_floor * first:
        return ""
    return (
        f"the entropy fell from {first:.3g} to {entropy.last:.3g} nats a token: the policy hardly "
        "explores any more"
    )


def repetition(history: Sequence[Figures], limits: Limits) -> str:
    """Says how much more the completions repeat themselves, if they do."""
    shares = _Series.of(history, REPETITION, limits.window)
    if not limits.repetition_rise or not shares.is_long:
        return ""
    rise = shares.last - shares.mean(0)
    if rise < max(limits.repetition_rise, shares.noise(0)):
        return ""
    return (
        f"the share of repeated 4-grams rose from {shares.mean(0):.3g} to {shares.last:.3g}: "
        "completions repeat themselves"
    )


def forgetting(history: Sequence[Figures], limits: Limits) -> str:
    """Says how much likelihood the off-task texts have lost; they are the same texts each time, so no noise."""
    values = [figures[OFF_TASK] for figures in history if OFF_TASK in figures]
    if not limits.forgetting or len(values) < 2 or not values[0]:
        return ""
    change = (values[-1] - values[0]) / abs(values[0])
    if change > -limits.forgetting:
        return ""
    return (
        f"the log-probability of the off-task texts fell from {values[0]:.4g} to {values[-1]:.4g} "
        f"a token ({change:+.1%})"
    )


def reward_hacking(history: Sequence[Figures], limits: Limits) -> str:
    """Says that the training reward rose while the held-out reward fell, if that is so.

    The shape of over-optimisation (Gao, Schulman, Hilton 2022): the paid reward goes on rising after the true one has
    turned. The held-out reward's best window is compared with its last one, and the training reward over the same time.
    """
    held_out = _held_out(history, limits)
    rewards = _Series.of(history, TRAINING_REWARD, limits.window)
    if not limits.hacking_gap or not held_out.is_long or not rewards.is_long:
        return ""
    best = held_out.best()
    start = rewards.index_of(held_out.steps[best])
    if start > len(rewards.values) - 2 * rewards.window:
        return ""
    fall = held_out.mean(best) - held_out.last
    rise = rewards.last - rewards.mean(start)
    gap = limits.hacking_gap
    if fall <= 0 or fall < max(gap * held_out.scale(best), held_out.noise(best)):
        return ""
    if rise <= 0 or rise < max(gap * abs(rewards.last), rewards.noise(start)):
        return ""
    return (
        f"{TRAINING_REWARD} rose from {rewards.mean(start):.4g} to {rewards.last:.4g} while "
        f"{limits.held_out} fell from {held_out.mean(best):.4g} to {held_out.last:.4g}: "
        "the policy may be exploiting the grader"
    )


def kl_drift(history: Sequence[Figures], limits: Limits) -> str:
    """Says that the policy has moved away from its reference without gain since its best reward, if it has.

    The reward is the held-out one where it is measured, else the training reward.
    """
    kl = _Series.of(history, KL, limits.window)
    reward = _held_out(history, limits)
    name = limits.held_out
    if not reward.values:
        reward, name = _Series.of(history, TRAINING_REWARD, limits.window), TRAINING_REWARD
    if not limits.kl_rise or not kl.is_long or not reward.is_long:
        return ""
    best = reward.best()
    start = min(kl.index_of(reward.steps[best]), len(kl.values) - kl.window)
    rise = kl.last - kl.mean(start)
    if rise < max(limits.kl_rise, kl.noise(start)) or kl.last < 2 * kl.mean(start):
        return ""
    if reward.last > reward.mean(best):
        return ""
    return (
        f"the KL to the reference rose from {kl.mean(start):.3g} to {kl.last:.3g} nats a token "
        f"since {name} was at its best ({reward.mean(best):.4g}; {reward.last:.4g} at last)"
    )


DETECTORS: Mapping[str, Callable[[Sequence[Figures], Limits], str]] = {
    "reward_collapse": reward_collapse,
    "entropy_collapse": entropy_collapse,
    "repetition": repetition,
    "forgetting": forgetting,
    "reward_hacking": reward_hacking,
    "kl_drift": kl_drift,
}
"""Each takes the history and the limits, and says what is wrong or nothing."""


def _held_out(history: Sequence[Figures], limits: Limits) -> "_Series":
    """Returns the held-out reward; where only some steps have it, two measurements make a window."""
    count = sum(limits.held_out in figures for figures in history)
    window = limits.window if count > len(history) // 2 else 2
    return _Series.of(history, limits.held_out, window)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One figure over the steps that have it."""

    values: Sequence[float]
    steps: Sequence[int]
    """Positions in the history."""
    errors: Sequence[float]
    """Standard error of each value, where the figures allow to tell it."""
    window: int

    @classmethod
    def of(cls, history: Sequence[Figures], name: str, window: int) -> "_Series":
        steps = [at for at, figures in enumerate(history) if math.isfinite(_value(figures, name))]
        return cls(
            values=[history[at][name] for at in steps],
            steps=steps,
            errors=[_standard_error(history[at], name) for at in steps],
            window=window,
        )

    @property
    def is_long(self) -> bool:
        """Whether there are two windows to compare."""
        return len(self.values) >= 2 * self.window

    def mean(self, start: int) -> float:
        """Returns the mean of the window that begins at a value."""
        return fmean(self.values[start : start + self.window])

    @property
    def last(self) -> float:
        """Mean of the last window."""
        return fmean(self.values[-self.window :])

    def best(self) -> int:
        """Returns where the best window begins, of those that end before the last one begins."""
        starts = range(len(self.values) - 2 * self.window + 1)
        return max(starts, key=self.mean)

    def scale(self, best: int) -> float:
        """Returns what a fall from the best is measured by: the best itself, or the way up to it."""
        return max(abs(self.mean(best)), self.mean(best) - min(map(self.mean, range(best + 1))))

    def index_of(self, step: int) -> int:
        """Returns the first value at or after a position in the history."""
        return next((i for i, at in enumerate(self.steps) if at >= step), len(self.steps))

    def noise(self, start: int) -> float:
        """Returns SIGMAS standard errors of the difference between the window at `start` and the last one.

        A step's own noise is told in three ways, of which the greatest holds: by its rollouts, by the spread inside the
        two windows (rare rewards are noisy only where they come), and by the scatter of the differences of neighbours,
        which a trend leaves alone.
        """
        windows = (slice(start, start + self.window), slice(-self.window, None))
        jumps = [b - a for a, b in zip(self.values, self.values[1:], strict=False)]
        by_steps = variance(jumps)
        by_rollouts = sum(fmean(e**2 for e in self.errors[window]) for window in windows)
        by_spread = 0.0
        if self.window > 2:
            by_spread = sum(variance(self.values[window]) for window in windows)
        return SIGMAS * math.sqrt(max(by_steps, by_rollouts, by_spread) / self.window)


def _value(figures: Figures, name: str) -> float:
    return figures.get(name, math.nan)


def _standard_error(figures: Figures, name: str) -> float:
    """Returns the standard error of `<part>reward/mean` by its deviation and count; 0 where they are not told."""
    part = name.removesuffix(TRAINING_REWARD)
    if part == name:
        return 0.0
    deviation, count = figures.get(f"{part}reward/std", 0.0), figures.get(f"{part}rollouts/ok", 0.0)
    return deviation / math.sqrt(count) if count > 0 else 0.0
