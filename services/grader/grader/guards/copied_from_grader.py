"""`copied_from_grader`: text of the grader's own in what the agent said, called or was told by a tool.

    {"guards": {"copied_from_grader": {"action": "zero", "min_characters": 80, "paths": ["/grader/"],
                                       "allow_tools": ["search"], "ignore": ["item.context"]}}}

The grader's own are the texts of its definition (prompts for judges, code, contents of assets) and the fields of the
task that it reads, but for the `reference` of kinds whose good answers repeat it. An alarm is a run of at least
`min_characters` of them, compared without case and space, that the prompt does not hold; and a call that names one of
`paths`. Results of `allow_tools` may hold such text, and what they showed may be repeated.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grader.fields import Fields
from grader.guards.base import Case
from grader.guards.calls import Protected, mentioned
from grader.guards.grounds import Grounds
from grader.guards.texts import argument_text, plain, window
from grader.instruments.all import Instruments
from grader.results import GradingFaultError
from grader.sample import Sample
from grader.templates import Template, TemplateError, parse_template

MAX_GRADER_TEXT = 2_000_000
"""Characters of all the grader's texts that are compared."""
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFromGraderGuard:
    """Looks for the grader's own text."""

    texts: tuple[str, ...]
    fields: tuple[Template, ...]
    min_characters: int
    paths: Protected
    allow_tools: frozenset[str]

    async def look(self, case: Case, instruments: Instruments) -> str | None:
        """Return where the grader's own text turns up."""
        return await asyncio.to_thread(self._look, case)

    def _look(self, case: Case) -> str | None:
        for made in case.sample.calls:
            path = mentioned(made, self.paths)
            if path is not None:
                return f"{made.call.name} names {path[:100]}"
        shown = [_plain(case.prompt)]
        shown += [_plain(m.result) for m in case.sample.calls if m.call.name in self.allow_tools]
        seen = "\n".join(shown)
        own = _Runs([*self.texts, *_rendered(self.fields, case.sample)], self.min_characters)
        for where, text in self._said(case):
            run = own.first_in(_plain(window(text)), seen)
            if run is not None:
                return f"{where} holds the grader's text {run[:60]!r}"
        return None

    def _said(self, case: Case) -> Iterator[tuple[str, str]]:
        for said in case.said:
            yield "a message", said
        for made in case.sample.calls:
            yield f"a call of {made.call.name}", argument_text(made)
            if made.call.name not in self.allow_tools:
                yield f"a result of {made.call.name}", made.result


class _Runs:
    """Finds common runs of a minimal length, by blocks of half that length."""

    def __init__(self, texts: list[str], min_characters: int) -> None:
        self._length = min_characters
        self._block = min_characters // 2
        self._places: dict[str, tuple[str, int]] = {}
        room = MAX_GRADER_TEXT
        for text in texts:
            text = _plain(text)[:room]
            room -= len(text)
            if len(text) >= min_characters:
                for start in range(0, len(text) - self._block + 1, self._block):
                    self._places.setdefault(text[start : start + self._block], (text, start))

    def first_in(self, text: str, seen: str) -> str | None:
        """Return the first run of a text that is the grader's own and was not seen."""
        if not self._places:
            return None
        position = 0
        while position <= len(text) - self._block:
            place = self._places.get(text[position : position + self._block])
            if place is None:
                position += 1
                continue
            run = _common(text, position, *place)
            if len(run) >= self._length and run not in seen:
                return run
            position += self._block
        return None


def parse(fields: Fields, grounds: Grounds) -> CopiedFromGraderGuard:
    """Read the guard's keys."""
    ignored = fields.texts("ignore") if fields.has("ignore") else ()
    for path in ignored:
        if path not in grounds.item_paths:
            known = ", ".join(grounds.item_paths) or "no field of the task"
            fields.problems.add(fields.at("ignore"), f"names {path}, and graders read {known}")
    return CopiedFromGraderGuard(
        texts=grounds.texts,
        fields=tuple(_templates(path for path in grounds.item_paths if path not in ignored)),
        min_characters=fields.whole("min_characters", 80, low=20, high=10_000),
        paths=Protected(patterns=fields.texts("paths") if fields.has("paths") else ()),
        allow_tools=frozenset(fields.texts("allow_tools") if fields.has("allow_tools") else ()),
    )


def _templates(paths: Iterator[str]) -> Iterator[Template]:
    for path in paths:
        try:
            yield parse_template(f"{{{{{path}}}}}")
        except TemplateError:
            # Whoever reads the field says what is wrong with its path.
            continue


def _rendered(fields: tuple[Template, ...], sample: Sample) -> Iterator[str]:
    for field in fields:
        try:
            yield field.render(sample)
        except GradingFaultError:
            # The grader that reads the field faults; a field that is not there was not copied.
            continue


def _common(text: str, position: int, own: str, start: int) -> str:
    """Return the longest run around a common block."""
    first, last = 0, 0
    while (
        position > first and start > first and text[position - first - 1] == own[start - first - 1]
    ):
        first += 1
    while (
        position + last < len(text)
        and start + last < len(own)
        and text[position + last] == own[start + last]
    ):
        last += 1
    return text[position - first : position + last]


def _plain(text: str) -> str:
    return _SPACE.sub(" ", plain(text)).strip()
