"""Decides whether a stated answer equals the reference, both already read.

The reference says what kind of thing is wanted; the response must be that thing as a whole. Part of a set, a list that
contains the right value, or a range around it never passes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from grader.answer.quick import approximate
from grader.answer.symbolic import Symbolic, SymbolicVerdict
from grader.answer.units import COMPOUND_UNITS, same_unit
from grader.answer.values import (
    Arithmetic,
    Equation,
    Expression,
    Interval,
    Many,
    Matrix,
    Named,
    Number,
    Ordered,
    Range,
    Ratio,
    Text,
    Union,
    Value,
)

LONG_DECIMALS = 10
"""A decimal written with at least this many places may be the rounding of a fraction."""
_PUNCTUATION = re.compile(r"[\s.,;:!?\"'`*_$()-]+")
_ARTICLE = re.compile(r"^(?:an?|the) ")
_LEAD = re.compile(
    r"^(?:(?:it|there|that|he|she) (?:is|was)|it s|(?:there|they) are|on|in|at|by|called) "
    r"(?:(?:an?|the) )?"
)
"""Words before an answer in words that say nothing."""
_VERDICT = re.compile(
    r"(yes|no|true|false)(?:$|[.;:!](?:\s|$)|,\s+(?=(?:because|since|as|it|he|she|they|the|this|that|there|we|i|you|so)\b))(.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPPOSITE = re.compile(r"\b(?:yes|no|true|false|not sure|maybe)\b", re.IGNORECASE)
_CHOICE = re.compile(r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Za-z])[)\]]?", re.IGNORECASE)
_CHOICE_LED = re.compile(
    r"(?:(?:option|choice|answer)\s+)?\(?([A-Za-z])(?:\)|[.:,](?=\s)|\s+-(?=\s))[.:,]?\s+"
    r"(?!\(?[A-Za-z]\)?(?:$|[\s,.;/)]))(?!(?:and|or)\b)\S.*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a stated number may be from the reference: the larger of both bounds counts."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)
    """Of the reference's magnitude."""

    def allows(self, gold: Fraction, stated: Fraction) -> bool:
        """Whether a stated number is near enough."""
        return abs(gold - stated) <= max(self.absolute, self.relative * abs(gold))


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a comparison may use."""

    symbolic: Symbolic
    tolerance: Tolerance | None = None
    """None: numbers must be equal."""


class Equality(StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    HEDGED = "hedged"
    """Several values where one was wanted."""
    UNREADABLE = "unreadable"
    """The stated answer could not be read well enough to say."""


def compare(gold: Value, stated: Value, means: Means) -> Equality:
    """Compare a reference with a stated answer."""
    if isinstance(gold, Named) or isinstance(stated, Named):
        return _compare_named(gold, stated, means)
    if isinstance(gold, Number) and isinstance(stated, Number):
        return _equality(_same_number(gold, stated, means.tolerance))
    if isinstance(gold, Text):
        return _compare_text(gold, stated)
    if isinstance(gold, Ratio) and isinstance(stated, Range):
        return _equality(gold.parts == (stated.low.value, stated.high.value) and not gold.suffix)
    if isinstance(gold, Ratio) and isinstance(stated, Ratio):
        return _equality(
            gold.parts == stated.parts and (gold.suffix == stated.suffix or not gold.suffix)
        )
    if isinstance(gold, Range) and isinstance(stated, Range):
        ends = ((gold.low, stated.low), (gold.high, stated.high))
        return _equality(all(_same_number(*end, means.tolerance) for end in ends))
    if isinstance(gold, Matrix) and isinstance(stated, Matrix):
        return _compare_rows(gold, stated, means)
    if isinstance(gold, Equation) and isinstance(stated, Equation):
        return _ask(means, "equation", _sides(gold), _sides(stated))
    if isinstance(gold, Interval | Ordered | Union | Many):
        return _compare_collection(gold, stated, means)
    if isinstance(stated, Ordered) and len(stated.items) == 1:
        return compare(gold, stated.items[0], means)
    if isinstance(stated, Many):
        return Equality.UNREADABLE if _is_compound(stated) else Equality.HEDGED
    if isinstance(gold, Expression) or isinstance(stated, Expression):
        return _compare_expression(gold, stated, means)
    if isinstance(stated, Text):
        unclear = any(c.isdigit() for c in stated.text) and isinstance(gold, Number)
        return Equality.UNREADABLE if unclear else Equality.DIFFERENT
    return Equality.DIFFERENT


def plain_text(text: str) -> str:
    """Return text without case, leading article, punctuation and needless space."""
    return _ARTICLE.sub("", _PUNCTUATION.sub(" ", text.casefold()).strip())


def choice_of(text: str) -> str | None:
    """Return the letter, upper case, if text is a choice such as C, (c) or `C. 72 clips`."""
    match = _CHOICE.fullmatch(text.strip()) or _CHOICE_LED.fullmatch(text.strip())
    return match.group(1).upper() if match else None


def verdict_of(text: str) -> str | None:
    """Return yes, no, true or false if text begins with it and takes nothing back."""
    match = _VERDICT.match(text.strip())
    if match is None or _OPPOSITE.search(match.group(2)):
        return None
    return match.group(1).lower()


def _equality(equal: bool) -> Equality:
    return Equality.EQUAL if equal else Equality.DIFFERENT


def _is_compound(value: Many) -> bool:
    """Whether several numbers are one measure in parts, such as 5 hours and 30 minutes."""
    units = [item.unit for item in value.items if isinstance(item, Number)]
    if len(units) != len(value.items) or len(set(units)) != len(units):
        return False
    return any(family.issuperset(units) for family in COMPOUND_UNITS)


def _same_number(gold: Number, stated: Number, tolerance: Tolerance | None) -> bool:
    if not same_unit(gold.unit, stated.unit):
        return False
    if tolerance is not None and tolerance.allows(gold.value, stated.value):
        return True
    if gold.value == stated.value:
        return True
    return _rounds_to(gold, stated) or _rounds_to(stated, gold)


def _rounds_to(decimal: Number, exact: Number) -> bool:
    """Whether a long decimal is the rounded or cut form of a fraction that no decimal equals."""
    if decimal.decimals < LONG_DECIMALS or exact.decimals or not _is_periodic(exact.value):
        return False
    return abs(decimal.value - exact.value) < Fraction(1, 10**decimal.decimals)


def _is_periodic(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def _compare_text(gold: Text, stated: Value) -> Equality:
    if isinstance(stated, Many):
        return Equality.HEDGED
    if not isinstance(stated, Text):
        return Equality.DIFFERENT
    if len(gold.text) == 1 and gold.text.isalpha():
        return _equality(choice_of(stated.text) == gold.text.upper())
    wanted, given = plain_text(gold.text), plain_text(stated.text)
    return _equality(
        given in (wanted, wanted.removeprefix("date ")) or _LEAD.sub("", given) == wanted
    )


def _compare_named(gold: Value, stated: Value, means: Means) -> Equality:
    if isinstance(gold, Equation) or isinstance(stated, Equation):
        if isinstance(gold, Equation | Named) and isinstance(stated, Equation | Named):
            return _ask(means, "equation", _sides(gold), _sides(stated))
        return Equality.DIFFERENT
    if isinstance(gold, Named) and isinstance(stated, Named):
        first, second = gold.name.replace(" ", ""), stated.name.replace(" ", "")
        if first != second and max(len(first), len(second)) == 1:
            return Equality.DIFFERENT
    return compare(_unnamed(gold), _unnamed(stated), means)


def _unnamed(value: Value) -> Value:
    return value.value if isinstance(value, Named) else value


def _sides(value: Equation | Named) -> str:
    if isinstance(value, Equation):
        return f"{value.left} - ({value.right})"
    return f"{value.name} - ({_latex(value.value)})"


def _compare_rows(gold: Matrix, stated: Matrix, means: Means) -> Equality:
    if [len(row) for row in gold.rows] != [len(row) for row in stated.rows]:
        return Equality.DIFFERENT
    pairs = [
        compare(wanted, given, means)
        for gold_row, stated_row in zip(gold.rows, stated.rows, strict=True)
        for wanted, given in zip(gold_row, stated_row, strict=True)
    ]
    return _all(pairs)


def _all(found: Sequence[Equality]) -> Equality:
    if all(one is Equality.EQUAL for one in found):
        return Equality.EQUAL
    if Equality.DIFFERENT in found or Equality.HEDGED in found:
        return Equality.DIFFERENT
    return Equality.UNREADABLE


def _compare_collection(gold: Value, stated: Value, means: Means) -> Equality:
    if isinstance(gold, Interval) and isinstance(stated, Interval):
        return _compare_intervals(gold, stated, means)
    if isinstance(gold, Interval) or isinstance(stated, Interval):
        other = stated if isinstance(gold, Interval) else gold
        interval = _as_interval(other)
        if interval is None:
            return Equality.DIFFERENT
        if isinstance(gold, Interval):
            return _compare_intervals(gold, interval, means)
        assert isinstance(stated, Interval)
        return _compare_intervals(interval, stated, means)
    coordinates = _coordinates(gold if isinstance(stated, Ordered) else stated)
    if coordinates is not None and isinstance(stated, Ordered):
        return _compare_collection(coordinates, stated, means)
    if coordinates is not None and isinstance(gold, Ordered):
        return _compare_collection(gold, coordinates, means)
    if isinstance(gold, Ordered) and isinstance(stated, Ordered):
        if (gold.opening, gold.closing) != (stated.opening, stated.closing):
            return Equality.DIFFERENT
        if len(gold.items) != len(stated.items):
            return Equality.DIFFERENT
        pairs = zip(gold.items, stated.items, strict=True)
        return _all([compare(wanted, given, means) for wanted, given in pairs])
    if isinstance(gold, Union) and isinstance(stated, Union):
        return _match(gold.parts, stated.parts, means)
    if isinstance(gold, Many) and isinstance(stated, Many):
        return _match(gold.items, stated.items, means)
    if isinstance(gold, Many) and len(gold.items) == 1:
        return compare(gold.items[0], stated, means)
    return Equality.DIFFERENT


def _coordinates(value: Value) -> Ordered | None:
    """Read x = 1, y = 2 as (1, 2): values with different letters in the order of the alphabet."""
    if not isinstance(value, Many) or len(value.items) < 2:
        return None
    named = [item for item in value.items if isinstance(item, Named)]
    names = [item.name for item in named]
    if len(named) < len(value.items) or names != sorted(set(names)):
        return None
    if any(len(name) != 1 for name in names):
        return None
    return Ordered(opening="(", items=tuple(item.value for item in named), closing=")")


def _match(gold: tuple[Value, ...], stated: tuple[Value, ...], means: Means) -> Equality:
    """Whether two collections hold the same values, in any order and repeated or not."""
    unclear = False
    for wanted in gold:
        found = [compare(wanted, given, means) for given in stated]
        if Equality.EQUAL not in found:
            if Equality.UNREADABLE not in found:
                return Equality.DIFFERENT
            unclear = True
    for given in stated:
        found = [compare(wanted, given, means) for wanted in gold]
        if Equality.EQUAL not in found:
            if Equality.UNREADABLE not in found:
                return Equality.DIFFERENT
            unclear = True
    return Equality.UNREADABLE if unclear else Equality.EQUAL


def _as_interval(value: Value) -> Interval | None:
    if not isinstance(value, Ordered) or len(value.items) != 2:
        return None
    low, high = value.items
    return Interval(
        low=None if _is_infinite(low) else low,
        high=None if _is_infinite(high) else high,
        low_closed=value.opening == "[",
        high_closed=value.closing == "]",
    )


def _is_infinite(value: Value) -> bool:
    return isinstance(value, Expression) and value.latex.replace(" ", "") in (
        "\\infty",
        "-\\infty",
        "+\\infty",
    )


def _compare_intervals(gold: Interval, stated: Interval, means: Means) -> Equality:
    if (gold.low_closed, gold.high_closed) != (stated.low_closed, stated.high_closed):
        return Equality.DIFFERENT
    if gold.variable and stated.variable and gold.variable.strip() != stated.variable.strip():
        return Equality.DIFFERENT
    found = []
    for wanted, given in ((gold.low, stated.low), (gold.high, stated.high)):
        if (wanted is None) != (given is None):
            return Equality.DIFFERENT
        if wanted is not None and given is not None:
            found.append(compare(wanted, given, means))
    return _all(found)


def _compare_expression(gold: Value, stated: Value, means: Means) -> Equality:
    if isinstance(stated, Text):
        return (
            Equality.DIFFERENT if not any(c.isdigit() for c in stated.text) else Equality.UNREADABLE
        )
    if not isinstance(gold, Expression | Number | Arithmetic) or not isinstance(
        stated, Expression | Number | Arithmetic
    ):
        return Equality.DIFFERENT
    if not same_unit(_unit(gold), _unit(stated)):
        return Equality.DIFFERENT
    left, right = _latex(gold), _latex(stated)
    if means.tolerance is not None:
        wanted, given = approximate(left), approximate(right)
        if wanted is not None and given is not None and means.tolerance.allows(wanted, given):
            return Equality.EQUAL
    if left.replace(" ", "") == right.replace(" ", ""):
        return Equality.EQUAL
    return _ask(means, "value", left, right)


def _unit(value: Value) -> str:
    return value.unit if isinstance(value, Number | Expression) else ""


def _ask(means: Means, kind: str, gold: str, stated: str) -> Equality:
    verdict = means.symbolic.compare(kind, gold, stated)
    if verdict is SymbolicVerdict.EQUAL:
        return Equality.EQUAL
    if verdict is SymbolicVerdict.DIFFERENT:
        return Equality.DIFFERENT
    return Equality.UNREADABLE


def _latex(value: Value) -> str:
    if isinstance(value, Number):
        exact = value.value
        if exact.denominator == 1:
            return str(exact.numerator)
        return f"\\frac{{{exact.numerator}}}{{{exact.denominator}}}"
    if isinstance(value, Expression):
        return value.latex.replace("**", "^").replace("*", " \\cdot ")
    if isinstance(value, Arithmetic):
        return value.text.replace("**", "^").replace("*", " \\cdot ")
    if isinstance(value, Text):
        return value.text
    if isinstance(value, Ordered | Many):
        return ", ".join(_latex(item) for item in value.items)
    return ""
