"""What travels between tests and the code under test: plain data by value, everything else by number.

Frames are a length (4 bytes, big endian) and JSON. A value of a builtin type becomes exactly that type at the other
end, a value of a subclass its base's data: no method of the code under test ever runs in the process of the tests, so
an object that claims to equal everything is just the data that it holds.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import os
import struct
from collections.abc import Callable
from typing import Any

MAX_FRAME_BYTES = 8 << 20
FROM_CODE, TO_CODE = 150, 200
"""Levels of data: tests may put what they got from the code into data of their own and hand it back."""
_EXACT = 1 << 53

Other = Callable[[Any], dict[str, Any]]
"""Names what is no data; raises TypeError where that cannot be."""
Known = Callable[[str, Any], Any]
"""Returns what a name of the other end stands for."""


class Closed(Exception):
    """The other end is gone."""


def encode(value: Any, other: Other, deepest: int) -> Any:
    """Return a value as JSON, with `other` naming what is no data, or is nested deeper than `deepest` levels.

    Raises:
        TypeError: something in it cannot travel.
    """
    if deepest < 0:
        return other(value)
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    scalar = _scalar(value, kind)
    if scalar is not None:
        return scalar[0]

    def many(values: Any) -> list[Any]:
        return [encode(each, other, deepest - 1) for each in values]

    def pairs(items: Any) -> list[Any]:
        return [[encode(k, other, deepest - 1), encode(v, other, deepest - 1)] for k, v in items]

    if kind is collections.Counter or kind is collections.OrderedDict:
        return {kind.__name__: pairs(dict.items(value))}
    if kind is collections.deque:
        return {"deque": many(list(value)), "maxlen": value.maxlen}
    if isinstance(value, list):
        return many(list.__iter__(value))
    if isinstance(value, tuple):
        return {"tuple": many(tuple.__iter__(value))}
    if isinstance(value, dict):
        return {"dict": pairs(dict.items(value))}
    if isinstance(value, (set, frozenset)):
        base = set if isinstance(value, set) else frozenset
        return {base.__name__: many(base.__iter__(value))}  # type: ignore[arg-type]  # base is the value's own type
    return other(value)


def _scalar(value: Any, kind: type) -> tuple[Any] | None:
    """Return a scalar's JSON in a tuple; None if it is no scalar."""
    if isinstance(value, int):
        number = int.__index__(value)
        return (number,) if -_EXACT < number < _EXACT else ({"int": hex(number)},)
    if isinstance(value, float):
        return ({"float": float.hex(value)},)
    if isinstance(value, str):
        return (str.__str__(value),)
    if isinstance(value, (bytes, bytearray)):
        base = bytes if isinstance(value, bytes) else bytearray
        return ({base.__name__: base.hex(value)},)  # type: ignore[arg-type]  # base is the value's own type
    if kind is complex:
        return ({"complex": [value.real.hex(), value.imag.hex()]},)
    if kind is range:
        return ({"range": [hex(value.start), hex(value.stop), hex(value.step)]},)
    if kind is decimal.Decimal:
        return ({"Decimal": str(value)},)
    if kind is fractions.Fraction:
        return ({"Fraction": [hex(value.numerator), hex(value.denominator)]},)
    if kind is type and value in _TYPES.values():
        return ({"type": value.__name__},)
    if kind is datetime.timedelta:
        return ({"timedelta": [value.days, value.seconds, value.microseconds]},)
    if kind is datetime.date or (kind is datetime.datetime and value.tzinfo is None):
        return ({kind.__name__: value.isoformat()},)
    return None


def decode(node: Any, known: Known, deepest: int) -> Any:
    """Return the value of JSON that `encode` made.

    Raises:
        ValueError: it is something else, is nested deeper, or holds what cannot be (an unhashable key).
    """
    if deepest < -1:  # what is too deep for data has a name there
        raise ValueError("nested too deeply")
    if isinstance(node, list):
        return [decode(each, known, deepest - 1) for each in node]
    if not isinstance(node, dict):
        return node
    if not node:
        raise ValueError("an object without a kind")
    kind = next(iter(node))
    content = node[kind]
    try:
        if kind in _SCALARS:
            return _SCALARS[kind](content)
        if kind in ("dict", "Counter", "OrderedDict"):
            pairs = [
                (decode(k, known, deepest - 1), decode(v, known, deepest - 1)) for k, v in content
            ]
            made = dict(pairs)
            return made if kind == "dict" else getattr(collections, kind)(made)
        if kind == "deque":
            return collections.deque(decode(content, known, deepest), node.get("maxlen"))
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind](decode(each, known, deepest - 1) for each in content)
        return known(kind, content)
    except (TypeError, ArithmeticError, AttributeError, KeyError) as err:
        raise ValueError(f"no {kind}: {err}") from err


_TYPES = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
    )
}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "type": lambda name: _TYPES[name],
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda pair: complex(float.fromhex(pair[0]), float.fromhex(pair[1])),
    "range": lambda three: range(*(int(each, 16) for each in three)),
    "Decimal": lambda text: decimal.Decimal(text),
    "Fraction": lambda pair: fractions.Fraction(int(pair[0], 16), int(pair[1], 16)),
    "timedelta": lambda three: datetime.timedelta(*three),
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple[Any, ...],
    "set": set,
    "frozenset": frozenset,
}


def send(descriptor: int, message: Any) -> None:
    """Write one frame.

    Raises:
        Closed: the other end is gone.
        ValueError: it is larger than a frame may be.
    """
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(data)} bytes at once; at most {MAX_FRAME_BYTES} can travel")
    left = memoryview(struct.pack(">I", len(data)) + data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as err:
        raise Closed(str(err)) from err


def receive(descriptor: int) -> Any:
    """Read one frame.

    Raises:
        Closed: the other end is gone.
        ValueError: it is no frame.
    """
    (size,) = struct.unpack(">I", _exactly(descriptor, 4))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"{size} bytes at once; at most {MAX_FRAME_BYTES} can travel")
    try:
        return json.loads(_exactly(descriptor, size))
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


def _exactly(descriptor: int, size: int) -> bytes:
    pieces = []
    while size:
        try:
            piece = os.read(descriptor, min(size, 1 << 20))
        except OSError as err:
            raise Closed(str(err)) from err
        if not piece:
            raise Closed("the other end is gone")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
