"""Numbers in running text, and whether one follows from others by the working that a text shows."""

import ast
import math
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, islice, pairwise

from grader.answer.words import is_number_word, read_words

MAX_NUMBERS = 4000
"""Of one text."""
MAX_FORMULAS = 2000
MAX_AT_HAND = 30
"""Known numbers from which one step is taken in the head; from many any number can be reached."""
MAX_DIGITS = 60
"""A longer number is none that anyone works with."""
_LARGE = 10**15
"""Numbers from here on are looked up and not computed with."""
_NUMBER = re.compile(
    r"(?<![\w.])(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s?/\s?(?P<under>\d+(?:\.\d+)?)(?![\d/]))?\s?(?P<unit>%|percent\b|k\b|thousand\b|million\b|billion\b|dozen\b)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"\b[A-Za-z]+(?:[ -][A-Za-z]+){0,7}")
_SCALES: dict[str, int | Fraction] = {
    "k": 1000, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12,
    "%": Fraction(1, 100), "percent": Fraction(1, 100),
}  # fmt: skip
_FORMULA = re.compile(r"[-+*/().\d ,$%xX\u00d7\u00f7\u2212\u00b7^=]{3,400}")
_FACTORS = (2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)
"""What people multiply and divide by without being told: twice, half, hours of a day, percent."""
_CONSTANTS = frozenset((
    *_FACTORS, 14, 15, 16, 18, 20, 25, 28, 31, 36, 40, 48, 50, 75, 90, 120, 144, 180, 200, 360, 366, 500,
    1024, 1440, 1760, 2000, 3600, 5280, 10000, Fraction("3.14"), Fraction("2.54"),
))  # fmt: skip
"""What a formula may hold without a source: measures, calendars, round numbers."""
_TERM = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_OPERAND = r"[-($]{0,8}(?<![\d.,])(?:\d[\d,]{0,60}(?:\.\d{1,60})?|\.\d{1,60})[)%]{0,8}"
_ARITHMETIC = re.compile(
    rf"{_OPERAND}(?: ?(?:\*\*|[-+*/^\u00d7\u00f7\u2212\u00b7]) ?{_OPERAND}){{1,100}}"
)
"""Arithmetic inside a program or a command."""
_SPOKEN = tuple(
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), sign)
    for words, sign in (
        ("plus|added to", "+"), ("minus|less", "-"), ("times|multiplied by", "*"),
        ("divided by", "/"), ("equals?|equal to|is|makes|gives", "="),
    )
)  # fmt: skip
_UNITS = re.compile(r"<<.{0,200}?>>|(?:/ ?)?[A-Za-z][A-Za-z'\u2019-]*\.?|\(\s*\)|:")
_ROUNDS = 3
_ROUNDED = 0.005
"""Share by which a rounded result may differ from the exact one."""


def numbers_in(text: str) -> Iterator[Fraction]:
    """Yield the numbers of a text in order; `20%` is 20 and 1/5, `1/2` is also 1 and 2, `two dozen` is 24."""
    count = 0
    for match in sorted(
        (*_NUMBER.finditer(text), *_number_words(text)), key=lambda found: found.start()
    ):
        for value in _values(match):
            yield value
            count += 1
        if count >= MAX_NUMBERS:
            return


def terms_in(text: str) -> Iterator[Fraction]:
    """Yield the numbers that stand in a text; unlike `numbers_in` without what two of them give, as in `84/2`."""
    for count, match in enumerate(_TERM.finditer(text)):
        if count == MAX_NUMBERS:
            return
        if len(match.group()) <= MAX_DIGITS:
            yield Fraction(match.group().replace(",", ""))
    for word in _number_words(text):
        yield from _values(word)


@dataclass(slots=True)
class Known:
    """Numbers that a trajectory has a reason to know."""

    values: set[Fraction] = field(default_factory=set)

    def add(self, value: Fraction) -> None:
        """Note a number; its sign does not matter."""
        self.values.add(abs(value))

    def holds(self, value: Fraction) -> bool:
        """Whether a number is known."""
        return abs(value) in self.values

    def at_hand(self) -> set[Fraction]:
        """Return what is known, and what one step in the head leads to from it; from many numbers any is near."""
        held = set(self.values)
        if len(self.values) > MAX_AT_HAND:
            return held
        for one in self.values:
            held.update(one * factor for factor in _FACTORS)
            held.update(one / factor for factor in _FACTORS)
        for one, other in combinations(self.values, 2):
            held.update((one + other, abs(one - other), one * other))
            if one and other:
                held.update((one / other, other / one))
        return held

    def learn_all(self, text: str) -> None:
        """Note every number of a text that was given."""
        for value in numbers_in(text):
            self.add(value)

    def learn(self, text: str) -> None:
        """Note the numbers that the working in a text leads to.

        A right formula of known numbers makes its result known. So does a sentence whose number is the sum,
        difference, product or quotient of two numbers that it mentions after they were known, or one by a usual factor.
        """
        formulas = [match.group() for match in islice(_FORMULA.finditer(text), MAX_FORMULAS)]
        spoken = _without_words(text)
        formulas += [match.group() for match in islice(_FORMULA.finditer(spoken), MAX_FORMULAS)]
        self._learn_mentioned(text)
        for _ in range(_ROUNDS):
            before = len(self.values)
            for formula in formulas:
                self._learn_formula(formula)
            self._learn_mentioned(text)
            if len(self.values) == before:
                return

    def _learn_mentioned(self, text: str) -> None:
        mentioned: list[Fraction] = []
        for value in numbers_in(text):
            if self.holds(value):
                mentioned.append(value)
            elif _follows(abs(value), mentioned[-8:]):
                self.add(value)
                mentioned.append(value)

    def _learn_formula(self, formula: str) -> None:
        sides = [side.strip() for side in formula.split("=")]
        for left, right in pairwise(sides):
            found = _TERM.findall(left)
            if any(len(term) > MAX_DIGITS for term in found):
                continue
            terms = [Fraction(term.replace(",", "")) for term in found]
            result = evaluate(right)
            if result is None or len(terms) < 2 or not _usable(terms, self.values):
                continue
            exact = evaluate(left)
            if exact is not None and _near(_float(exact), _float(result)):
                self.add(result)


def guessed_by(text: str, origin: Set[Fraction]) -> Iterator[Fraction]:
    """Yield what the arithmetic in a call gives where it works with numbers of no origin."""
    for match in islice(_ARITHMETIC.finditer(text), MAX_FORMULAS):
        if not _usable(terms_in(match.group()), origin):
            value = evaluate(match.group())
            if value is None:
                value = evaluate(match.group().strip("()"))
            if value is not None:
                yield abs(value)


def _usable(terms: Iterable[Fraction], origin: Set[Fraction]) -> bool:
    """Whether a formula works with numbers of known origin and small ones only, and with one of known origin."""
    had = [(term, term in origin) for term in terms]
    return any(known for _, known in had) and all(
        known or term <= 12 or term in _CONSTANTS for term, known in had
    )


def _without_words(text: str) -> str:
    """Return text in which `4 dogs times 3 legs per dog equals 12 legs` is 4 * 3 = 12."""
    for word, sign in _SPOKEN:
        text = word.sub(sign, text)
    return re.sub(r" {2,}", " ", _UNITS.sub(" ", text))


def evaluate(text: str) -> Fraction | None:
    """Return the exact value of plain arithmetic; None if it is none, or too large."""
    plain = re.sub(r"(?<=[\d)])\s*[xX\u00d7\u00b7]\s*(?=[\d($.])", "*", text.strip())
    plain = re.sub(r"(?<=\d)\s*\(", "*(", plain)
    plain = plain.replace("\u00f7", "/").replace("\u2212", "-").replace("$", "").replace("^", "**")
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", re.sub(r"(\d+(?:\.\d+)?)\s*%", r"(\1/100)", plain))
    if not plain or len(plain) > 200:
        return None
    try:
        return _value(ast.parse(plain.strip(" .,"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.Pow() if right.denominator == 1 and 0 <= right <= 20 and abs(left) < 10**6:
                return left ** int(right)
    raise ValueError("no plain arithmetic")


def _follows(value: Fraction, known: list[Fraction]) -> bool:
    wanted = _float(value)
    numbers = [abs(_float(one)) for one in known]
    if math.isnan(wanted):
        return False
    for index, one in enumerate(numbers):
        if any(_near(one * factor, wanted) or _near(one / factor, wanted) for factor in _FACTORS):
            return True
        for other in numbers[index + 1 :]:
            results = [one + other, abs(one - other), one * other]
            if one and other:
                results += [one / other, other / one]
            if any(_near(result, wanted) for result in results):
                return True
    return False


def _float(value: Fraction) -> float:
    return float(value) if abs(value) < _LARGE else math.nan


def _near(exact: float, stated: float) -> bool:
    """Whether a number is another one, or that one rounded: no result of whole numbers is rounded when it is whole."""
    if exact == stated:
        return True
    if exact.is_integer():
        return False
    whole = stated in (math.floor(exact), math.ceil(exact))
    return whole or abs(exact - stated) <= min(1.0, abs(exact) * _ROUNDED)


def _number_words(text: str) -> Iterator[re.Match[str]]:
    for match in _WORD.finditer(text):
        words = match.group().lower().replace("-", " ").split()
        if any(is_number_word(word) or word in _NAMED for word in words):
            yield match


_NAMED = {
    "half": Fraction(1, 2), "twice": Fraction(2), "double": Fraction(2), "triple": Fraction(3),
    "thrice": Fraction(3), "quarter": Fraction(1, 4), "third": Fraction(1, 3), "dozen":
    Fraction(12), "pair": Fraction(2), "couple": Fraction(2), "once": Fraction(1),
}  # fmt: skip


def _values(match: re.Match[str]) -> Iterator[Fraction]:
    groups = match.groupdict()
    if not groups:
        yield from _values_of_words(match.group().lower().replace("-", " ").split())
        return
    if len(match.group()) > MAX_DIGITS:
        return
    whole = Fraction(groups["digits"].replace(",", ""))
    yield whole
    under = groups["under"]
    if under is not None and Fraction(under):
        yield Fraction(under)
        yield whole / Fraction(under)
    if groups["unit"]:
        yield whole * _SCALES[groups["unit"].lower()]


def _values_of_words(words: list[str]) -> Iterator[Fraction]:
    position = 0
    while position < len(words):
        read = read_words(" ".join(words[position:])) if is_number_word(words[position]) else None
        if words[position] in _NAMED:
            yield _NAMED[words[position]]
        if read is not None:
            yield read.value
            position += max(1, len(words) - position - len(read.rest.split()))
        else:
            position += 1
