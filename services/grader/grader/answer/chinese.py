"""Chinese numerals, everyday and financial: fractions, percentages, scale suffixes after digits."""

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = {
    **dict(zip("\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d", range(10), strict=True)),
    **dict(zip("\u96f6\u58f9\u8d30\u53c1\u8086\u4f0d\u9646\u67d2\u634c\u7396", range(10), strict=True)),
    "\u3007": 0, "\u4e24": 2, "\u5169": 2, "\u8cb3": 2, "\u5e7a": 1, "\u53c3": 3, "\u9678": 6,
}  # fmt: skip
_TENS = {
    "\u5341": 10, "\u62fe": 10, "\u767e": 100, "\u4f70": 100, "\u5343": 1000, "\u4edf": 1000,
}  # fmt: skip
_MYRIADS = {"\u4e07": 10**4, "\u842c": 10**4, "\u4ebf": 10**8, "\u5104": 10**8}
SCALES = {**_TENS, **_MYRIADS}
"""Suffixes that multiply a number written in digits, as in 3.5 followed by ten thousand."""
_NEGATIVE = ("\u8d1f", "\u8ca0")
_POINT = "\u70b9"
_PERCENT = "\u767e\u5206\u4e4b"
OVER = "\u5206\u4e4b"
"""Between a denominator and the numerator that follows it."""
_AND_A_PART = "\u53c8"
_HALF = "\u534a"
_NUMERAL = "".join({*_DIGITS, *_TENS, *_MYRIADS})
_PREFIX = re.compile(f"[{_NUMERAL}{_POINT}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChineseNumber:
    """A numeral at the start of a phrase, and what follows it."""

    value: Fraction
    percent: bool
    rest: str


def read_chinese(text: str) -> ChineseNumber | None:
    """Read the numeral that a phrase starts with; None if it starts with none."""
    text = text.strip().replace(" ", "")
    negative = text.startswith(_NEGATIVE)
    if negative:
        text = text[1:]
    percent = text.startswith(_PERCENT)
    if percent:
        text = text[len(_PERCENT) :]
    half = re.match("\u4e00?\u534a", text)
    if half:
        return ChineseNumber(
            value=Fraction(-1 if negative else 1, 2), percent=percent, rest=text[half.end() :]
        )
    match = _PREFIX.match(text)
    value: Fraction | None
    over = re.match(r"(\d+)\u5206\u4e4b(\d+)", text)
    if over and int(over.group(1)):
        value = Fraction(int(over.group(2)), int(over.group(1)))
        return ChineseNumber(
            value=-value if negative else value, percent=False, rest=text[over.end() :]
        )
    arabic = re.match(r"\d+(?:\.\d+)?", text) if percent else None
    if match is None and arabic is None:
        return None
    if arabic is not None:
        value = Fraction(arabic.group())
        rest = text[arabic.end() :]
    else:
        assert match is not None
        value, rest = _numeral(match.group()), text[match.end() :]
        if value and rest.startswith(OVER):
            upper = _PREFIX.match(rest[len(OVER) :])
            numerator = _numeral(upper.group()) if upper else None
            if upper is None or numerator is None:
                return None
            value, rest = numerator / value, rest[len(OVER) + upper.end() :]
    if value is None:
        return None
    if percent:
        value /= 100
    elif match is not None and re.match("\u4e2a?\u534a", rest):
        # A measure word and a half: two and a half.
        value, rest = value + Fraction(1, 2), rest[rest.index(_HALF) + 1 :]
    elif rest.startswith(_AND_A_PART):
        part = read_chinese(rest[len(_AND_A_PART) :])
        if part is None or not 0 < part.value < 1:
            return None
        value, rest = value + part.value, part.rest
    return ChineseNumber(value=-value if negative else value, percent=percent, rest=rest)


def _numeral(text: str) -> Fraction | None:
    if text.count(_POINT) > 1 or text.startswith(_POINT) or text.endswith(_POINT):
        return None
    whole, _, decimals = text.partition(_POINT)
    integer = _integer(whole)
    if integer is None:
        return None
    if not decimals:
        return Fraction(integer)
    scale = 1
    while decimals and decimals[-1] in _MYRIADS:
        scale *= _MYRIADS[decimals[-1]]
        decimals = decimals[:-1]
    if not decimals or any(c not in _DIGITS for c in decimals):
        return None
    digits = "".join(str(_DIGITS[c]) for c in decimals)
    return (integer + Fraction(int(digits), 10 ** len(digits))) * scale


def _integer(text: str) -> int | None:
    if all(c in _DIGITS for c in text):
        return int("".join(str(_DIGITS[c]) for c in text))
    for name in ("\u4ebf", "\u5104", "\u4e07", "\u842c"):
        if name in text:
            head, _, tail = text.rpartition(name)
            high = _integer(head) if head else None
            if high is None:
                return None
            low = _low(tail, _MYRIADS[name] // 10) if tail else 0
            return None if low is None else high * _MYRIADS[name] + low
    return _section(text)


def _low(text: str, colloquial_scale: int) -> int | None:
    """What follows a myriad; a single digit without zero means the next place (three thousand two = 3200)."""
    if len(text) == 1 and text in _DIGITS:
        return _DIGITS[text] * colloquial_scale
    return _integer(text.lstrip("\u96f6\u3007")) if text.strip("\u96f6\u3007") else 0


def _section(text: str) -> int | None:
    total, digit, last_unit, zero = 0, None, 10**4, False
    for character in text:
        if character in _TENS:
            unit = _TENS[character]
            if unit >= last_unit:
                return None
            total += (1 if digit is None else digit) * unit
            digit, last_unit, zero = None, unit, False
        else:
            value = _DIGITS[character]
            if value == 0:
                zero = True
            elif digit is not None:
                return None
            else:
                digit = value
    if digit is not None:
        total += digit * (
            last_unit // 10 if last_unit > 10 and last_unit < 10**4 and not zero else 1
        )
    return total
