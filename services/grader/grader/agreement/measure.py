"""The table of agreement: every pair of raters, each rater against the majority, all raters together.

A judge has no vote in the majority; a person is compared with the majority of the others, for nobody should agree with
their own vote. Items where a needed label is missing or the majority is tied are left out and counted; tied items are
the hard ones, so where many are left out the agreement with the majority looks better than it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from grader.agreement.cohen import Kappa, Weights, cohen, crosstab
from grader.agreement.labels import Scale, label_of, refused, scale_of
from grader.agreement.meaning import kappa_warnings, label_warnings
from grader.agreement.ratings import Ratings, checked, majority_of
from grader.agreement.several import GroupAgreement, fleiss, krippendorff

MAX_KINDS = 100_000
"""Kinds of pairs of labels over all comparisons; every one is drawn for each resample."""

Against = Literal["rater", "majority", "majority_of_others"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One rater against another, or against the majority of people."""

    first: str
    second: str
    """The other rater; empty for a majority."""
    against: Against
    kappa: Kappa
    num_missing: int
    """Items left out because one of the two has no label."""
    num_tied: int
    """Items left out because the majority is tied."""

    @property
    def name(self) -> str:
        """Both sides, for people."""
        return f"{self.first} ~ {self.second or self.against.replace('_', ' ')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementTable:
    """How far the raters of some items agree."""

    num_items: int
    people: tuple[str, ...]
    judges: tuple[str, ...]
    labels: tuple[str, ...]
    weights: Weights
    seed: int
    comparisons: tuple[Comparison, ...]
    groups: tuple[GroupAgreement, ...]
    """Of the people, where they are three or more or labels are missing."""
    warnings: tuple[str, ...]


def measure(
    ratings: Ratings,
    *,
    weights: Weights = "none",
    order: Sequence[str] = (),
    seed: int = 0,
) -> AgreementTable:
    """Compare all raters.

    Args:
        ratings: labels of two raters or more.
        weights: of disagreement.
        order: labels from lowest to highest, for weights; numbers have one by themselves.
        seed: of the intervals' resamples.

    Raises:
        InvalidArgument: the ratings cannot be compared, there are too many labels, or they lack an order.
    """
    checked(ratings)
    if seed < 0:
        raise refused("seed", f"found {seed}, expected a whole number from 0")
    used = {label for column in ratings.labels.values() for label in column if label is not None}
    scale = scale_of(used, order)
    _check_size(ratings, scale)
    comparisons = [
        _compared(ratings, scale, weights, seed, first, second)
        for first, second in combinations(ratings.labels, 2)
    ]
    comparisons += [
        _against_majority(ratings, scale, weights, seed, rater) for rater in _with_majority(ratings)
    ]
    return AgreementTable(
        num_items=ratings.num_items,
        people=ratings.people,
        judges=ratings.judges,
        labels=scale.labels,
        weights=weights,
        seed=seed,
        comparisons=tuple(comparisons),
        groups=_groups(ratings, scale, seed),
        warnings=(
            *label_warnings(ratings),
            *kappa_warnings({row.name: row.kappa for row in comparisons}),
        ),
    )


def agreement_of(
    first: Sequence[object],
    second: Sequence[object],
    *,
    weights: Weights = "none",
    order: Sequence[str] = (),
    seed: int = 0,
) -> Kappa:
    """Compare two lists of labels, item by item; items that lack one of the two are left out.

    Raises:
        InvalidArgument: see `measure`.
        ValueError: the lists differ in length, or a value is no label.
    """
    one, other = [label_of(value) for value in first], [label_of(value) for value in second]
    scale = scale_of({label for label in (*one, *other) if label is not None}, order)
    return cohen(crosstab(one, other, scale), scale, weights=weights, seed=seed)


def _check_size(ratings: Ratings, scale: Scale) -> None:
    """Refuse what would take minutes."""
    num_raters, num_labels = len(ratings.labels), len(scale.labels)
    num_comparisons = num_raters * (num_raters + 1) // 2
    if num_comparisons * min(ratings.num_items, num_labels**2) > MAX_KINDS:
        raise refused(
            "ratings",
            f"{num_raters} raters with {num_labels} labels are too many to resample; compare fewer "
            "raters at once, or group the labels",
        )


def _with_majority(ratings: Ratings) -> tuple[str, ...]:
    """Return the raters that a majority can be held against; of two people each is the other's majority."""
    return ratings.judges if len(ratings.people) < 3 else tuple(ratings.labels)


def _compared(
    ratings: Ratings, scale: Scale, weights: Weights, seed: int, first: str, second: str
) -> Comparison:
    counts = crosstab(ratings.labels[first], ratings.labels[second], scale)
    return Comparison(
        first=first,
        second=second,
        against="rater",
        kappa=cohen(counts, scale, weights=weights, seed=seed),
        num_missing=ratings.num_items - int(counts.sum()),
        num_tied=0,
    )


def _against_majority(
    ratings: Ratings, scale: Scale, weights: Weights, seed: int, rater: str
) -> Comparison:
    voters = [ratings.labels[person] for person in ratings.people if person != rater]
    majority = majority_of(voters)
    counts = crosstab(ratings.labels[rater], majority.labels, scale)
    return Comparison(
        first=rater,
        second="",
        against="majority" if rater in ratings.judges else "majority_of_others",
        kappa=cohen(counts, scale, weights=weights, seed=seed),
        num_missing=ratings.num_items - int(counts.sum()) - majority.num_tied,
        num_tied=majority.num_tied,
    )


def _groups(ratings: Ratings, scale: Scale, seed: int) -> tuple[GroupAgreement, ...]:
    columns = {person: ratings.labels[person] for person in ratings.people}
    found = []
    if len(columns) > 2:
        found.append(fleiss(list(columns.values()), scale.labels, seed))
    if len(columns) > 1 and any(None in column for column in columns.values()):
        found.append(krippendorff(columns))
    return tuple(found)
