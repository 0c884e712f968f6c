"""Which reference fields a grader definition reads: its `{{item.x}}` templates and plain `item.x` paths."""

import re
from collections.abc import Iterator, Mapping

_IN_TEMPLATE = re.compile(r"\{\{\s*item\.([\w-]+(?:\.[\w-]+)*)\s*\}\}")
_ALONE = re.compile(r"^\s*item\.([\w-]+(?:\.[\w-]+)*)\s*$")


def required_fields(grader: Mapping[str, object] | None) -> set[str]:
    """Dotted names of the row fields that the grader names, for example answer or extra_info.index."""
    found: set[str] = set()
    for text in _texts(grader):
        found.update(_IN_TEMPLATE.findall(text))
        found.update(_ALONE.findall(text))
    return found


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
