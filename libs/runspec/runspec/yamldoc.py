"""Reads YAML into plain values and remembers on which line each key stands.

Numbers and booleans follow YAML 1.2, so that 1e-5 is a number and `no` is a text; duplicate keys are refused.
"""

import re
from dataclasses import dataclass, field
from typing import ClassVar

import yaml

from runspec.problems import Problem, SpecError

Path = tuple[str, ...]
"""Keys from the top of the document; list positions as text."""


_SCALARS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$"),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$"),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
    ),
    ("null", r"^(?:~|null|Null|NULL|)$"),
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML ships no types
    """SafeLoader with the scalar rules of YAML 1.2's core schema."""

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[tuple[str, re.Pattern[str]]]]] = {
        None: [(f"tag:yaml.org,2002:{tag}", re.compile(pattern)) for tag, pattern in _SCALARS]
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML document: its value and the line of every key."""

    value: object
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """Line of the key, or of the nearest key above it; 1 if there is none."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return 1


def parse_yaml(text: str, source: str) -> Document:
    """Reads one document.

    Raises:
        SpecError: the text is no YAML, or a key stands twice in one mapping.
    """
    try:
        loader = _Loader(text)
        try:
            builder = _Builder(loader=loader, source=source)
            node = loader.get_single_node()
            value = builder.build(node, ()) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what = ", ".join(part for part in (error.context, error.problem) if part)
        message = f"not YAML: {what}"
        raise SpecError([Problem(field="", message=message, source=source, line=line)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not YAML: the character {error.character!r} is not allowed"
        raise SpecError([Problem(field="", message=message, source=source, line=line)]) from error
    if builder.problems:
        raise SpecError(builder.problems)
    return Document(value=value, lines=builder.lines)


def parse_value(text: str) -> object:
    """Reads the value of an override with the same rules as a file's.

    Raises:
        ValueError: the text is no YAML value.
    """
    try:
        document = parse_yaml(text, "")
    except SpecError as error:
        raise ValueError(error.problems[0].message) from error
    return document.value


class _Builder:
    """Builds plain values from nodes and notes lines and duplicate keys on the way."""

    def __init__(self, *, loader: _Loader, source: str) -> None:
        self._loader = loader
        self._source = source
        self._open: set[int] = set()
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node, path: Path) -> object:
        """Builds the value of a node that stands at the path."""
        if id(node) in self._open:
            raise yaml.MarkedYAMLError(
                problem="an alias refers to the value that it is part of",
                problem_mark=node.start_mark,
            )
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._item(item, (*path, str(i))) for i, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._open.discard(id(node))

    def _item(self, node: yaml.Node, path: Path) -> object:
        self.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        built: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            line = key_node.start_mark.line + 1
            here = (*path, key)
            if key in built:
                self._note(here, line, f"stands twice; first on line {self.lines[here]}")
                continue
            self.lines[here] = line
            built[key] = self.build(value_node, here)
        return built

    def _scalar(self, node: yaml.Node) -> object:
        value: object = self._loader.construct_object(node)
        return value

    def _note(self, path: Path, line: int, message: str) -> None:
        self.problems.append(
            Problem(field=".".join(path), message=message, source=self._source, line=line)
        )
