"""Labels as they are compared, and the order in which a weighted kappa sees them.

A label is a short word or number. Numbers are equal by value ("1", 1 and 1.0 are one label), truth values by meaning
("True" and true), words by their letters. Nothing, an empty text and NaN are missing labels.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce

from grader.fields import shown
from servicekit.errors import InvalidArgument

MAX_LABELS = 100
"""More classes than this are no classes: a column of texts or of measurements."""
MAX_LENGTH = 200
"""Characters of one label."""
MAX_STEPS = 1000
"""Steps from the lowest to the highest label of a weighted kappa."""

_ALL_DIGITS = Context(prec=MAX_LENGTH)
_NUMBER = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})([eE][+-]?\d{1,2})?", re.ASCII)


def label_of(value: object) -> str | None:
    """Return a label in the one way it is written; None where it is missing.

    Raises:
        ValueError: the value is no label; the text says what was found and what would be right.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"found {shown(value)}, expected a word, a number, or null")
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"found {value}, expected a finite number")
    text = str(value).strip()
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"found a text of {len(text)} characters, expected a label of at most {MAX_LENGTH}"
        )
    if text.casefold() in ("", "nan"):
        return None
    if text.casefold() in ("true", "false"):
        return text.casefold()
    return _number_text(text) if _NUMBER.fullmatch(text) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The labels of one comparison and where each stands."""

    labels: tuple[str, ...]
    """In order; only those in use, unless the order was said."""
    positions: tuple[int, ...] | None
    """By label, in steps from the first; None where the labels have no order."""


def scale_of(used: Collection[str], order: Sequence[str] = ()) -> Scale:
    """Order the labels in use: as said, or numbers by size with their true distances.

    Args:
        used: labels as `label_of` returns them.
        order: lowest first, labels that nobody used included; empty where the labels tell it.

    Raises:
        InvalidArgument: there are too many labels, or the order lacks one that is in use.
    """
    if order:
        return _scale_by_order(used, order)
    if len(used) > MAX_LABELS:
        raise refused(
            "labels",
            f"found {len(used)} different labels, expected at most {MAX_LABELS}: is it a column of "
            "texts or measurements? Leave it out, or group the values into classes",
        )
    numbers = {label: _fraction(label) for label in used}
    if all(value is not None for value in numbers.values()):
        values = {label: value for label, value in numbers.items() if value is not None}
        labels = tuple(sorted(values, key=values.__getitem__))
        return Scale(labels=labels, positions=_steps([values[label] for label in labels]))
    labels = tuple(sorted(used))
    # With two labels every order gives the same weights.
    return Scale(labels=labels, positions=(0, 1)[: len(labels)] if len(labels) <= 2 else None)


def is_number(label: str) -> bool:
    """Whether a label is a number."""
    return _fraction(label) is not None


def _scale_by_order(used: Collection[str], order: Sequence[str]) -> Scale:
    try:
        labels = tuple(label for label in map(label_of, order) if label is not None)
    except ValueError as err:
        raise refused("order", str(err)) from err
    if len(set(labels)) < len(labels) or len(labels) < len(order):
        raise refused("order", f"found {', '.join(order)}; expected each label once, none empty")
    if lacking := sorted(set(used) - set(labels)):
        raise refused("order", f"lacks {', '.join(map(repr, lacking[:5]))}, which raters used")
    if len(labels) > MAX_LABELS:
        raise refused("order", f"found {len(labels)} labels, expected at most {MAX_LABELS}")
    return Scale(labels=labels, positions=tuple(range(len(labels))))


def _steps(values: Sequence[Fraction]) -> tuple[int, ...] | None:
    """Return each value's distance from the first in the largest step that divides all distances."""
    gaps = [value - values[0] for value in values]
    step = reduce(_common_step, gaps, Fraction(0)) or Fraction(1)
    positions = tuple(int(gap / step) for gap in gaps)
    return positions if not positions or positions[-1] < MAX_STEPS else None


def _common_step(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(
        math.gcd(a.numerator * b.denominator, b.numerator * a.denominator),
        a.denominator * b.denominator,
    )


def _number_text(text: str) -> str:
    number = Decimal(text).normalize(_ALL_DIGITS)
    return format(number, "f") if number else "0"


def _fraction(label: str) -> Fraction | None:
    return Fraction(label) if _NUMBER.fullmatch(label) else None


def refused(field: str, text: str) -> InvalidArgument:
    """Return the error of ratings that cannot be compared, for a field and what is wrong with it."""
    return InvalidArgument(f"{field}: {text}", reason="RATINGS_INVALID", violations={field: text})
