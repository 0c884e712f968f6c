"""`{{item.x}}` and `{{sample.output_text}}` in grader definitions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grader.fields import nearest
from grader.results import GradingFaultError
from grader.sample import Sample
from trajectory.types import GraderErrorKind

_HOLE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_PATH = re.compile(r"(item|sample)((?:\.[\w-]+)+)")
_SAMPLE_FIELDS = ("output_text",)


class TemplateError(ValueError):
    """A template names something that no sample can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Text with holes."""

    source: str
    pieces: tuple[str, ...]
    """Literal text at even, paths at odd positions."""

    def render(self, sample: Sample) -> str:
        """Fill the holes.

        Raises:
            GradingFaultError: the task's reference lacks a field; the dataset is at fault.
        """
        filled = [
            piece if index % 2 == 0 else _text(value_at(piece, sample), piece)
            for index, piece in enumerate(self.pieces)
        ]
        return "".join(filled)


def parse_template(text: str) -> Template:
    """Check the paths of a template.

    Raises:
        TemplateError: a hole is neither item.<field> nor a field of the sample.
    """
    pieces = tuple(_HOLE.split(text))
    for path in pieces[1::2]:
        check_path(path)
    rest = "".join(pieces[::2])
    if "{{" in rest or "}}" in rest:
        raise TemplateError("has a '{{' or '}}' without its partner")
    return Template(source=text, pieces=pieces)


def check_path(path: str) -> None:
    """Raise TemplateError unless a path can exist."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise TemplateError(f"{path!r} must be item.<field> or sample.{_SAMPLE_FIELDS[0]}")
    field = match.group(2).removeprefix(".")
    if match.group(1) == "sample" and field not in _SAMPLE_FIELDS:
        raise TemplateError(f"sample.{field} is not known; {nearest(field, _SAMPLE_FIELDS)}")


def value_at(path: str, sample: Sample) -> object:
    """Return what a checked path names.

    Raises:
        GradingFaultError: the task's reference lacks the field.
    """
    root, *fields = path.split(".")
    if root == "sample":
        return sample.output_text
    value: object = sample.item
    for index, field in enumerate(fields):
        if not isinstance(value, Mapping):
            raise _missing(path, f"item.{'.'.join(fields[:index])} is no object")
        if field not in value:
            known = ", ".join(sorted(map(str, value))) or "no fields"
            raise _missing(path, f"the task has {known}; {nearest(field, list(map(str, value)))}")
        value = value[field]
    return value


def _missing(path: str, found: str) -> GradingFaultError:
    return GradingFaultError(
        f"the grader needs {path}, which the task's reference does not have: {found}",
        kind=GraderErrorKind.REFERENCE,
        retryable=False,
        client=True,
    )


def _text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise GradingFaultError(
            f"the grader needs {path}, which is null in the task's reference",
            kind=GraderErrorKind.REFERENCE,
            retryable=False,
            client=True,
        )
    return json.dumps(value, ensure_ascii=False)
