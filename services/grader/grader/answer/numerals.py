"""Numbers as people and models write them, read exactly.

Separators, decimal commas, signs, currencies, units, percent, suffixes (k, million), fractions, mixed numbers,
scientific notation, repeating decimals, number words and Chinese numerals. Everything is a `Fraction`; nothing is
rounded. Exponents and lengths are bounded, so a hostile span costs nothing.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from grader.answer.chinese import OVER as CHINESE_OVER
from grader.answer.chinese import SCALES as CHINESE_SCALES
from grader.answer.chinese import read_chinese
from grader.answer.units import CURRENCIES, CURRENCY_PREFIXES, KNOWN_UNITS, currency_of, read_unit
from grader.answer.values import Number
from grader.answer.words import is_number_word, read_words

MAX_EXPONENT = 400
"""A power of ten beyond this is not read as a number."""
MAX_BITS = 8192
"""A power whose result needs more bits is not read as a number."""

_DECIMAL = (
    r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d{1,3}(?:[ '_]\d{3})+(?!\d)|\d+)(?:\.\d+|\.(?!\d))?|\.\d+"
)
_PLAIN = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)")
_NUMBER = re.compile(_DECIMAL)
_MIXED = re.compile(
    rf"({_DECIMAL})(?:\s+and)?\s*(?:(?<=[\s\d])\\frac\{{\s*(\d+)\s*\}}\{{\s*(\d+)\s*\}}|\s(\d+)\s*/\s*(\d+))"
)
_LATEX_FRACTION = re.compile(
    rf"\\frac\{{\s*([-+]?)\s*({_DECIMAL})\s*\}}\{{\s*([-+]?)\s*({_DECIMAL})\s*\}}"
)
_FRACTION = re.compile(
    rf"(\(\s*[-+]?\s*(?:{_DECIMAL})\s*\)|{_DECIMAL})\s*/\s*(\(\s*[-+]?\s*(?:{_DECIMAL})\s*\)|{_DECIMAL})"
)
_SCIENTIFIC = re.compile(
    rf"(?:({_DECIMAL})\s*(?:\*|x|X)\s*)?10\s*(?:\^|\*\*)\s*(?:\{{\s*([-+]?\s*\d+)\s*\}}|\(\s*([-+]?\d+)\s*\)|([-+]?\d+))"
)
_EXPONENT = re.compile(rf"({_DECIMAL})[eE]([-+]?\d+)(?![\d.])")
_POWER = re.compile(r"(\d+)\s*(?:\^|\*\*)\s*(?:\{\s*(\d+)\s*\}|(\d+))(?!\s*(?:\^|\*\*))")
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\overline\{\s*(\d+)\s*\}|\\bar\{?\s*(\d+)\s*\}?|\\dot\{(\d)\}|\((\d+)\))"
)
_DECIMAL_COMMA = re.compile(
    r"(\d{1,3}(?:\.\d{3})+|\d{1,3}(?: \d{3})+|\d+),(\d{1,2}|\d{4,})(?![\d,.])|(0),(\d+)(?![\d,.])"
)
_DOTTED_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3}){2,}(?![\d.])")
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")
_WESTERN = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_SUFFIX = re.compile(
    r"\s*((?i:thousands?|millions?|billions?|trillions?|lakhs?|crores?|dozens?|bn|mn|mln|mil|tn)|MM|[kKmMbBT])"
    r"(?![a-zA-Z^/\d])"
)
_SUFFIX_FACTORS = {
    "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5,
    "crore": 10**7, "dozen": 12, "bn": 10**9, "mn": 10**6, "mln": 10**6, "mil": 10**6, "mm": 10**6, "tn": 10**12,
}  # fmt: skip
_PERCENT = re.compile(
    r"\s*(?:%|percent(?:age)?(?:\s+points?)?|per\s+cent|pct\.?)(?![a-zA-Z])", re.IGNORECASE
)
_APPROXIMATE = re.compile(
    r"(?:(?:about|approximately|approx\.?|around|roughly|nearly|exactly|only|just|a total of"
    r"|\u7ea6|\u5927\u7ea6|\u5171)\s*|\u2248\s*|~\s*)",
    re.IGNORECASE,
)
_GLUED = re.compile(r"(?!(?:st|nd|rd|th)\b)[a-zA-Z]{1,2}(?![a-zA-Z])|\s[b-zB-HJ-Z]$")
_SIGN = re.compile(r"[-+]\s*")
_PART_OF = re.compile(r"([a-z-]+|\d+)\s+(?:out\s+of|over|in)\s+([a-z-]+|\d[\d,]*)", re.IGNORECASE)
_THOUSANDS_OR_FRACTION = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])|0,\d+(?![\d,])")
"""What a comma inside a number looks like, even where several numbers may be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """The numeric part of a phrase and where it ends."""

    value: Fraction
    end: int
    decimals: int = 0
    plain: bool = False
    """A simple decimal, which a scale suffix may follow."""


def read_number(text: str, *, listed: bool = False) -> Number | None:
    """Read a whole normalised span as one number; None if it is not one.

    Args:
        text: the span, from `normalize`.
        listed: read `3,5` as two numbers (and so not as one) instead of with a decimal comma.
    """
    if _PLAIN.fullmatch(text):
        return Number(value=Fraction(text), decimals=len(text.partition(".")[2]))
    text = _strip_brackets(text)
    approximate = _APPROXIMATE.match(text)
    if approximate:
        text = text[approximate.end() :]
    negative, currency, text = _prefixes(text)
    if listed and "," in text and not _THOUSANDS_OR_FRACTION.match(text):
        return None
    part = _PART_OF.fullmatch(text)
    if part:
        return _read_part(part.group(1), part.group(2), negative=negative)
    body = _read_body(text)
    if body is None:
        return _read_written(text, negative=negative, currency=currency)
    return _finish(text, body, negative=negative, currency=currency)


def _read_part(upper: str, lower: str, *, negative: bool) -> Number | None:
    """Read `2 out of 5` as a fraction."""
    numbers = read_number(upper), read_number(lower)
    if numbers[0] is None or numbers[1] is None or not numbers[1].value:
        return None
    if numbers[0].unit or numbers[1].unit:
        return None
    value = numbers[0].value / numbers[1].value
    return Number(value=-value if negative else value)


def _strip_brackets(text: str) -> str:
    while (
        len(text) > 2
        and text[0] == "("
        and text[-1] == ")"
        and text.count("(") == 1
        and "," not in text
    ):
        text = text[1:-1].strip()
    if len(text) > 2 and text[0] == "{" and text[-1] == "}" and text.count("{") == 1:
        text = text[1:-1].strip()
    return text


def _prefixes(text: str) -> tuple[bool, str, str]:
    """Take signs and a currency off the front: -$5, $-5, USD 18, minus 3."""
    negative = False
    currency = ""
    for _ in range(3):
        sign = _SIGN.match(text)
        if sign:
            negative ^= text[0] == "-"
            text = _strip_brackets(text[sign.end() :])
            continue
        lowered = text[:4].lower()
        prefix = next((p for p in CURRENCY_PREFIXES if lowered.startswith(p)), None)
        if prefix is None or currency or (prefix.isalpha() and text[len(prefix) :][:1].isalpha()):
            break
        currency = currency_of(prefix) or "?"
        text = text[len(prefix) :].lstrip()
    return negative, "" if currency == "?" else currency, text


def _read_body(text: str) -> _Body | None:
    if not text or not (text[0].isdigit() or text[0] in ".\\("):
        return None
    for read in (_read_repeating, _read_mixed, _read_fraction, _read_scientific, _read_power):
        body = read(text)
        if body is not None:
            return body
    return _read_decimal(text)


def _read_repeating(text: str) -> _Body | None:
    match = _REPEATING.match(text)
    if not match:
        return None
    whole, fixed = match.group(1) or "0", match.group(2)
    cycle = next(group for group in match.groups()[2:] if group)
    value = Fraction(int(whole + fixed), 10 ** len(fixed))
    value += Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
    return _Body(value=value, end=match.end())


def _read_mixed(text: str) -> _Body | None:
    match = _MIXED.match(text)
    if not match:
        return None
    whole = decimal_value(match.group(1))
    upper, lower = match.group(2) or match.group(4), match.group(3) or match.group(5)
    if whole is None or "." in match.group(1) or int(lower) == 0:
        return None
    return _Body(value=whole + Fraction(int(upper), int(lower)), end=match.end())


def _read_fraction(text: str) -> _Body | None:
    match = _LATEX_FRACTION.match(text)
    if match:
        upper, lower = decimal_value(match.group(2)), decimal_value(match.group(4))
        flip = (match.group(1) == "-") != (match.group(3) == "-")
    else:
        match = _FRACTION.match(text)
        if not match:
            return None
        sides = [side.strip("() ").replace(" ", "") for side in match.groups()]
        upper, lower = (decimal_value(side.lstrip("+-")) for side in sides)
        flip = sides[0].startswith("-") != sides[1].startswith("-")
    if upper is None or not lower:
        return None
    return _Body(value=-upper / lower if flip else upper / lower, end=match.end())


def _read_scientific(text: str) -> _Body | None:
    match = _EXPONENT.match(text)
    if match:
        factor, exponent = decimal_value(match.group(1)), match.group(2)
    else:
        match = _SCIENTIFIC.match(text)
        if not match:
            return None
        factor = decimal_value(match.group(1)) if match.group(1) else Fraction(1)
        exponent = next(group for group in match.groups()[1:] if group).replace(" ", "")
    if factor is None or len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    return _Body(value=factor * Fraction(10) ** int(exponent), end=match.end())


def _read_power(text: str) -> _Body | None:
    match = _POWER.match(text)
    if not match:
        return None
    base, exponent = match.group(1), match.group(2) or match.group(3)
    if len(exponent) > 5 or len(base) > 600 or int(base).bit_length() * int(exponent) > MAX_BITS:
        return None
    return _Body(value=Fraction(int(base) ** int(exponent)), end=match.end())


def _read_decimal(text: str) -> _Body | None:
    match = _DECIMAL_COMMA.match(text)
    if match:
        whole, decimals = (
            re.sub(r"[. ]", "", match.group(1) or "0"),
            match.group(2) or match.group(4),
        )
        value = Fraction(f"{whole}.{decimals}")
        return _Body(value=value, end=match.end(), decimals=len(decimals), plain=True)
    match = _DOTTED_THOUSANDS.match(text)
    if match:
        return _Body(value=Fraction(match.group().replace(".", "")), end=match.end(), plain=True)
    match = _NUMBER.match(text)
    if not match:
        return None
    written = decimal_value(match.group())
    if written is None:
        return None
    decimals = match.group().partition(".")[2]
    return _Body(value=written, end=match.end(), decimals=len(decimals), plain=True)


def decimal_value(text: str) -> Fraction | None:
    """Return the value of digits with separators, None if the separators are not where they belong."""
    if "," in text:
        if not (_WESTERN.fullmatch(text) or _INDIAN.fullmatch(text)):
            return None
        text = text.replace(",", "")
    text = text.replace(" ", "").replace("'", "").replace("_", "").rstrip(".")
    if not text or len(text) > 2000:
        return None
    return Fraction(text)


def _finish(text: str, body: _Body, *, negative: bool, currency: str) -> Number | None:
    value = -body.value if negative else body.value
    rest = text[body.end :]
    if rest.startswith(CHINESE_OVER):
        return _read_written(text, negative=negative, currency=currency)
    if body.plain and rest[:5].lower() in (" and ", "-and-"):
        return _read_written(text, negative=negative, currency=currency)
    if body.plain and rest[:1] in ("-", " "):
        word = rest.lstrip(" -").split(" ")[0].split("-")[0].lower()
        if is_number_word(word):
            return _read_written(text, negative=negative, currency=currency)
    decimals = body.decimals
    if body.plain and rest:
        factor, used = _suffix(rest, currency)
        if used:
            value, rest, decimals = value * factor, rest[used:], 0
    percent = _PERCENT.match(rest)
    if percent:
        value, rest, decimals = value / 100, rest[percent.end() :], decimals + 2 if decimals else 0
    if rest[:1].isdigit():
        return None
    if _GLUED.match(rest) and read_unit(rest.strip().split(" ")[0]) not in KNOWN_UNITS:
        # Letters right behind the digits are variables, as in 3x.
        return None
    return _with_unit(value, rest, currency, decimals)


def _suffix(rest: str, currency: str) -> tuple[int, int]:
    """Return the factor of a scale suffix and how many characters it takes; (1, 0) without one."""
    stripped = rest.lstrip()
    if stripped[:1] in CHINESE_SCALES and stripped:
        factor, used = 1, len(rest) - len(stripped)
        while rest[used : used + 1] in CHINESE_SCALES and rest[used : used + 1]:
            factor *= CHINESE_SCALES[rest[used]]
            used += 1
        # A thousand before a unit of measure is part of that unit (kilometre, kilogram).
        if rest[used - 1] == "\u5343" and rest[used : used + 1] in ("\u7c73", "\u514b"):
            return 1, 0
        return factor, used
    match = _SUFFIX.match(rest)
    if not match:
        return 1, 0
    name = match.group(1)
    if len(name) > 1:
        name = name.lower()
        return _SUFFIX_FACTORS[
            name if name in _SUFFIX_FACTORS else name.removesuffix("s")
        ], match.end()
    spaced = rest[0] == " "
    money = bool(currency) or _names_currency(rest[match.end() :])
    if name == "k":
        return 10**3, match.end()
    if name == "K" and (not spaced or money):
        return 10**3, match.end()
    if name in "Mm" and (money or (name == "M" and not spaced)):
        return 10**6, match.end()
    if name in "Bb" and (money or (name == "B" and not spaced)):
        return 10**9, match.end()
    if name == "T" and money:
        return 10**12, match.end()
    return 1, 0


def _names_currency(rest: str) -> bool:
    return read_unit(rest) in CURRENCIES


def _read_written(text: str, *, negative: bool, currency: str) -> Number | None:
    """Read number words or Chinese numerals."""
    if not text or len(text) > 300:
        return None
    if not text.isascii():
        chinese = read_chinese(text)
        if chinese is None:
            return None
        value = -chinese.value if negative else chinese.value
        return _with_unit(value, chinese.rest, currency, 0)
    written = read_words(text)
    if written is None:
        return None
    value, rest = written.value, written.rest
    percent = _PERCENT.match(rest)
    if percent:
        value, rest = value / 100, rest[percent.end() :]
    if any(is_number_word(word) for word in rest.split()):
        return None
    return _with_unit(-value if negative else value, rest, currency, 0)


def _with_unit(value: Fraction, rest: str, currency: str, decimals: int) -> Number | None:
    unit = read_unit(rest)
    if unit is None:
        return None
    if unit and currency and unit not in (currency, "usd"):
        unit = f"{currency} {unit}" if unit not in CURRENCIES else unit
    return Number(value=value, unit=unit or currency, decimals=decimals)
