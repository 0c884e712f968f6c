"""Which reference fields a grader definition reads: its `{{item.x}}` templates and plain `item.x` paths."""

import re
from collections.abc import Iterator, Mapping

_FIELD = r"[\w-]+(?:\.[\w-]+|\[-?\d{1,9}\])*"
_IN_TEMPLATE = re.compile(rf"\{{\{{\s*item\.({_FIELD})\s*\}}\}}")
_ALONE = re.compile(rf"\s*item\.({_FIELD})\s*")
_STEP = re.compile(r"([\w-]+)|\[(-?\d+)\]")


def required_fields(grader: Mapping[str, object] | None) -> set[str]:
    """Names of the row fields that the grader reads, for example answer, extra_info.index or calls[0].name."""
    found: set[str] = set()
    for text in _texts(grader):
        found.update(_IN_TEMPLATE.findall(text))
        alone = _ALONE.fullmatch(text)
        if alone:
            found.add(alone.group(1))
    return found


def rewards_turns(grader: object) -> bool:
    """Says whether a grader of the definition gives each turn a reward of its own: one of type step."""
    if isinstance(grader, Mapping):
        return grader.get("type") == "step" or any(map(rewards_turns, grader.values()))
    return isinstance(grader, list | tuple) and any(map(rewards_turns, grader))


def field_value(row: Mapping[str, object], name: str) -> object:
    """Return what a name of `required_fields` stands for in a row; None if the row does not have it."""
    value: object = row
    for step in _STEP.finditer(name):
        key, index = step.groups()
        if index is None:
            value = value.get(key) if isinstance(value, Mapping) else None
        elif isinstance(value, list) and -len(value) <= int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
