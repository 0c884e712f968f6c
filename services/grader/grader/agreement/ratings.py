"""Who labelled what: raters, items, and the majority of several raters."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from grader.agreement.labels import label_of, refused

MAX_RATERS = 50
"""Every pair is compared, so their number grows with the square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """One label that one rater gave to one item."""

    item: str
    rater: str
    label: object
    """A word, a number or a truth value; None, an empty text and NaN are missing."""
    place: str = ""
    """Where it stands, for messages, as in labels.csv:12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """The labels of several raters on the same items."""

    num_items: int
    labels: Mapping[str, tuple[str | None, ...]]
    """By rater, one per item; None where it is missing."""
    judges: tuple[str, ...] = ()
    """Raters that are no people: they have no vote in the majority."""

    @property
    def people(self) -> tuple[str, ...]:
        """Raters whose majority is taken for right."""
        return tuple(rater for rater in self.labels if rater not in self.judges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Majority:
    """What most raters said, by item."""

    labels: tuple[str | None, ...]
    """None where nobody gave a label, and where several labels were given equally often."""
    num_tied: int
    """Items where several labels were given equally often; they are left out."""


def ratings_of(rows: Iterable[Rating], judges: Collection[str] = ()) -> Ratings:
    """Gather single labels; raters and items stay in the order in which they come.

    Raises:
        InvalidArgument: a label is none, a rater labelled an item twice, there are fewer than two raters or more than
            MAX_RATERS, a judge gave no label, or nobody but judges did.
    """
    positions: dict[str, int] = {}
    found: dict[str, dict[int, str | None]] = {}
    places: dict[tuple[str, str], str] = {}
    for number, row in enumerate(rows):
        place = row.place or f"ratings[{number}]"
        if not row.item or not row.rater:
            empty = "item" if not row.item else "rater"
            raise refused(place, f"found an empty {empty}, expected its name")
        if (first := places.setdefault((row.rater, row.item), place)) != place:
            raise refused(
                place,
                f"{row.rater!r} labels item {row.item!r} again, first at {first}; "
                "expected one label of a rater for an item",
            )
        try:
            label = label_of(row.label)
        except ValueError as err:
            raise refused(place, f"label of {row.rater!r}: {err}") from err
        position = positions.setdefault(row.item, len(positions))
        found.setdefault(row.rater, {})[position] = label
    return checked(
        Ratings(
            num_items=len(positions),
            labels={
                rater: tuple(given.get(position) for position in range(len(positions)))
                for rater, given in found.items()
            },
            judges=tuple(dict.fromkeys(judges)),
        )
    )


def checked(ratings: Ratings) -> Ratings:
    """Return the ratings if they can be compared.

    Raises:
        InvalidArgument: see `ratings_of`.
    """
    raters = list(ratings.labels)
    if ratings.num_items == 0:
        raise refused("ratings", "found no items, expected at least one")
    if len(raters) < 2:
        only = f"only {raters[0]!r}" if raters else "none"
        raise refused("raters", f"found {only}, expected at least two raters to compare")
    if len(raters) > MAX_RATERS:
        raise refused("raters", f"found {len(raters)}, expected at most {MAX_RATERS}; name some")
    for judge in ratings.judges:
        if judge not in ratings.labels:
            raise refused("judges", f"no rater is called {judge!r}; known are {', '.join(raters)}")
    if not ratings.people:
        raise refused("judges", "every rater is a judge, expected at least one person")
    return ratings


def majority_of(columns: Sequence[Sequence[str | None]]) -> Majority:
    """Return the most frequent label of each item; equal counts are a tie and no label.

    Args:
        columns: one per rater, equally long.
    """
    ranked_of = cache(_ranked)
    labels: list[str | None] = []
    num_tied = 0
    for given in zip(*columns, strict=True):
        ranked = ranked_of(given)
        tied = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
        num_tied += tied
        labels.append(ranked[0][0] if ranked and not tied else None)
    return Majority(labels=tuple(labels), num_tied=num_tied)


def _ranked(given: tuple[str | None, ...]) -> list[tuple[str, int]]:
    """Return the two most frequent labels of an item with their counts."""
    return Counter(label for label in given if label is not None).most_common(2)
