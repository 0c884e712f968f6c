"""Intervals of kappas: percentile bootstrap over items (Efron 1979), by the counts of alike items.

Drawing n items with replacement and counting the kinds drawn is one multinomial draw over the kinds, so a resample
costs as much as there are kinds of item, however many items there are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
"""Resamples behind an interval."""
LEVEL = 0.95
"""Share of the resamples inside an interval."""
_DRAWN_AT_ONCE = 4_000_000

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From counts per resample and kind (r x c) to one number per resample, NaN where it is undefined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a figure lies with 95% confidence."""

    low: float
    high: float
    num_undefined: int
    """Resamples of RESAMPLES in which the figure is undefined; they are left out."""


def low_without_difference(num_items: int, by_chance: float) -> float:
    """Return the low end for raters who never differ: no resample differs either, be it of two items or two thousand.

    It is the kappa, at least -1, at the largest share of differing items that none among so many leaves possible: the
    upper end for 0 of n (Clopper & Pearson 1934), each of them as far apart as labels can be.

    Args:
        num_items: above 0.
        by_chance: distance that chance would leave, above 0: 1 - pe.
    """
    share: float = 1 - ((1 - LEVEL) / 2) ** (1 / num_items)
    return max(-1.0, 1 - share / by_chance)


def interval_of(counts: NDArray[np.int64], statistic: Statistic, seed: int) -> Interval | None:
    """Return the interval of a statistic; None if no resample has a value.

    Args:
        counts: items of each kind, all above 0.
        statistic: computes the figure of many resamples at once.
        seed: equal seeds give equal intervals.
    """
    rng = np.random.default_rng(seed)
    num_items = int(counts.sum())
    shares = counts / num_items
    at_once = max(1, _DRAWN_AT_ONCE // len(counts))
    found = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        found.append(statistic(rng.multinomial(num_items, shares, size=size).astype(np.float64)))
    values = np.concatenate(found)
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), num_undefined=len(values) - len(defined))
