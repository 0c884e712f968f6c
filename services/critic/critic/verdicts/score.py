"""A number in a range: Score: 8, 8/10, [[7]], {"score": 0.85}, Reward: 1e-1.

The whole number is read and then checked against the range. What lies outside, runs on (8th, 7-8, 0,85), or is
stated on another scale than the one asked for is reported, never clamped, rescaled or replaced.
"""

import math
import re
from dataclasses import dataclass

from critic.verdicts.grammar import (
    UnclearError,
    first_line,
    label_pattern,
    last_line,
    last_sentence,
    opened,
    plain,
    words,
)

_NUM = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}(?![0-9]))+|[0-9]{1,40})?(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,4})?"
_NUMBER = re.compile(rf"(?=[-+]?\.?[0-9]){_NUM}")
_ABOUT = re.compile(r"(?i:(?:about|approximately|around|roughly|a|an|only|just|~|\u2248)\s*)+")
_NO_NUMBER = re.compile(
    r"(?i:[-+]?(?:nan|inf(?:inity)?|null|none|n/?a|unknown|undefined|not applicable|unclear|cannot|can't|unable)\b)"
)
_RUNS_ON = re.compile(
    r"\.{2,}\s*[0-9]|[,.]?[0-9]|[^\s*_`~\"'\u201d\u2019)\]}>.,;:!?/|(\u300d\u3002\uff0c\uff1b\uff01\uff08<\u2014\u2013\u00b1%\\$\u5206-]"
)
_UNIT = re.compile(r"(?i:\s?(?:points?|pts|stars?|marks?|\u5206)(?![A-Za-z]))")
_PAIR = re.compile(rf"[\s*_`]*[\[(]\s*{_NUM}\s*[,;]\s*{_NUM}\s*[\])]")
_COUNTED = re.compile(
    r"[*_`]{0,3}[ \t]+(?!(?:and|as|based|because|but|considering|despite|due|for|from|given|if|in|is|may|might|on|or"
    r"|out|overall|reflecting|since|so|though|although|to|which|while|with|would|could|requires?|means|of|scale|range|between)\b)"
    r"[a-z]{2,}"
)
"""What is counted, and no score: 3 errors."""
_MARKUP = re.compile(r"[*_`~\"'\u201d\u2019)\]}$]*\s*")
_RANGE = re.compile(r"(?i:(?:-|\u2013|\u2014|~|\u00b1|\+/-|to|or|and)\s*[-+]?\.?[0-9])")
_HYPOTHESIS = re.compile(
    r"(?i:(?:would|could|might|requires?|means|is (?:for|given|reserved)|if)\b)"
)
_OUT_OF = re.compile(rf"(?i:(?:/|\(?\s?out\s+of|of|\|)\s*[*_`]*)({_NUM})(?![0-9A-Za-z])")
_SCALE = re.compile(
    r"(?i:[^\n0-9]{0,24}\bscale\b[^\n0-9-]{0,12}|\s*\(?\s*(?:range|between|from)\s*:?\s*|\s*[(\[]\s*)"
    rf"({_NUM})\s*(?:-|\u2013|\u2014|to|and|\u2264)\s*({_NUM})\s*(?:[)\].,;]|$|\n)"
)
_FULL_MARKS = re.compile(rf"[^\n0-9]{{0,6}}\u6ee1\u5206[^\n0-9]{{0,3}}({_NUM})")
_RATED = re.compile(
    r"(?i:\b(?:rate|give|score|assign|award|grade|deserves?|earns?|gets?)\w{0,2}\b(?!:)[^.\n0-9\"\u201c]{0,60}?)"
    rf"(?P<rest>{_NUM}\s*(?i:/|out of)\s*{_NUM}.{{0,40}})"
)
_GIVEN = re.compile(
    r"\b(?i:I(?:'d| would| will)? (?:rate|rated|give|gave|score|scored|grade|award) (?:it|this|that|the)\b"
    rf"[^.\n0-9]{{0,40}}?)\s(?P<rest>{_NUM}(?=\s*(?:[/.,;!)]|$|\n)|\s(?:on|for|because|since|as|overall|out)\b).{{0,40}})"
)
"""I would rate this story a 2 on complexity."""
_FRACTION = re.compile(
    rf"{_NUM}\s*(?:/|(?i:out of))\s*{_NUM}[*_`]*\s*(?:[,.;:!(\u2014\u2013]|-\s)(?![0-9])"
)
_POINT = re.compile(
    rf"(?m:^)[ \t*_`]{{0,4}}({_NUM})[*_`]{{0,2}}\s?(?:[\u2014\u2013:]|-\s)\s?(?=[^\W\d_])"
)
"""A point of a scale with its meaning: "3 - mostly coherent"."""
_LABELS = re.compile(
    "(?i:"
    + label_pattern(
        r"score|rating|reward|grade|\u8bc4\u5206|\u5f97\u5206|\u5206\u6570|\u603b\u5206|\u6253\u5206",
        r"marks?|verdict|result|overall|total",
        links=r"is|was|of|(?:would|should) be|to|\u662f|\u4e3a",
    )
    + ")"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """A number as it was written, with the scale that was written beside it."""

    value: float
    low: float | None = None
    high: float | None = None
    percent: bool = False


class ScoreGrammar:
    """A finite number from low to high; without a range, within the scale that the judge states."""

    keys = words(
        "score rating reward grade mark points value result score_value numeric_score overall total "
        "\u8bc4\u5206 \u5f97\u5206 \u5206\u6570"
    )
    labels = _LABELS

    def __init__(self, *, low: float | None = None, high: float | None = None) -> None:
        """Take numbers from low to high, both included."""
        self._low = low
        self._high = high

    def exact(self, value: object, *, bracketed: bool = False) -> float | None:
        """Read a JSON number, or a text that begins with one."""
        if isinstance(value, bool):
            raise UnclearError(f"found {value}, and a number was asked for")
        if isinstance(value, int | float):
            return self._checked(_Stated(value=_as_float(value)))
        if value is None:
            raise UnclearError("found null, and a number was asked for")
        return self.statement(value) if isinstance(value, str) else None

    def statement(self, rest: str) -> float | None:
        """Read a number at the start that ends there, with a scale after it if there is one."""
        if _PAIR.match(rest):
            raise UnclearError(f"found {rest[:40]!r}, and one number was asked for")
        text = opened(rest)
        text = opened(text[_matched(_ABOUT, text) :])
        if _NO_NUMBER.match(text):
            raise UnclearError(f"found {text[:40]!r}, and a number was asked for")
        number = _NUMBER.match(text)
        if number is None:
            return None
        stated = _with_scale(float(number[0].replace(",", "")), text, number.end())
        return None if stated is None else self._checked(stated)

    def closing(self, body: str) -> float | None:
        """Read a line that is a number, a last sentence that rates with a scale, a first line such as 3 - coherent."""
        for line in (last_line(body), first_line(body)):
            text = plain(line.lstrip(">"))
            if re.fullmatch(rf"{_NUM}(?:\s*(?:/|(?i:out of|of))\s*{_NUM}|\s?%)?", text):
                return self.statement(text)
        rated = [_RATED.search(last_sentence(body)), *_GIVEN.finditer(body)]
        for match in reversed(rated):
            if match and match["rest"][:1] in "+-.0123456789":
                return self.statement(match["rest"])
        if _FRACTION.match(opened(body)):
            return self.statement(body[:200])
        points = [point for point in _POINT.finditer(body) if point[1]]
        if len(points) == 1 and points[0].start() == 0:
            return self.statement(points[0][1])
        return None

    def claims(self, body: str) -> frozenset[object]:
        """Return nothing: prose does not speak for numbers."""
        return frozenset()

    def _checked(self, stated: _Stated) -> float:
        value, low, high = stated.value, self._low, self._high
        if not math.isfinite(value):
            raise UnclearError("found a number that is not finite")
        if stated.percent and high != 100:
            if high is not None and (low, high) != (0, 1):
                raise UnclearError(f"found {value:g} %, and {low:g} to {high:g} was asked for")
            value /= 100
        if stated.high is not None:
            if low is None or high is None:
                low, high = stated.low, stated.high
            elif stated.high != high:
                raise UnclearError(
                    f"found {value:g} on a scale to {stated.high:g}, and {low:g} to {high:g} was asked for"
                )
        if (low is not None and value < low) or (high is not None and value > high):
            raise UnclearError(f"found {value:g}, and {low or 0:g} to {high or 0:g} is right")
        return value


def _with_scale(value: float, text: str, end: int) -> _Stated | None:
    """Read what follows a number: nothing that matters, a unit, a scale; None for a mere supposition."""
    after = text[end:]
    unit = _UNIT.match(after)
    if unit:
        after = after[unit.end() :]
    elif _RUNS_ON.match(after):
        raise UnclearError(f"found {text[:40]!r}, which is no plain number")
    elif _COUNTED.match(after):
        raise UnclearError(f"found {text[:40]!r}, which is no score")
    percent = after.startswith(("%", "\\%"))
    after = after.removeprefix("\\").removeprefix("%") if percent else after
    after = after[_matched(_MARKUP, after) :]
    out_of = _OUT_OF.match(after)
    if out_of and out_of[1]:
        if _RANGE.match(after[out_of.end() :].lstrip()):
            raise UnclearError(f"found {text[:40]!r}, which is no plain number")
        return _Stated(value=value, high=float(out_of[1].replace(",", "")))
    if _HYPOTHESIS.match(after):
        return None
    if _RANGE.match(after):
        raise UnclearError(f"found the range {text[:40]!r}")
    scale = _SCALE.match(after)
    if scale and scale[1] and scale[2]:
        low, high = (float(part.replace(",", "")) for part in scale.groups())
        return _Stated(value=value, low=low, high=high)
    full = _FULL_MARKS.match(after)
    if full and full[1]:
        return _Stated(value=value, high=float(full[1]))
    return _Stated(value=value, percent=percent)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _matched(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0
