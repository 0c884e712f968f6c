"""The seam that every grader kind fits."""

from collections.abc import Callable, Mapping
from typing import Protocol

from grader.fields import Fields, nearest, shown
from grader.instruments.all import Instruments
from grader.results import Graded
from grader.sample import Sample
from grader.templates import Template, TemplateError, parse_template

MAX_DEPTH = 16
"""Graders inside graders."""


class Grader(Protocol):
    """Scores one sample."""

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return a finite value; work that takes long must not hold the event loop.

        Raises:
            GradingFaultError: grading could not be done.
        """
        ...


class Kinds(Protocol):
    """Parses nested grader definitions."""

    def parse(self, fields: Fields) -> Grader | None:
        """Parse an object with a `type`; report problems and return None if it is not sound."""
        ...


RESPONSE_IS_NO_REFERENCE = (
    "reads the response, which would be judged by itself; name a field of the task, {{item.x}}"
)

ParseGrader = Callable[[Fields, Kinds], Grader | None]
"""Reads the keys of one grader kind; reports problems through the fields, None if it cannot be built."""


class KindTable:
    """Parses definitions by an explicit table of kinds."""

    def __init__(self, parsers: Mapping[str, ParseGrader], *, depth: int = 1) -> None:
        """Use the given kinds.

        Args:
            parsers: by the type that names them.
            depth: of the graders that this table parses; those inside them lie one deeper.
        """
        self._parsers = parsers
        self._depth = depth

    def parse(self, fields: Fields) -> Grader | None:
        """Parse an object with a `type`; report problems and return None if it is not sound."""
        kind = fields.values.get("type")
        fields.has("type")
        fields.has("name")
        parser = self._parsers.get(kind) if isinstance(kind, str) else None
        if parser is None and not fields.problems.full:
            found = "is required" if kind is None else f"{shown(kind)} is not a grader type"
            hint = nearest(kind if isinstance(kind, str) else "", list(self._parsers))
            fields.problems.add(fields.at("type"), f"{found}; {hint}")
        if parser is None:
            return None
        if self._depth > MAX_DEPTH:
            fields.problems.add(
                fields.path, f"lies {self._depth} graders deep, at most {MAX_DEPTH} are allowed"
            )
            return None
        return parser(fields, KindTable(self._parsers, depth=self._depth + 1))


def template_field(fields: Fields, key: str, default: str | None = None) -> Template:
    """Read a template."""
    text = fields.text(key, default)
    try:
        return parse_template(text)
    except TemplateError as err:
        fields.problems.add(fields.at(key), str(err))
        return Template(source=text, pieces=(text,))


def reference_field(fields: Fields, key: str = "reference") -> Template:
    """Read a template of what is right, which the response has no say in."""
    template = template_field(fields, key)
    if template.names_response:
        fields.problems.add(fields.at(key), RESPONSE_IS_NO_REFERENCE)
    return template


def lacking(sample: Sample, *templates: Template) -> Graded | None:
    """Return the finding for a response that lacks what a template names: 0 and why; None if it lacks nothing."""
    for template in templates:
        lack = template.lack(sample)
        if lack is not None:
            return Graded(value=0.0, kind=sample.shortfall(lack.kind), explanation=lack.detail)
    return None


def nested_grader(fields: Fields, key: str, kinds: Kinds) -> Grader | None:
    """Read a grader inside another."""
    child = fields.child(key)
    if child is None:
        return None
    grader = kinds.parse(child)
    if grader is not None:
        child.finish()
    return grader
