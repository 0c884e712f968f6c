"""What repeated samples of tasks say: pass@k, how far scores lie apart, and what a group could learn from them.

Plain functions of numbers. Two words are kept apart: a sample is *right* if its graders call it a success, as
`success_rate` counts; whether a task has *signal* is a matter of its scores alone, as it is in training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from learner.rollouts.ledger import NO_SPREAD

MIN_SAMPLES = 2
"""Scored samples that a task needs for its spread to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSamples:
    """The samples of one task that were scored."""

    task_id: str
    scores: tuple[float, ...]
    """In the order of the samples; those that were not scored are left out."""
    num_right: int
    """Samples that succeeded."""

    @property
    def is_told(self) -> bool:
        """Whether there are enough samples to tell the spread."""
        return len(self.scores) >= MIN_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpread:
    """How far the scores of one task lie apart."""

    mean: float
    best: float
    variance_population: float
    """Of these scores: divided by their number n."""
    variance_sample: float
    """Estimate for the policy: divided by n - 1."""
    has_signal: bool
    """The scores differ by more than a group without spread may."""
    always_right: bool
    """Every score is full: 1 or more."""
    always_wrong: bool
    """No score is above 0."""

    @property
    def name(self) -> str:
        """The class of the task: spread, always_right, always_wrong, or constant (one score in between)."""
        if self.has_signal:
            return "spread"
        if self.always_right:
            return "always_right"
        return "always_wrong" if self.always_wrong else "constant"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Returns the chance that one of k samples is right, without bias, from n samples of which c were right.

    1 - C(n - c, k) / C(n, k) as a product of factors in [0, 1] (Chen et al. 2021, arXiv:2107.03374, section 2.1).

    Raises:
        ValueError: more are right than there are, or k is not in 1 to n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples of which {c} are right does not exist")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def task_spread(scores: Sequence[float]) -> TaskSpread:
    """Returns how far the scores of a task lie apart; scores that a group takes for equal are equal here.

    Raises:
        ValueError: there are fewer than two.
    """
    n = len(scores)
    if n < MIN_SAMPLES:
        raise ValueError(f"the spread of {n} scores is unknown; {MIN_SAMPLES} or more tell it")
    mean, best, worst = fmean(scores), max(scores), min(scores)
    squares = math.fsum((score - mean) ** 2 for score in scores)
    has_signal = best - worst > NO_SPREAD
    return TaskSpread(
        mean=mean,
        best=best,
        variance_population=squares / n,
        variance_sample=squares / (n - 1),
        has_signal=has_signal,
        always_right=not has_signal and worst >= 1.0 - NO_SPREAD,
        always_wrong=not has_signal and best <= NO_SPREAD,
    )


def informative_fraction(shares: Sequence[float], group_size: int) -> float:
    """Returns the chance that the scores of a group differ, if each is drawn with these chances (which sum to 1).

    1 - sum p^G; with two scores, 1 - p^G - (1 - p)^G (dynamic sampling of DAPO, arXiv:2503.14476, section 3.2).
    """
    return 1.0 - math.fsum(share**group_size for share in shares)


def shares_of(scores: Sequence[float]) -> list[float]:
    """Returns how often each score occurs, as a share, lowest score first."""
    counts: list[int] = []
    first = -math.inf
    for score in sorted(scores):
        if score - first > NO_SPREAD:
            first = score
            counts.append(0)
        counts[-1] += 1
    return [count / len(scores) for count in counts]


def bernoulli_variance(p: float) -> float:
    """Returns the variance of a success with chance p: p (1 - p), largest at 1/2."""
    return p * (1.0 - p)


def spread_metrics(tasks: Sequence[TaskSamples], group_size: int) -> dict[str, float]:
    """Returns the figures of an evaluation; every one is a mean over the tasks with two scored samples or more.

    pass@k is told for k = 1, 2, 4, ... over the tasks that have k scored samples.

    Args:
        tasks: the tasks that were measured.
        group_size: rollouts of a group in training.
    """
    told = [task for task in tasks if task.is_told]
    counts = {
        "tasks/measured": float(len(told)),
        "tasks/too_few_samples": float(len(tasks) - len(told)),
    }
    if not told:
        return counts
    spreads = [task_spread(task.scores) for task in told]
    chances = [task.num_right / len(task.scores) for task in told]
    return {
        **counts,
        **_pass_rates(told),
        "success_variance": fmean(bernoulli_variance(chance) for chance in chances),
        "tasks/spread_share": fmean(spread.has_signal for spread in spreads),
        "tasks/always_right_share": fmean(spread.always_right for spread in spreads),
        "tasks/always_wrong_share": fmean(spread.always_wrong for spread in spreads),
        "tasks/constant_share": fmean(spread.name == "constant" for spread in spreads),
        "reward/variance": fmean(spread.variance_population for spread in spreads),
        "reward/best_of_k": fmean(spread.best for spread in spreads),
        "reward/potential_gain": fmean(spread.best - spread.mean for spread in spreads),
        "groups/informative_share": fmean(
            informative_fraction(shares_of(task.scores), group_size) for task in told
        ),
    }


def _pass_rates(told: Sequence[TaskSamples]) -> dict[str, float]:
    most = max(len(task.scores) for task in told)
    return {
        f"pass@{k}": fmean(
            pass_at_k(len(task.scores), task.num_right, k) for task in told if len(task.scores) >= k
        )
        for k in (1 << power for power in range(most.bit_length()))
    }
