r"""`grounding`: the share of what the final answer states that the agent was told.

    {"type": "grounding"}
    {"type": "grounding", "claims": {"pattern": "\\[(doc\\d+)\\]"}, "tools": ["search"], "pass_threshold": 0.8}

claims are the numbers of the text (the default; see `grader.figures`: compared by value without sign, markers of lists
left out) or what a pattern finds in it, its first group if it has one, such as the ids of cited sources. Each distinct
claim is grounded if it occurs in a message of the system or the user or in the result of a call that went well, of any
tool or of those in `tools`. A number that stands in the call itself is no news in its result (`echo 999`). An empty
text is 0. No claim: no opinion, abstained; with `required` true 0, kind format, or it would pay to write numbers in
words. Claims that are copied from a source raise the share too: `input` may name the answer alone.

Results of `calculators` (default calculator, calc) are no sources, or the agent could ground any number by having it
computed; where python or a shell only compute, name them here. With `derived` (default true) a number counts if it is
the result of a calculator's call all of whose numbers are grounded or among `constants` (by default factors of
measures), at least one of them grounded.

value is the share of grounded claims; below `pass_threshold` (default 1) the kind is reasoning.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from grader.fields import Fields, shown
from grader.figures import Figure, figures_in
from grader.instruments.all import Instruments
from grader.jsonvalues import leaves_in, read_json
from grader.kinds.base import Kinds, lacking, template_field
from grader.patterns import Pattern, pattern_field
from grader.results import Graded, abstain
from grader.sample import Sample
from grader.templates import Template
from trajectory.types import OutcomeKind, Role, ToolCallRecord

MAX_TEXT = 200_000
"""Characters of the text that are read, from its end."""
MAX_SOURCES = 1_000_000
"""Characters of results that are read, from the last call back."""
MAX_CITED = 200
"""Distinct claims by pattern that are looked up; the rest are not grounded."""
MAX_PLACES = 1000
"""Places at which a claim is looked for as a word of its own."""
CALCULATORS = ("calculator", "calc")
CONSTANTS = (0, 1, 2, 3, 4, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)

_LIST_MARKER = re.compile(r"^[ \t]*\d{1,3}[.)](?=\s)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One distinct thing that the text states."""

    text: str
    grounded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundingGrader:
    """Looks for the source of each claim."""

    input: Template
    cited: Pattern | None
    """What the claims are; None: numbers."""
    tools: tuple[str, ...]
    """Whose results are sources; empty: all but calculators."""
    calculators: tuple[str, ...]
    derived: bool
    constants: frozenset[Decimal]
    required: bool
    """Whether a text without claims is 0 rather than without opinion."""
    pass_threshold: float

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the share of claims that have a source."""
        return await asyncio.to_thread(self._grade, sample)

    def _grade(self, sample: Sample) -> Graded:
        lack = lacking(sample, self.input)
        if lack is not None:
            return lack
        text = self.input.render(sample).rpartition("</think>")[2][-MAX_TEXT:]
        if not text.strip():
            kind = sample.shortfall(OutcomeKind.FORMAT)
            return Graded(value=0.0, kind=kind, explanation="the text is empty")
        if self.cited is None:
            claims = _numbers_grounded(_LIST_MARKER.sub("", text), self._known_numbers(sample))
        else:
            claims = _cited_grounded(self.cited.found_in(text), self._sources(sample))
        if not claims:
            return self._without_claims(sample)
        stray = [claim.text for claim in claims if not claim.grounded]
        value = 1.0 - len(stray) / len(claims)
        listed = ", ".join(stray[:10]) + (", ..." if len(stray) > 10 else "")
        return Graded(
            value=value,
            kind=sample.shortfall(OutcomeKind.REASONING) if value < self.pass_threshold else None,
            explanation=f"without a source: {listed}" if stray else "all have a source",
            parts={"claims": len(claims), "grounded": len(claims) - len(stray)},
        )

    def _without_claims(self, sample: Sample) -> Graded:
        explanation = "the text states nothing that could have a source"
        if not self.required:
            return abstain(explanation)
        kind = sample.shortfall(OutcomeKind.FORMAT)
        return Graded(value=0.0, kind=kind, explanation=explanation)

    def _sources(self, sample: Sample) -> list[str]:
        results = [call.result for call in _last_calls(sample) if self._is_source(call)]
        return [_prompt(sample), *results]

    def _is_source(self, made: ToolCallRecord) -> bool:
        name = made.call.name
        wanted = name in self.tools if self.tools else name not in self.calculators
        return wanted and not made.error_kind

    def _known_numbers(self, sample: Sample) -> set[Decimal | str]:
        known = _values(_prompt(sample))
        for made in _last_calls(sample):
            derives = self.derived and made.call.name in self.calculators and not made.error_kind
            if derives and self._is_grounded(made, known):
                known |= _values(made.result)
            elif self._is_source(made):
                known |= _values(made.result) - _written(made)
        return known

    def _is_grounded(self, made: ToolCallRecord, known: set[Decimal | str]) -> bool:
        """Whether a calculation works with what is known and constants only, and with something known."""
        used = list(_argument_figures(made.call.arguments_json))
        return any(not known.isdisjoint(one.values) for one in used) and all(
            not known.isdisjoint(one.values) or not self.constants.isdisjoint(one.values)
            for one in used
        )


def _prompt(sample: Sample) -> str:
    """All that was said to the agent."""
    told = (m.text for m in sample.record.messages if m.role in (Role.SYSTEM, Role.USER))
    return "\n".join(told)


def _last_calls(sample: Sample) -> list[ToolCallRecord]:
    """The calls in order, without early ones whose results are beyond what is read."""
    kept: list[ToolCallRecord] = []
    room = MAX_SOURCES
    for made in reversed(sample.calls):
        room -= len(made.result) + len(made.call.arguments_json)
        if room < 0:
            break
        kept.append(made)
    return kept[::-1]


def _values(text: str) -> set[Decimal | str]:
    return {value for figure in figures_in(text, inside_words=True) for value in figure.values}


def _written(made: ToolCallRecord) -> set[Decimal | str]:
    """The numbers that the agent wrote into a call."""
    text = made.call.arguments_json
    try:
        leaves = list(leaves_in(read_json(text)))
    except ValueError:
        leaves = [text]
    return {value for leaf in leaves for value in _values(str(leaf))}


def _argument_figures(arguments_json: str) -> Iterator[Figure]:
    try:
        arguments = read_json(arguments_json)
    except ValueError:
        return
    values = arguments.values() if isinstance(arguments, dict) else ()
    for value in values:
        for leaf in leaves_in(value):
            yield from figures_in(str(leaf))


def _numbers_grounded(text: str, known: set[Decimal | str]) -> list[Claim]:
    claims: dict[Decimal | str, Claim] = {}
    for figure in figures_in(text):
        claim = Claim(text=figure.text, grounded=not known.isdisjoint(figure.values))
        claims.setdefault(figure.values[-1], claim)
    return list(claims.values())


def _cited_grounded(cited: list[str], sources: list[str]) -> list[Claim]:
    texts = dict.fromkeys(text for text in cited if text.strip())
    return [
        Claim(
            text=text,
            grounded=place < MAX_CITED and any(_occurs(text, source) for source in sources),
        )
        for place, text in enumerate(texts)
    ]


def _occurs(claim: str, text: str) -> bool:
    """Whether a claim stands in a text without a letter or digit of the same word beside it."""
    at = text.find(claim)
    for _ in range(MAX_PLACES):
        if at < 0:
            return False
        end = at + len(claim)
        joined_before = at > 0 and _is_word(text[at - 1]) and _is_word(claim[0])
        joined_after = end < len(text) and _is_word(text[end]) and _is_word(claim[-1])
        if not joined_before and not joined_after:
            return True
        at = text.find(claim, at + 1)
    return False


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def parse(fields: Fields, kinds: Kinds) -> GroundingGrader:
    """Read the definition."""
    return GroundingGrader(
        input=template_field(fields, "input", "{{sample.output_text}}"),
        cited=_parse_claims(fields),
        tools=fields.texts("tools") if fields.has("tools") else (),
        calculators=fields.texts("calculators") if fields.has("calculators") else CALCULATORS,
        derived=fields.flag("derived", True),
        constants=_parse_constants(fields),
        required=fields.flag("required", False),
        pass_threshold=fields.number("pass_threshold", 1.0, low=0.0, high=1.0),
    )


def _parse_claims(fields: Fields) -> Pattern | None:
    if not isinstance(fields.values.get("claims"), dict):
        fields.choice("claims", ("numbers",), "numbers")
        return None
    child = fields.child("claims")
    assert child is not None
    pattern = pattern_field(child, "pattern")
    child.finish()
    return pattern


def _parse_constants(fields: Fields) -> frozenset[Decimal]:
    if not fields.has("constants"):
        return frozenset(map(Decimal, CONSTANTS))
    values = fields.values["constants"]
    if isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    ):
        return frozenset(abs(Decimal(str(value))) for value in values)
    fields.problems.add(fields.at("constants"), f"must be a list of numbers, found {shown(values)}")
    return frozenset()
