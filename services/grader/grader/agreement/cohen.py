"""Cohen's kappa of two raters (Cohen 1960, weighted Cohen 1968), with what is needed to read it.

kappa = (po - pe) / (1 - pe): po is the observed agreement, pe the one expected of raters who keep to their own shares
of labels but know nothing of the items. Where both always say the same one label pe is 1 and kappa is undefined:
nothing tells raters who know from raters who never look.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grader.agreement.bootstrap import Interval, interval_of, low_without_difference
from grader.agreement.labels import Scale, refused
from grader.agreement.libraries import cohen_kappa

Weights = Literal["none", "linear", "quadratic"]
"""How far apart two labels are: 0 or 1, by the distance on the scale, by its square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kappa:
    """How well two raters agree."""

    num_items: int
    """Items that both labelled."""
    kappa: float | None
    """None where it is undefined."""
    undefined: str
    """Why it is undefined; empty where it is not."""
    interval: Interval | None
    observed: float
    """Agreement by the weights, from 0 to 1 (po); 0 without items."""
    expected: float
    """The same by chance (pe); 0 without items."""
    agreement: float
    """Share of items with equal labels: po without weights."""
    prevalence_index: float
    """How much one label prevails, from 0 (all alike) to 1 (a single one): (k m - 1) / (k - 1) for k labels in use, the
    most frequent of share m; for two labels |a - d| / n of Byrt, Bishop & Carlin 1993."""
    bias_index: float
    """Difference of the raters' shares of labels, from 0 to 1: half the sum of absolute differences; for two labels
    |b - c| / n of Byrt, Bishop & Carlin 1993."""
    pabak: float
    """Prevalence- and bias-adjusted kappa, (k po - 1) / (k - 1) by the unweighted po (Byrt, Bishop & Carlin 1993; for
    more than two labels Brennan & Prediger 1981)."""


def crosstab(
    first: Sequence[str | None], second: Sequence[str | None], scale: Scale
) -> NDArray[np.int64]:
    """Count the items that both labelled by first and second label, k x k in the order of the scale."""
    position = {label: index for index, label in enumerate(scale.labels)}
    counts = np.zeros((len(position), len(position)), dtype=np.int64)
    for (one, other), count in Counter(zip(first, second, strict=True)).items():
        if one is not None and other is not None:
            counts[position[one], position[other]] = count
    return counts


def cohen(
    counts: NDArray[np.int64], scale: Scale, *, weights: Weights = "none", seed: int = 0
) -> Kappa:
    """Compute the kappa of a table of counts.

    Args:
        counts: items by first and second rater's label, k x k.
        scale: the k labels.
        weights: linear and quadratic need an order.
        seed: of the interval's resamples.

    Raises:
        InvalidArgument: weights were asked for and the labels have no order.
    """
    distances = _distances(scale, weights)
    num_items = int(counts.sum())
    if num_items == 0:
        return _nothing()
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    apart = float(rows @ distances @ columns) / num_items**2
    undefined = ""
    if apart == 0:
        undefined = f"both always say {scale.labels[int(rows.argmax())]!r}"
    positions = scale.positions if weights != "none" else None
    used = int(np.count_nonzero(rows + columns))
    agreement = float(np.trace(counts)) / num_items
    most = float((rows + columns).max()) / (2 * num_items)
    return Kappa(
        num_items=num_items,
        kappa=None
        if undefined
        else cohen_kappa(counts, positions or range(len(scale.labels)), weights),
        undefined=undefined,
        interval=None if undefined else _interval(counts, distances, apart, seed),
        observed=1 - float((counts * distances).sum()) / num_items,
        expected=1 - apart,
        agreement=agreement,
        prevalence_index=_above_even(most, used),
        bias_index=float(np.abs(rows - columns).sum()) / (2 * num_items),
        pabak=_above_even(agreement, used),
    )


def _distances(scale: Scale, weights: Weights) -> NDArray[np.float64]:
    """Return how far labels are apart, k x k, from 0 to 1."""
    if weights == "none":
        return 1 - np.eye(len(scale.labels))
    if scale.positions is None:
        listed = ", ".join(repr(label) for label in scale.labels[:8])
        raise refused(
            "weights",
            f"{weights} needs labels in an order, found {listed}; give the order, lowest first, or "
            "numbers that share a step",
        )
    places = np.asarray(scale.positions, dtype=np.float64)
    apart = np.abs(places[:, None] - places[None, :])
    if len(places) > 1:
        apart = apart / apart.max()
    return apart if weights == "linear" else apart**2


def _interval(
    counts: NDArray[np.int64], distances: NDArray[np.float64], by_chance: float, seed: int
) -> Interval | None:
    first, second = np.nonzero(counts)
    labels = np.eye(len(counts))
    first_of, second_of, cost = labels[first], labels[second], distances[first, second]

    def kappas(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        apart = ((drawn @ first_of @ distances) * (drawn @ second_of)).sum(axis=1)
        num_items = drawn.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = 1 - (drawn @ cost) * num_items / apart
        return np.where(apart > 0, found, np.nan)

    interval = interval_of(counts[first, second], kappas, seed)
    if interval is None or cost.any():
        return interval
    return replace(interval, low=low_without_difference(int(counts.sum()), by_chance))


def _above_even(share: float, used: int) -> float:
    """Rescale a share so that 1 / used becomes 0 and 1 stays 1; 1 where there is one label only."""
    return (used * share - 1) / (used - 1) if used > 1 else 1.0


def _nothing() -> Kappa:
    return Kappa(
        num_items=0,
        kappa=None,
        undefined="no item has labels of both",
        interval=None,
        observed=0.0,
        expected=0.0,
        agreement=0.0,
        prevalence_index=0.0,
        bias_index=0.0,
        pabak=0.0,
    )
