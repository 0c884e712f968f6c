"""English number words: `seventy-two`, `two and a half million`, `three quarters`, `minus three`."""

import re
from dataclasses import dataclass
from fractions import Fraction

_SMALL_NAMES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_SMALL = {word: value for value, word in enumerate(_SMALL_NAMES)}
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty":
    80, "ninety": 90, "fourty": 40,
}  # fmt: skip
_SCALES = {
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "lakh": 10**5,
    "crore": 10**7,
}
_DENOMINATORS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6,
    "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10, "twelfth": 12, "twentieth": 20,
    "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
NUMBER_WORDS = frozenset((*_SMALL, *_TENS, *_SCALES, "hundred", "dozen"))
"""The words that numbers are made of."""
_DIGITS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_TOKEN = re.compile(r",?\s+|[\s-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WordNumber:
    """A number at the start of a phrase, and the words after it."""

    value: Fraction
    rest: str


def is_number_word(word: str) -> bool:
    """Whether a word belongs to a number when written out."""
    return word in NUMBER_WORDS


def read_words(text: str) -> WordNumber | None:
    """Read the longest number that a phrase starts with; None if it starts with none."""
    tokens = _TOKEN.split(text.strip().lower())
    if len(tokens) > 40:
        return None
    negative = tokens[0] in ("minus", "negative")
    if negative:
        tokens = tokens[1:]
    parsed = _read_tokens(tokens)
    if parsed is None:
        return None
    value, used = parsed
    return WordNumber(value=-value if negative else value, rest=" ".join(tokens[used:]))


def _read_tokens(tokens: list[str]) -> tuple[Fraction, int] | None:
    fraction = _fraction_at(tokens, 0)
    if fraction is not None:
        return fraction
    whole = _integer_at(tokens)
    if whole is None:
        return None
    value, used = whole
    if tokens[used : used + 1] == ["and"]:
        extra = _fraction_at(tokens, used + 1)
        if extra is not None:
            value, used = value + extra[0], extra[1]
            return _scaled(tokens, value, used)
    if tokens[used : used + 1] == ["point"]:
        digits = []
        position = used + 1
        while position < len(tokens) and _SMALL.get(tokens[position], 10) < 10:
            digits.append(str(_SMALL[tokens[position]]))
            position += 1
        if digits:
            value += Fraction(int("".join(digits)), 10 ** len(digits))
            return _scaled(tokens, value, position)
    return value, used


def _scaled(tokens: list[str], value: Fraction, used: int) -> tuple[Fraction, int]:
    """Take a scale word that follows a fraction, as in two and a half million."""
    factor = {**_SCALES, "dozen": 12}.get(tokens[used]) if used < len(tokens) else None
    return (value, used) if factor is None else (value * factor, used + 1)


def _fraction_at(tokens: list[str], start: int) -> tuple[Fraction, int] | None:
    """`one half`, `a quarter`, `three quarters`, `half`; None where a denominator does not follow."""
    if start >= len(tokens):
        return None
    first = tokens[start]
    if first == "half":
        used = start + 1
        if tokens[used : used + 1] == ["a"] and tokens[used + 1 : used + 2]:
            scale = {"dozen": 12, "million": 10**6, "billion": 10**9}.get(tokens[used + 1])
            if scale:
                return Fraction(scale, 2), used + 2
        return Fraction(1, 2), used
    numerator = 1 if first in ("a", "an") else _SMALL.get(first)
    if numerator is None or start + 1 >= len(tokens):
        return None
    denominator = _DENOMINATORS.get(tokens[start + 1].removesuffix("s")) or _DENOMINATORS.get(
        tokens[start + 1]
    )
    if denominator is None:
        return None
    return Fraction(numerator, denominator), start + 2


def _integer_at(tokens: list[str]) -> tuple[Fraction, int] | None:
    total = Fraction(0)
    current = Fraction(0)
    last_scale = 10**15
    used = 0
    room = 10**9
    seen = False
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "and" and seen and position + 1 < len(tokens) and current % 100 == 0:
            position += 1
            continue
        if token in ("a", "an") and not seen:
            if tokens[1:2] and (tokens[1] in _SCALES or tokens[1] in ("hundred", "dozen")):
                current, seen, room, position = Fraction(1), True, 1, position + 1
                continue
            return None
        value = _SMALL.get(token, _TENS.get(token))
        if value is not None:
            if value >= room or (value == 0 and seen):
                break
            current += value
            room = 10 if token in _TENS else 1
        elif token == "hundred" and 0 < current < 100:
            current *= 100
            room = 100
        elif token == "dozen" and current:
            current *= 12
            room = 1
        elif token in _SCALES and current and _SCALES[token] < last_scale:
            last_scale = _SCALES[token]
            total += current * last_scale
            current, room = Fraction(0), 1000
        elif _DIGITS.fullmatch(token) and room > 100 and current == 0:
            current += Fraction(token.replace(",", ""))
            room = 1
        else:
            break
        seen = True
        position += 1
        used = position
    return (total + current, used) if seen and used else None
