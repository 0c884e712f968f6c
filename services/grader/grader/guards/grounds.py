"""What a definition holds that an agent has no business with: its own texts, the references it reads, paths of files.

Read from the definition's JSON, whatever the kinds in it are called, so that a new kind needs no line here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grader.templates import Template, TemplateError, parse_template

_REPEATED = frozenset(("answer", "string_check", "text_similarity"))
"""Kinds whose `reference` is what a good response says itself."""
_FILES = frozenset(("assets", "files"))
"""Keys of objects from path to content."""
_HOLE = re.compile(r"\{\{\s*(.*?)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What guards read from a definition."""

    reference: Template | None = None
    """What the first grader of answers compares with."""
    texts: tuple[str, ...] = ()
    """Written in the definition itself: prompts for judges, code, contents of files."""
    item_paths: tuple[str, ...] = ()
    """Fields of the task that graders read, but for what a good response says itself."""
    files: tuple[str, ...] = ()
    """Paths that a grader lays over the agent's."""


def read_grounds(definition: Mapping[str, object]) -> Grounds:
    """Read a definition, sound or not."""
    references: list[Template] = []
    texts: list[str] = []
    paths: dict[str, None] = {}
    files: dict[str, None] = {}
    for owner, key, text in _texts({k: v for k, v in definition.items() if k != "guards"}):
        if key == "reference" and owner in _REPEATED:
            template = _template(text)
            if template is not None:
                references.append(template)
            continue
        holes = _HOLE.findall(text)
        paths.update((hole, None) for hole in holes if hole.startswith("item."))
        texts.extend(piece for piece in _HOLE.sub("\0", text).split("\0") if piece.strip())
    for held in _objects(definition):
        for key in _FILES & held.keys():
            named = held[key]
            if isinstance(named, Mapping):
                files.update((str(path), None) for path in named)
    return Grounds(
        reference=references[0] if references else None,
        texts=tuple(texts),
        item_paths=tuple(paths),
        files=tuple(files),
    )


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    todo = [value]
    while todo:
        held = todo.pop()
        if isinstance(held, Mapping):
            yield held
            todo.extend(held.values())
        elif isinstance(held, list):
            todo.extend(held)


def _texts(definition: object) -> Iterator[tuple[str, str, str]]:
    """Yield every text with the type of the grader around it and its key."""
    todo: list[tuple[str, str, object]] = [("", "", definition)]
    while todo:
        owner, key, value = todo.pop()
        if isinstance(value, str):
            yield owner, key, value
        elif isinstance(value, Mapping):
            kind = value.get("type")
            inner = kind if isinstance(kind, str) else owner
            todo.extend((inner, k, v) for k, v in reversed(list(value.items())))
        elif isinstance(value, list):
            todo.extend((owner, key, v) for v in reversed(value))


def _template(text: str) -> Template | None:
    try:
        return parse_template(text)
    except TemplateError:
        return None
