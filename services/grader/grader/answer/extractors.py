"""Ways to find an answer that a definition can ask for, beside looking for it in every form (see `extraction`)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grader.answer.extraction import Extraction, last_of, own_words, statements_in
from grader.answer.spans import is_blank
from grader.answer.statement import Statement
from grader.answer.unmarked import last_number
from grader.patterns import Pattern

MAX_OBJECTS = 64
"""So many opening braces, from the end, are tried as the beginning of JSON."""
MAX_JSON = 100_000
"""Characters of a JSON object."""
_STEP = re.compile(r"[^.\[\]]+|\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FromForms:
    """Takes the last statement of certain forms, and nothing else."""

    sources: frozenset[str]

    def __call__(self, response: str, *, stated_only: bool) -> Extraction:
        """Find the answer."""
        text = own_words(response)
        found = [s for s in statements_in(text) if s.source in self.sources]
        useful = sorted((s for s in found if not is_blank(s.text)), key=lambda s: s.position)
        if not useful:
            return Extraction(statement=None, blank=bool(found))
        return Extraction(statement=last_of(useful), blank=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLastNumber:
    """Takes the last number of the response, wherever it stands."""

    def __call__(self, response: str, *, stated_only: bool) -> Extraction:
        """Find the answer."""
        statement = None if stated_only else last_number(own_words(response))
        return Extraction(statement=statement, blank=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPattern:
    """Takes a group of the first or last match of a regular expression."""

    pattern: Pattern
    group: int | str
    last: bool

    def __call__(self, response: str, *, stated_only: bool) -> Extraction:
        """Find the answer.

        Raises:
            GradingFaultError: the pattern took too long.
        """
        picked = self.pattern.pick(own_words(response), self.group, last=self.last)
        return _stated(picked, "pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class FromJson:
    """Takes a field of the last JSON object in the response that has it."""

    path: str
    """Such as `answer` or `result.values[0]`."""

    def __call__(self, response: str, *, stated_only: bool) -> Extraction:
        """Find the answer."""
        for value in _objects(own_words(response)):
            found = self._field(value)
            if found is not None:
                return _stated(_plain(found), "json")
        return Extraction(statement=None, blank=False)

    def _field(self, value: object) -> object:
        for step in _STEP.finditer(self.path):
            if step.group(1):
                index = int(step.group(1))
                value = value[index] if isinstance(value, list) and index < len(value) else None
            else:
                value = value.get(step.group()) if isinstance(value, Mapping) else None
        return value


def is_path(path: str) -> bool:
    """Whether a text is a path of keys and indexes."""
    return (
        re.fullmatch(r"[^.\[\]]+(?:\[\d{1,4}\])*(?:\.[^.\[\]]+(?:\[\d{1,4}\])*)*", path) is not None
    )


def _stated(text: str | None, source: str) -> Extraction:
    if text is None or is_blank(text):
        return Extraction(statement=None, blank=text is not None)
    span = text.strip()
    return Extraction(
        statement=Statement(text=span, line=span, source=source, position=0), blank=False
    )


def _objects(text: str) -> Iterator[object]:
    """Yield the JSON objects of a text, the last first; those inside others come after them."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    found: list[tuple[int, int, object]] = []
    starts = [match.start() for match in re.finditer(r"\{", text)]
    for start in [*starts[:MAX_OBJECTS], *starts[MAX_OBJECTS:][-MAX_OBJECTS:]]:
        if found and start < found[-1][1]:
            continue
        try:
            value, end = decoder.raw_decode(text[start : start + MAX_JSON])
        except (ValueError, RecursionError):
            continue
        found.append((start, start + end, value))
    for _, _, value in reversed(found):
        yield value


def _plain(value: object) -> str:
    """Write a JSON value as an answer; a list of plain values is a list in prose."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
