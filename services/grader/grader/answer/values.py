"""What a stated answer can be, once read: numbers, words, collections, intervals, relations, expressions.

Plain data. `reading` makes these from text, `compare` decides equality.
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An exact number with the unit it was stated in."""

    value: Fraction
    unit: str = ""
    """Canonical unit such as `km` or `usd`; words of an unknown unit joined by spaces; empty if none."""
    decimals: int = 0
    """Digits after the point as written; 0 for other notations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Words, names, choice letters: compared without case, articles and punctuation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Mathematics beyond a plain number, as LaTeX; compared by the symbolic checker."""

    latex: str
    unit: str = ""
    """Canonical unit of measure; empty if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """A sum or product of plain numbers that was not worked out."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Several values whose order does not matter: a set, or a list in prose."""

    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Values in brackets whose order matters; two of them may also be the ends of an interval."""

    opening: str
    items: tuple["Value", ...]
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Several sets or intervals joined."""

    parts: tuple["Value", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """All numbers between two ends; an end of None is unbounded."""

    low: "Value | None"
    high: "Value | None"
    low_closed: bool
    high_closed: bool
    variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """`10-12` in prose: from one number to another."""

    low: Number
    high: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Numbers joined by colons: a ratio or a time of day."""

    parts: tuple[Fraction, ...]
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple["Value", ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """`x = 11`: a value with a name."""

    name: str
    value: "Value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """Two expressions set equal."""

    left: str
    right: str


Value = (
    Number
    | Text
    | Expression
    | Arithmetic
    | Many
    | Ordered
    | Union
    | Interval
    | Range
    | Ratio
    | Matrix
    | Named
    | Equation
)
"""One stated answer, read."""
