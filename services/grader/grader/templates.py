"""Templates of grader definitions: `{{item.x.y}}`, `{{item.list[0]}}`, `{{sample.output_json.x}}`.

| hole | becomes |
|---|---|
| `item.<field>` | that field of the task's reference; `.x` and `[0]` go into objects and lists, `[-1]` is the last |
| `sample.output_text` | the last message |
| `sample.output_json`, `sample.output_json.<field>` | the last message read as JSON |
| `sample.output_tools`, `sample.output_tools[0].function.name` | the tool calls; below `arguments` their JSON is read |

A text is put in as it is, anything else as JSON. What the task lacks is the dataset's fault, a typed error. What the
response lacks (it is no JSON, has no such field, made too few calls) is its own doing: it renders as nothing, and
`Template.lack` says so, by which every kind scores 0.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from grader.fields import nearest
from grader.jsonvalues import is_deep, is_list, read_json
from grader.results import GradingFaultError
from grader.sample import Sample
from trajectory.types import GraderErrorKind, OutcomeKind

MAX_HOLES = 100
"""Of one text; a response may be a megabyte, and each hole brings it in again."""

_HOLE = re.compile(r"\{\{([^{}]*)\}\}")
_PATH = re.compile(r"(item|sample)\.([\w-]+)((?:\.[\w-]+|\[-?\d{1,9}\])*)")
_STEP = re.compile(r"\.([\w-]+)|\[(-?\d+)\]")
_ARGUMENTS = re.compile(r"sample\.output_tools\[-?\d+\]\.function\.arguments")
_SAMPLE_FIELDS = ("output_text", "output_json", "output_tools")


class TemplateError(ValueError):
    """A template names something that no sample can have."""


class ResponseLacksError(Exception):
    """The response does not have what a template names."""

    def __init__(self, detail: str, kind: OutcomeKind) -> None:
        """Keep what is missing and what kind of shortfall that is."""
        super().__init__(detail)
        self.detail = detail
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Text with holes."""

    source: str
    pieces: tuple[str, ...]
    """Literal text at even, paths at odd positions."""

    @property
    def names_response(self) -> bool:
        """Whether any hole brings in what the response says."""
        return any(path.startswith("sample.") for path in self.pieces[1::2])

    def render(self, sample: Sample) -> str:
        """Fill the holes; what the response lacks becomes nothing.

        Raises:
            GradingFaultError: the task's reference lacks a field; the dataset is at fault.
        """
        return "".join(
            piece if index % 2 == 0 else _filled(piece, sample)
            for index, piece in enumerate(self.pieces)
        )

    def value(self, sample: Sample) -> object:
        """Return what the template names as it is if it is a single hole, else the rendered text.

        Raises:
            GradingFaultError: as for `render`.
            ResponseLacksError: the response does not have it.
        """
        if len(self.pieces) == 3 and not self.pieces[0].strip() and not self.pieces[2].strip():
            return value_at(self.pieces[1], sample)
        return self.render(sample)

    def lack(self, sample: Sample) -> ResponseLacksError | None:
        """Return the first thing that the template names and the response does not have."""
        for path in self.pieces[1::2]:
            if path.startswith("sample."):
                try:
                    value_at(path, sample)
                except ResponseLacksError as lack:
                    return lack
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTemplate:
    """A JSON value whose texts are templates; a text that is one hole becomes the value that it names."""

    source: object
    """JSON with a `Template` in place of each text."""

    @property
    def has_holes(self) -> bool:
        """Whether any text has a hole."""
        return any(len(text.pieces) > 1 for text in _templates(self.source))

    @property
    def names_response(self) -> bool:
        """Whether any hole brings in what the response says."""
        return any(text.names_response for text in _templates(self.source))

    def value(self, sample: Sample) -> object:
        """Fill the holes.

        Raises:
            GradingFaultError: the task's reference lacks a field.
            ResponseLacksError: the response lacks one.
        """
        return _fill(self.source, sample)


def parse_template(text: str) -> Template:
    """Check the paths of a template.

    Raises:
        TemplateError: a hole is neither item.<field> nor a field of the sample, or there are too many.
    """
    pieces = _HOLE.split(text)
    pieces[1::2] = [path.strip() for path in pieces[1::2]]
    if len(pieces) // 2 > MAX_HOLES:
        raise TemplateError(f"has {len(pieces) // 2} holes, at most {MAX_HOLES} are filled")
    for path in pieces[1::2]:
        check_path(path)
    rest = "".join(pieces[::2])
    if "{{" in rest or "}}" in rest:
        raise TemplateError("has a '{{' or '}}' without its partner")
    return Template(source=text, pieces=tuple(pieces))


def parse_value_template(value: object) -> ValueTemplate:
    """Check the templates inside a JSON value.

    Raises:
        TemplateError: a hole is not known, or the value is nested too deep.
    """
    if is_deep(value):
        raise TemplateError("is nested too deep")
    return ValueTemplate(source=_parse_texts(value))


def check_path(path: str) -> None:
    """Raise TemplateError unless a path can exist."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise TemplateError(f"{path!r} must be item.<field> or sample.{_SAMPLE_FIELDS[0]}")
    root, field, below = match.groups()
    if root == "sample" and field not in _SAMPLE_FIELDS:
        raise TemplateError(f"sample.{field} is not known; {nearest(field, _SAMPLE_FIELDS)}")
    if root == "sample" and field == "output_text" and below:
        raise TemplateError(f"{path!r} must end at output_text, which is a text")


def value_at(path: str, sample: Sample) -> object:
    """Return what a checked path names.

    Raises:
        GradingFaultError: the task's reference lacks the field.
        ResponseLacksError: the response lacks it.
    """
    match = _PATH.fullmatch(path)
    assert match is not None, path
    root, field, below = match.groups()
    if root == "item":
        return _below(sample.item, f".{field}{below}", "item", _missing_in_task)
    if field == "output_text":
        return sample.output_text
    if field == "output_json":
        if sample.output_json is None:
            raise ResponseLacksError("the response is no JSON", OutcomeKind.FORMAT)
        found = _below(sample.output_json, below, f"sample.{field}", _missing_in_json)
    else:
        found = _below(sample.output_tools, below, f"sample.{field}", _missing_in_calls)
    if found is None:
        raise ResponseLacksError(f"{path} is null", OutcomeKind.FORMAT)
    return found


def _below(
    value: object, steps: str, start: str, missing: Callable[[str, str], Exception]
) -> object:
    """Go down from a value by the steps of a path."""
    whole, here = start + steps, start
    for key, index in _STEP.findall(steps):
        if isinstance(value, str) and _ARGUMENTS.fullmatch(here):
            value = _arguments(value, here)
        if key:
            if not isinstance(value, Mapping):
                raise missing(whole, f"{here} is no object")
            if key not in value:
                known = [str(name) for name in value]
                listed = ", ".join(sorted(known)[:20]) or "no fields"
                raise missing(whole, f"{here} has {listed}; {nearest(key, known)}")
            value = value[key]
        else:
            if not is_list(value):
                raise missing(whole, f"{here} is no list")
            if not -len(value) <= int(index) < len(value):
                raise missing(whole, f"{here} has {len(value)} elements")
            value = value[int(index)]
        here += f".{key}" if key else f"[{index}]"
    return value


def _arguments(text: str, path: str) -> object:
    try:
        return read_json(text)
    except ValueError as err:
        raise ResponseLacksError(f"{path} {err}", OutcomeKind.TOOL_USE) from err


def _missing_in_task(path: str, found: str) -> Exception:
    return GradingFaultError(
        f"the grader needs {path}, which the task's reference does not have: {found}",
        kind=GraderErrorKind.REFERENCE,
        retryable=False,
        client=True,
    )


def _missing_in_json(path: str, found: str) -> Exception:
    return ResponseLacksError(f"the response has no {path}: {found}", OutcomeKind.FORMAT)


def _missing_in_calls(path: str, found: str) -> Exception:
    return ResponseLacksError(f"the response has no {path}: {found}", OutcomeKind.TOOL_USE)


def _filled(path: str, sample: Sample) -> str:
    try:
        value = value_at(path, sample)
    except ResponseLacksError:
        return ""
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


def _parse_texts(value: object) -> object:
    if isinstance(value, str):
        return parse_template(value)
    if isinstance(value, Mapping):
        return {key: _parse_texts(inner) for key, inner in value.items()}
    if is_list(value):
        return [_parse_texts(inner) for inner in value]
    return value


def _templates(value: object) -> Iterator[Template]:
    if isinstance(value, Template):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _templates(inner)
    elif is_list(value):
        for inner in value:
            yield from _templates(inner)


def _fill(value: object, sample: Sample) -> object:
    if isinstance(value, Template):
        return value.value(sample)
    if isinstance(value, Mapping):
        return {key: _fill(inner, sample) for key, inner in value.items()}
    if is_list(value):
        return [_fill(inner, sample) for inner in value]
    return value
