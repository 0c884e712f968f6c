"""Reads a normalised span into a value: which of the forms in `values` it is.

Order matters: the most specific form that fits the whole span wins. Nothing is taken from inside a span that does not
fit as a whole; that is the caller's decision.
"""

import re
from dataclasses import replace
from fractions import Fraction

from grader.answer.dates import read_date
from grader.answer.normalize import ROW, SET_CLOSE, SET_OPEN
from grader.answer.numerals import decimal_value, read_number
from grader.answer.splitting import balanced, split_top
from grader.answer.units import COMPOUND_UNITS, trailing_unit
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

_RATIO = re.compile(r"(?:at\s+)?(\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+)\s*([aApP]\.?[mM]\.?)?")
_HOUR = re.compile(r"(?:at\s+)?(\d{1,2})\s*(?:([aApP])\.?[mM]\.?|o'clock)")
_RANGE = re.compile(
    r"(?:(from|between)\s+)?([$\u00a4\u20ac\u00a3]?\s*[\d.,]+%?)\s*(-|~|(?:up\s+)?to|through|and)\s*([$\u00a4\u20ac\u00a3]?\s*[\d.,]+.*)",
    re.IGNORECASE,
)
_COMPOUND_PART = re.compile(r"\d+(?:\.\d+)?\s*[a-zA-Z]+")
_COMPOUND = re.compile(
    rf"{_COMPOUND_PART.pattern}(?:(?:,|\s+and|,\s+and)?\s+{_COMPOUND_PART.pattern}){{1,4}}"
)
_WORD_RANGE = re.compile(r"(?:(from|between)\s+)?([a-z-]+)\s+(to|and)\s+([a-z -]+)", re.IGNORECASE)
_ARITHMETIC = re.compile(r"[\d\s.()*/+^-]*\d[\d\s.()]*[-+*/^][\d\s.()*/+^-]*")
_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(])")
_MATRIX = re.compile(r"\\begin\{([bpvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*?)\\end\{\1\}")
_RELATION = re.compile(r"<=|>=|!=|<|>|=|\u2248")
_NAME = re.compile(
    r"[a-zA-Z](?:_\{?\w+\}?)?(?:\([^()]*\))?|\\[a-zA-Z]+|[A-Za-z][A-Za-z ]{1,40}|\([a-zA-Z](?:\s*,\s*[a-zA-Z])+\)"
)
_POINT = re.compile(r"^[A-Z]\s?(\([^()]*,[^()]*\))$")
"""A point with its name."""
_DESCRIBED = re.compile(r"[a-zA-Z](?:\s*\u2208\s*[^|:]+)?\s*[|:]\s*(.+)")
"""All x such that something holds."""
_TUPLES = re.compile(r"(\([^()]*,[^()]*\))\s*(?:and|or)?\s*(?=\([^()]*,[^()]*\))")
_GEOMETRY = re.compile(
    r"(?=.*[A-Z])(?:\\(?:angle|triangle|overline|widehat|vec|frac|measuredangle)(?![a-zA-Z])"
    r"|m(?=\s*\\angle)|[A-Z']|_\{?\w+\}?|[|:{}\s])+"
)
"""The name of a length, an angle, an area, or of their ratio."""
_LABEL = re.compile(r"([A-Za-z][A-Za-z ]{0,30}):\s+(.+)")
_OPERATORS = re.compile(
    r"[\\^_=<>|]|\d[a-zA-Z]|[a-zA-Z]\d|(?<=\w)\s*[+*/]\s*(?=[\w(])|[\w)]!|\)\(|[a-zA-Z]\("
    r"|\d\s+[b-zB-HJ-Z]$|^-\s*[a-zA-Z]$|\b[a-zA-Z] - (?:[a-zA-Z]|\d)\b|\b\d+ - [a-zA-Z]\b|\b[a-z]-\d"
)
_BASE_NUMERAL = re.compile(r"(\d+)_\{?(\d+)\}?")
_EMPTY_SET = frozenset(("\\emptyset", "\\varnothing", "\u2205", "empty set", "the empty set"))
_REALS = frozenset(("\\mathbb{R}", "\\mathbb R", "\\R", "R", "all real numbers", "all reals"))
_NOTHING = frozenset(("n/a", "na", "nan", "none", "null", "nil"))
_BRACKETS = {"(": ")]", "[": ")]"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
MAX_SPAN = 2000
"""Longer spans are not read."""
MAX_DEPTH = 6


def read(text: str, *, listed: bool = False, depth: int = 0) -> Value | None:
    """Read a normalised span; None if it is blank, too long or too deeply nested.

    Args:
        text: the span, from `normalize`.
        listed: the reference is a list, so `3,5` is two numbers.
        depth: nesting so far.
    """
    text = text.strip()
    if not text or len(text) > MAX_SPAN or depth > MAX_DEPTH:
        return None
    date = read_date(text)
    if date is not None:
        return Text(text=date)
    number = None if _HOUR.fullmatch(text) else read_number(text, listed=listed)
    if number is not None:
        return number
    base = _BASE_NUMERAL.fullmatch(text)
    if base and base.group(2) == "10":
        return read_number(base.group(1))
    if base or text.lower() in _NOTHING:
        # A numeral in another base is its digits and base; it equals no plain number.
        return Text(text=f"{base.group(1)} base {base.group(2)}" if base else text)
    if text in _EMPTY_SET:
        return Many(items=())
    if text in _REALS and len(text) > 1:
        return Interval(low=None, high=None, low_closed=False, high_closed=False)
    for reader in (_read_ratio, _read_range, _read_compound, _read_arithmetic):
        simple = reader(text)
        if simple is not None:
            return simple
    for nested in (
        _read_exact,
        _read_matrix,
        _read_plus_minus,
        _read_union,
        _read_enclosed,
        _read_relation,
        _read_list,
    ):
        value = nested(text, depth)
        if value is not None:
            return value
    labelled = _LABEL.fullmatch(text)
    if labelled:
        return read(labelled.group(2), listed=listed, depth=depth + 1)
    if _OPERATORS.search(text):
        formula, unit = trailing_unit(text)
        return Expression(latex=formula, unit=unit)
    return Text(text=text)


def _read_exact(text: str, depth: int) -> Value | None:
    """What stands before "is about": the exact value, if it is a fraction or a formula."""
    exact, sign, _ = text.partition("\u2248")
    if not sign or not exact.strip():
        return None
    value = read(exact, depth=depth + 1)
    plain = isinstance(value, Number) and "/" not in exact and "\\" not in exact
    if plain and "=" not in exact:
        return None
    return value if isinstance(value, Number | Expression | Named) else None


def _read_ratio(text: str) -> Value | None:
    match = _HOUR.fullmatch(text)
    if match:
        parts = (Fraction(int(match.group(1))), Fraction(0))
        return Ratio(parts=parts, suffix=f"{match.group(2).lower()}m" if match.group(2) else "")
    match = _RATIO.fullmatch(text)
    if not match:
        return None
    read_parts = [decimal_value(part.strip()) for part in match.group(1).split(":")]
    if any(part is None for part in read_parts):
        return None
    suffix = (match.group(2) or "").replace(".", "").lower()
    return Ratio(parts=tuple(part for part in read_parts if part is not None), suffix=suffix)


def _read_range(text: str) -> Value | None:
    match = _RANGE.fullmatch(text) or _WORD_RANGE.fullmatch(text)
    if not match:
        return None
    lead, separator = (match.group(1) or "").lower(), match.group(3).lower()
    if (separator == "and") != (lead == "between") and separator not in "-~":
        return None
    percent = "%" if "%" in match.group(4) and "%" not in match.group(2) else ""
    low, high = read_number(match.group(2) + percent), read_number(match.group(4))
    if low is None or high is None:
        return None
    if low.value >= high.value:
        falls = separator == "to" and not (low.unit or high.unit)
        return Ratio(parts=(low.value, high.value)) if falls else None
    return Range(low=Number(value=low.value, unit=high.unit), high=high)


def _read_compound(text: str) -> Value | None:
    """One measure in parts, such as 1 hour and 30 minutes."""
    if not _COMPOUND.fullmatch(text):
        return None
    numbers = [read_number(part) for part in _COMPOUND_PART.findall(text)]
    units = [number.unit for number in numbers if number is not None]
    if len(set(units)) != len(numbers) or not any(f.issuperset(units) for f in COMPOUND_UNITS):
        return None
    return Many(items=tuple(number for number in numbers if number is not None))


def _read_arithmetic(text: str) -> Value | None:
    worked = _TIMES.sub("*", text)
    if _ARITHMETIC.fullmatch(worked) and balanced(worked):
        return Arithmetic(text=worked)
    return None


def _read_matrix(text: str, depth: int) -> Value | None:
    match = _MATRIX.fullmatch(text)
    if not match:
        return None
    rows = [row for row in match.group(2).split(ROW) if row.strip()]
    read_rows = [tuple(read(cell, depth=depth + 1) for cell in row.split("&")) for row in rows]
    if not read_rows or any(cell is None for row in read_rows for cell in row):
        return None
    return Matrix(rows=tuple(tuple(c for c in row if c is not None) for row in read_rows))


def _read_plus_minus(text: str, depth: int) -> Value | None:
    """Both signs: two values."""
    if text.count("\u00b1") != 1 or any(c in text for c in ",;=<>"):
        return None
    plus, minus = text.replace("\u00b1", "+").strip(), text.replace("\u00b1", "-").strip()
    if plus.startswith("+"):
        plus = plus[1:].strip()
    items = (read(plus, depth=depth + 1), read(minus, depth=depth + 1))
    if items[0] is None or items[1] is None:
        return None
    exact = tuple(
        Expression(latex=i.text) if isinstance(i, Arithmetic) else i for i in items if i is not None
    )
    return Many(items=exact)


def _read_union(text: str, depth: int) -> Value | None:
    pieces = split_top(text, "\u222a")
    if len(pieces) < 2:
        return None
    parts = [read(piece, depth=depth + 1) for piece in pieces]
    if any(part is None for part in parts):
        return None
    return Union(parts=tuple(part for part in parts if part is not None))


def _read_enclosed(text: str, depth: int) -> Value | None:
    if (text[0], text[-1]) in ((SET_OPEN, SET_CLOSE), ("{", "}")):
        inner = text[1:-1].strip()
        if not balanced(inner):
            return None
        described = _DESCRIBED.fullmatch(inner)
        if described:
            return read(described.group(1), depth=depth + 1)
        items = _read_items(inner, depth) if inner else ()
        return None if items is None else Many(items=items)
    text = _POINT.sub(r"\1", text)
    if text[0] not in _BRACKETS or text[-1] not in _BRACKETS[text[0]]:
        return None
    if not balanced(text[1:-1]):
        return None
    items = _read_items(text[1:-1], depth)
    if items is None:
        return None
    if len(items) == 1 and text[0] == "(" and text[-1] == ")":
        return items[0]
    return Ordered(opening=text[0], items=items, closing=text[-1])


def _read_items(inner: str, depth: int) -> tuple[Value, ...] | None:
    pieces = split_top(inner, ";") if ";" in inner else split_top(inner, ",")
    values = [read(piece, listed=True, depth=depth + 1) for piece in pieces]
    if any(value is None for value in values):
        return None
    return tuple(value for value in values if value is not None)


def _read_relation(text: str, depth: int) -> Value | None:
    if "\u2208" in text:
        name, _, rest = text.partition("\u2208")
        value = read(rest, depth=depth + 1)
        return (
            value
            if value is None or not _NAME.fullmatch(name.strip())
            else Named(name=name.strip(), value=value)
        )
    if len(split_top(text, ",")) > 1 or " or " in text or " and " in text:
        return None
    signs = [match.group() for match in _RELATION.finditer(text)]
    sides = [side.strip() for side in _RELATION.split(text)]
    if not signs or any(not side for side in sides[1:]):
        return None
    if all(sign in "=\u2248" for sign in signs):
        return _read_equation(sides, depth)
    if len(signs) <= 2 and all(sign in _FLIPPED for sign in signs):
        return _read_inequality(sides, signs, depth)
    return Expression(latex=text)


def _read_equation(sides: list[str], depth: int) -> Value | None:
    last = read(sides[-1], depth=depth + 1)
    if last is None:
        return None
    first = sides[0]
    if not first or not _letters(first):
        # A worked sum: what stands after the last equals sign is the result, unless the sum itself does.
        result = read_number(first)
        if result is not None and isinstance(last, Arithmetic):
            return result
        if result is not None and isinstance(last, Text) and _NAME.fullmatch(last.text):
            return Named(name=last.text, value=result)
        if result is not None and isinstance(last, Number) and _contradict(result, last, first):
            return Many(items=(result, last))
        worked = isinstance(last, Number) or (
            isinstance(last, Expression) and not _letters(last.latex)
        )
        return last if worked else Equation(left=first, right=sides[-1])
    if _NAME.fullmatch(first) or _GEOMETRY.fullmatch(first):
        return Named(name=first, value=last)
    if (len(sides) == 2 and _OPERATORS.search(first)) or re.search(r"[-+]", first):
        return Equation(left=first, right=sides[-1])
    return Named(name=first, value=last)


def _contradict(first: Number, last: Number, written: str) -> bool:
    """Whether two plain numbers are set equal that are not."""
    plain = re.fullmatch(r"[-+]?[\d,]+(?:\.\d+)?", written) is not None
    return plain and first.value != last.value and not (first.unit or last.unit or first.decimals)


def _letters(text: str) -> bool:
    """Whether a formula has variables."""
    return re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", text)) is not None


def _read_inequality(sides: list[str], signs: list[str], depth: int) -> Value | None:
    if len(signs) == 1:
        left, right = read(sides[0], depth=depth + 1), read(sides[1], depth=depth + 1)
        if left is None or right is None:
            return None
        sign, bound, name = signs[0], right, sides[0]
        if isinstance(left, Number):
            sign, bound, name = _FLIPPED[sign], left, sides[1]
        if re.fullmatch(r"-\s*[a-zA-Z]", name) and isinstance(bound, Number):
            sign, bound, name = _FLIPPED[sign], replace(bound, value=-bound.value), name[1:].strip()
        if sign in (">", ">="):
            return Interval(
                low=bound, high=None, low_closed=sign == ">=", high_closed=False, variable=name
            )
        return Interval(
            low=None, high=bound, low_closed=False, high_closed=sign == "<=", variable=name
        )
    low, high = read(sides[0], depth=depth + 1), read(sides[2], depth=depth + 1)
    if low is None or high is None or signs[0][0] != signs[1][0]:
        return None
    closed = [len(sign) == 2 for sign in signs]
    if signs[0][0] == ">":
        low, high, closed = high, low, closed[::-1]
    return Interval(
        low=low, high=high, low_closed=closed[0], high_closed=closed[1], variable=sides[1]
    )


def _read_list(text: str, depth: int) -> Value | None:
    unified = re.sub(r",?\s+(?:and|or)\s+", ", ", _TUPLES.sub(r"\1, ", text))
    pieces = split_top(unified, ";")
    if len(pieces) < 2:
        pieces = split_top(unified, ",")
    if len(pieces) < 2 or len(pieces) > 200:
        return None
    values = [read(piece, listed=True, depth=depth + 1) for piece in pieces if piece.strip()]
    if any(value is None for value in values) or len(values) < 2:
        return None
    if any(isinstance(value, Text) and len(value.text.split()) > 4 for value in values):
        return None
    items = tuple(value for value in values if value is not None)
    joined = " or " in text and all(isinstance(item, Interval) for item in items)
    return Union(parts=items) if joined else Many(items=items)
