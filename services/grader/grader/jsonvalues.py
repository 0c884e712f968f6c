"""JSON of unknown origin: read within limits, compared by value.

Numbers are equal by value (1 = 1.0), booleans are no numbers, the order of keys does not matter.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 64
"""Lists and objects inside each other; what passes can be walked by recursion."""


def read_json(text: str) -> object:
    """Read a whole text as one JSON value.

    Raises:
        ValueError: it is no JSON, holds NaN, an infinite number (1e999) or half a surrogate pair, is too long or nested
            too deep.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has {len(text)} characters, at most {MAX_CHARACTERS} are read as JSON")
    try:
        value: object = json.loads(text, parse_constant=_refuse, parse_float=finite)
    except RecursionError as err:
        raise ValueError(f"is nested deeper than {MAX_DEPTH}") from err
    if is_deep(value):
        raise ValueError(f"is nested deeper than {MAX_DEPTH}")
    if "\\u" in text and not is_unicode(value):
        raise ValueError("holds half of a surrogate pair")
    return value


def is_deep(value: object) -> bool:
    """Whether lists and objects lie deeper inside each other than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return False
    return True


def same_json(one: object, other: object) -> bool:
    """Whether two JSON values are equal; one of them must not be deep."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if is_list(one) and is_list(other):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and one == other


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a JSON list."""
    return isinstance(value, list | tuple)


def texts_in(value: object) -> Iterator[str]:
    """Yield every text of a value that is not deep: keys and leaves."""
    return (leaf for leaf in leaves_in(value) if isinstance(leaf, str))


def leaves_in(value: object) -> Iterator[object]:
    """Yield every text, number, truth value and null of a value that is not deep, and the keys of objects."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from leaves_in(inner)
    elif is_list(value):
        for inner in value:
            yield from leaves_in(inner)
    else:
        yield value


def finite(text: str) -> float:
    """Return the number that JSON text says.

    Raises:
        ValueError: it is infinite.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"holds the number {text[:40]}, which is too large")
    return number


def is_unicode(value: object) -> bool:
    """Whether a value that is not deep holds no half of a surrogate pair, which no wire takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, dict | list | tuple)]
    if is_list(value):
        return [inner for inner in value if isinstance(inner, dict | list | tuple)]
    return []


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
