"""`empty_or_listed`: no answer at all, or several where one is wanted.

    {"guards": {"empty_or_listed": {"action": "zero", "reference": "{{item.answer}}"}}}

A reward that looks for the reference inside the response, or the response inside the reference, teaches to say nothing
or to list everything. `reference` says whether a list is wanted; by default it is what the definition's first `answer`,
`string_check` or `text_similarity` compares with. Without one, one value is wanted.
"""

import asyncio
import re
from dataclasses import dataclass
from fractions import Fraction

from grader.answer.compare import Equality, Means, compare
from grader.answer.extraction import extract
from grader.answer.normalize import normalize
from grader.answer.reading import read
from grader.answer.symbolic import Symbolic
from grader.answer.values import Interval, Many, Number, Ordered, Range, Text, Union, Value
from grader.fields import Fields
from grader.guards.base import Case
from grader.guards.grounds import Grounds
from grader.guards.texts import plain, window
from grader.instruments.all import Instruments
from grader.kinds.base import template_field
from grader.templates import Template

_CHOICE = r"\(?[A-Za-z]\)?\.?"
_NUMBER = r"[-+]?\$?\d[\d,]*(?:\.\d+)?%?"
_SERIES = re.compile(
    rf"{_CHOICE}(?:(?:\s*+[,;/|&]\s*+|\s++){_CHOICE}){{2,2000}}|{_CHOICE}\s*+[/|]\s*+{_CHOICE}"
    rf"|{_NUMBER}(?:(?:\s*+[;/|&]\s*+|\s++){_NUMBER}){{2,2000}}"
)
"""Separators are taken whole, so that a text which is no series is told apart in linear time."""
_ALTERNATIVES = re.compile(r"\bor\b|[/|]|\u6216", re.IGNORECASE)
_ANY_NUMBER = Number(value=Fraction(0))
MANY_TEXTS = 3
"""So many names in a row are a list even without `or`; two may be one place and its country."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyOrListedGuard:
    """Looks at how many answers there are."""

    reference: Template | None

    async def look(self, case: Case, instruments: Instruments) -> str | None:
        """Return that the answer is empty or a list."""
        wanted = self.reference.render(case.sample) if self.reference is not None else ""
        return await asyncio.to_thread(_look, case, wanted, instruments.symbolic)


def parse(fields: Fields, grounds: Grounds) -> EmptyOrListedGuard:
    """Read the guard's keys."""
    given = fields.has("reference")
    return EmptyOrListedGuard(
        reference=template_field(fields, "reference") if given else grounds.reference
    )


def _look(case: Case, wanted: str, symbolic: Symbolic) -> str | None:
    text = window(case.sample.output_text)
    if not plain(text).strip(" \n\r.-_*`'\""):
        return "the response is empty"
    extraction = extract(text, stated_only=case.sample.stated_only)
    if extraction.blank:
        return "an answer is announced and none follows"
    gold = read(normalize(wanted), listed=True) if wanted else None
    if isinstance(gold, Many | Ordered | Union | Interval | Range):
        return None
    stated = extraction.statement.text if extraction.statement is not None else text.strip()
    if gold is not None and normalize(stated) == normalize(wanted):
        return None
    value = read(normalize(stated))
    if isinstance(value, Number):
        return None
    if _SERIES.fullmatch(stated) and not (isinstance(gold, Text) and _SERIES.fullmatch(wanted)):
        return f"several answers where one is wanted: {_shown(stated)}"
    if isinstance(value, Ordered) and isinstance(gold, Number):
        return f"several answers where one is wanted: {_shown(stated)}"
    if isinstance(value, Many) and _is_list(value, stated, gold, symbolic):
        return f"several answers where one is wanted: {_shown(stated)}"
    return None


def _is_list(value: Many, stated: str, gold: Value | None, symbolic: Symbolic) -> bool:
    """Whether several values are alternatives, rather than one measure in parts or one name with a comma."""
    if compare(gold or _ANY_NUMBER, value, Means(symbolic=symbolic)) is not Equality.HEDGED:
        return False
    words = [item for item in value.items if isinstance(item, Text) and len(item.text) > 1]
    return len(words) < len(value.items) or bool(
        len(value.items) >= MANY_TEXTS or _ALTERNATIVES.search(stated)
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
