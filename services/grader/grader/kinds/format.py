r"""`format`: the share of rules of form that a text keeps.

    {"type": "format", "must": "json"}
    {"type": "format", "must": {"tags": {"names": ["think", "answer"], "only": true}, "max_characters": 2000}}
    {"type": "format", "input": "{{sample.output_json.code}}", "must": {"regex": {"pattern": "^[A-Z]\\d+$"}}}

| rule | holds if |
|---|---|
| `json` (true) | the whole text is one JSON value |
| `json_schema` {schema} | it is JSON that fits the schema (draft 2020-12; see `grader.schemas`) |
| `regex` {pattern, whole} | the pattern is found in the text; with `whole` true it is all of the text |
| `tags` {names, only} | each tag opens and closes once, in this order, around text; with `only` true nothing else |
| `max_characters` | the text has at most so many characters |
| `min_characters` | it has at least so many, without the blank space around it |

value is the share of the rules that hold, each rule a part of 0 or 1; unless all hold the kind is format. An empty text
keeps no rule.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from grader.fields import Fields, shown
from grader.instruments.all import Instruments
from grader.jsonvalues import read_json
from grader.kinds.base import Kinds, lacking, template_field
from grader.patterns import Pattern, has_room, pattern_field
from grader.results import Graded
from grader.sample import Sample
from grader.schemas import Schema, UnsoundSchemaError, parse_schema, patterns_in
from grader.templates import Template
from trajectory.types import OutcomeKind

MAX_SCHEMA_CHARACTERS = 50_000
"""A text longer than this is not checked by a schema and does not fit it."""


class Rule(Protocol):
    """Something that a text has to keep to."""

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatGrader:
    """Checks rules of form."""

    input: Template
    rules: Mapping[str, Rule]

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the share of rules that hold."""
        return await asyncio.to_thread(self._grade, sample)

    def _grade(self, sample: Sample) -> Graded:
        lack = lacking(sample, self.input)
        if lack is not None:
            return lack
        text = self.input.render(sample)
        if not text.strip():
            problems = dict.fromkeys(self.rules, "the text is empty")
        else:
            problems = {name: rule.problem(text) for name, rule in self.rules.items()}
        broken = [f"{name}: {problem}" for name, problem in problems.items() if problem]
        return Graded(
            value=1.0 - len(broken) / len(problems),
            kind=sample.shortfall(OutcomeKind.FORMAT) if broken else None,
            explanation="; ".join(broken) or f"keeps {', '.join(problems)}",
            parts={name: float(not problem) for name, problem in problems.items()},
        )


@dataclass(frozen=True, slots=True)
class IsJson:
    """The whole text is JSON."""

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        try:
            read_json(text)
        except ValueError as err:
            return f"the text is not read as JSON: {err}"
        return ""


@dataclass(frozen=True, slots=True)
class FitsSchema:
    """The text is JSON that fits a schema."""

    schema: Schema

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        if len(text) > MAX_SCHEMA_CHARACTERS:
            return (
                f"the text has {len(text)} characters, at most {MAX_SCHEMA_CHARACTERS} are checked"
            )
        try:
            value = read_json(text)
        except ValueError as err:
            return f"the text is not read as JSON: {err}"
        return self.schema.problem(value)


@dataclass(frozen=True, slots=True)
class Matches:
    """A pattern is found."""

    pattern: Pattern
    whole: bool

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        holds = self.pattern.matches_all(text) if self.whole else self.pattern.search(text)
        return "" if holds else f"{self.pattern.source!r} does not match"


@dataclass(frozen=True, slots=True)
class HasTags:
    """Tags open and close once each, in order."""

    names: tuple[str, ...]
    only: bool

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        end = 0
        for name in self.names:
            opening, closing = f"<{name}>", f"</{name}>"
            if text.count(opening) != 1 or text.count(closing) != 1:
                return f"{opening} and {closing} must stand in the text once each"
            start = text.index(opening)
            if start < end or text.index(closing) < start:
                return f"{opening} is not where it should be"
            if self.only and text[end:start].strip():
                return f"there is text before {opening}"
            end = text.index(closing) + len(closing)
            if not text[start + len(opening) : end - len(closing)].strip():
                return f"{opening} holds no text"
        return "there is text after the last tag" if self.only and text[end:].strip() else ""


@dataclass(frozen=True, slots=True)
class AtMost:
    """The text is not too long."""

    characters: int

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        return "" if len(text) <= self.characters else f"the text has {len(text)} characters"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The text is not too short."""

    characters: int

    def problem(self, text: str) -> str:
        """Return what is wrong with a text; empty if nothing."""
        length = len(text.strip())
        return "" if length >= self.characters else f"the text has {length} characters"


def parse(fields: Fields, kinds: Kinds) -> FormatGrader | None:
    """Read the definition."""
    given = template_field(fields, "input", "{{sample.output_text}}")
    if fields.values.get("must") == "json":
        fields.has("must")
        return FormatGrader(input=given, rules={"json": IsJson()})
    must = fields.child("must")
    if must is None:
        return None
    rules: dict[str, Rule] = {}
    for name, read in _RULES.items():
        if must.has(name):
            rule = read(must, name)
            if rule is not None:
                rules[name] = rule
    must.finish()
    _check_lengths(must, rules)
    if not must.values:
        fields.problems.add(
            must.path, f"must hold at least one rule; known are {', '.join(_RULES)}"
        )
    return FormatGrader(input=given, rules=rules) if rules else None


def _check_lengths(must: Fields, rules: Mapping[str, Rule]) -> None:
    most, least = rules.get("max_characters"), rules.get("min_characters")
    if (
        isinstance(most, AtMost)
        and isinstance(least, AtLeast)
        and least.characters > most.characters
    ):
        must.problems.add(
            must.at("min_characters"),
            f"must be at most max_characters, {most.characters}, found {least.characters}",
        )


def _parse_json(fields: Fields, key: str) -> Rule | None:
    if fields.raw(key) is not True:
        found = shown(fields.values[key])
        fields.problems.add(fields.at(key), f"must be true, found {found}; leave the rule out")
    return IsJson()


def _parse_schema(fields: Fields, key: str) -> Rule | None:
    child = fields.child(key)
    schema = child.raw("schema") if child is not None else None
    if child is None or schema is None:
        return None
    child.finish()
    if not has_room(child, "schema", patterns_in(schema)):
        return None
    try:
        return FitsSchema(parse_schema(schema))
    except UnsoundSchemaError as err:
        fields.problems.add(child.at("schema"), str(err))
        return None


def _parse_regex(fields: Fields, key: str) -> Rule | None:
    child = fields.child(key)
    if child is None:
        return None
    rule = Matches(pattern_field(child, "pattern"), child.flag("whole", False))
    child.finish()
    return rule


def _parse_tags(fields: Fields, key: str) -> Rule | None:
    child = fields.child(key)
    if child is None:
        return None
    rule = HasTags(child.texts("names"), child.flag("only", False))
    if len(set(rule.names)) < len(rule.names):
        child.problems.add(
            child.at("names"), f"must name each tag once, found {shown(list(rule.names))}"
        )
    child.finish()
    return rule


def _parse_at_most(fields: Fields, key: str) -> Rule | None:
    return AtMost(fields.whole(key, low=0, high=10**9))


def _parse_at_least(fields: Fields, key: str) -> Rule | None:
    return AtLeast(fields.whole(key, low=0, high=10**9))


_RULES: Mapping[str, Callable[[Fields, str], Rule | None]] = {
    "json": _parse_json,
    "json_schema": _parse_schema,
    "regex": _parse_regex,
    "tags": _parse_tags,
    "max_characters": _parse_at_most,
    "min_characters": _parse_at_least,
}
