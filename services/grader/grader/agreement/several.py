"""Agreement of many raters in one number: Fleiss' kappa (1971) and, where labels are missing, Krippendorff's alpha."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grader.agreement.bootstrap import Interval, interval_of, low_without_difference
from grader.agreement.libraries import fleiss_kappa, krippendorff_alpha

Coefficient = Literal["fleiss_kappa", "krippendorff_alpha"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAgreement:
    """How well a group of raters agrees, whatever the order of the labels."""

    coefficient: Coefficient
    num_raters: int
    num_items: int
    """Items that counted: with a label of every rater for Fleiss' kappa, with two or more for alpha."""
    value: float | None
    """None where it is undefined."""
    undefined: str
    """Why it is undefined; empty where it is not."""
    interval: Interval | None
    """Of Fleiss' kappa."""


def fleiss(
    columns: Sequence[Sequence[str | None]], labels: Sequence[str], seed: int
) -> GroupAgreement:
    """Compute Fleiss' kappa over the items that every rater labelled.

    Args:
        columns: one per rater, equally long.
        labels: all that occur.
        seed: of the interval's resamples.
    """
    position = {label: index for index, label in enumerate(labels)}
    rows = [
        [position[label] for label in given if label is not None]
        for given in zip(*columns, strict=True)
    ]
    whole = [row for row in rows if len(row) == len(columns)]
    counts = np.zeros((len(whole), len(position)), dtype=np.int64)
    for index, row in enumerate(whole):
        np.add.at(counts[index], row, 1)
    undefined = ""
    if not whole:
        undefined = "no item has labels of all"
    elif np.count_nonzero(counts.sum(axis=0)) == 1:
        undefined = f"all always say {labels[int(counts.sum(axis=0).argmax())]!r}"
    return GroupAgreement(
        coefficient="fleiss_kappa",
        num_raters=len(columns),
        num_items=len(whole),
        value=None if undefined else fleiss_kappa(counts),
        undefined=undefined,
        interval=None if undefined else _interval(counts, len(columns), seed),
    )


def krippendorff(labels: Mapping[str, Sequence[str | None]]) -> GroupAgreement:
    """Compute Krippendorff's alpha for nominal labels over the items with two labels or more.

    Args:
        labels: by rater, one per item.
    """
    given = [
        (rater, item, label)
        for rater, column in labels.items()
        for item, label in enumerate(column)
        if label is not None
    ]
    per_item = Counter(item for _, item, _ in given)
    compared = [row for row in given if per_item[row[1]] > 1]
    said = {label for _, _, label in compared}
    undefined = ""
    if not compared:
        undefined = "no item has two labels"
    elif len(said) == 1:
        undefined = f"all always say {said.pop()!r}"
    return GroupAgreement(
        coefficient="krippendorff_alpha",
        num_raters=len(labels),
        num_items=sum(count > 1 for count in per_item.values()),
        value=None if undefined else krippendorff_alpha(compared),
        undefined=undefined,
        interval=None,
    )


def _interval(counts: NDArray[np.int64], num_raters: int, seed: int) -> Interval | None:
    kinds, sizes = np.unique(counts, axis=0, return_counts=True)
    apart = 1 - ((kinds**2).sum(axis=1) - num_raters) / (num_raters * (num_raters - 1))

    def kappas(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        num_items = drawn.sum(axis=1)
        totals = drawn @ kinds
        all_labels = num_items * num_raters
        with np.errstate(invalid="ignore", divide="ignore"):
            by_chance = 1 - ((totals / all_labels[:, None]) ** 2).sum(axis=1)
            found = 1 - (drawn @ apart) / num_items / by_chance
        return np.where(totals.max(axis=1) < all_labels, found, np.nan)

    interval = interval_of(sizes.astype(np.int64), kappas, seed)
    if interval is None or apart.any():
        return interval
    by_chance = 1 - float(((sizes @ kinds / (sizes.sum() * num_raters)) ** 2).sum())
    return replace(interval, low=low_without_difference(int(sizes.sum()), by_chance))
