"""Which reference fields a grader definition reads: its `{{item.x}}` templates."""

import re
from collections.abc import Iterator, Mapping

_ITEM = re.compile(r"\{\{\s*item\.([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)")


def required_fields(grader: Mapping[str, object] | None) -> set[str]:
    """Dotted names of the row fields that the grader's templates name, for example answer or extra_info.index."""
    return {name for text in _texts(grader) for name in _ITEM.findall(text)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
