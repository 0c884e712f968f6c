"""Numbers that stand in running text, each with the values that it may mean.

`1,000` is 1000, `28%` is 28 or 0.28, `1.5 million` is 1.5 or 1500000. Signs are left out: in running text a hyphen is
as often a dash. Digits inside words (`HAT136`, `card_44`) are part of a name and read only on demand. Number words are
not read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from grader.answer.normalize import unify_characters

MAX_DIGITS = 60
"""A longer number is compared by its digits."""

_FIGURE = (
    r"(\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(\.\d+)?(e[-+]?\d{1,3})?"
    r"(?:\s?(%|percent\b|k\b|m\b|bn\b|thousand\b|million\b|billion\b|trillion\b))?"
)
_NUMBER = re.compile(rf"(?<![\w.]){_FIGURE}", re.IGNORECASE)
_NUMBER_OR_PART = re.compile(rf"(?<!\d)(?<!\d[.,]){_FIGURE}", re.IGNORECASE)
_SCALES = {
    "%": Decimal("0.01"), "percent": Decimal("0.01"), "k": Decimal(10**3), "thousand": Decimal(10**3),
    "m": Decimal(10**6), "million": Decimal(10**6), "bn": Decimal(10**9), "billion": Decimal(10**9),
    "trillion": Decimal(10**12),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a text."""

    text: str
    values: tuple[Decimal | str, ...]
    """What it may mean; equal numbers have equal values."""


def figures_in(text: str, *, inside_words: bool = False) -> Iterator[Figure]:
    """Yield the numbers of a text in order, those inside words only if they are asked for."""
    pattern = _NUMBER_OR_PART if inside_words else _NUMBER
    for match in pattern.finditer(unify_characters(text)):
        whole, fraction, exponent, scale = match.groups(default="")
        digits = whole.replace(",", "") + fraction
        if len(digits) > MAX_DIGITS:
            yield Figure(text=match.group(), values=(digits,))
            continue
        value = Decimal(digits + exponent)
        values = (value, value * _SCALES[scale.lower()]) if scale else (value,)
        yield Figure(text=match.group(), values=values)
