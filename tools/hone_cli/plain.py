"""Protobuf messages as plain values for --json, and back: numbers stay numbers, enums are words, times are ISO 8601."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)


def plain(message: Message) -> dict[str, object]:
    """The message with every field that is set or has no presence; unset ones with presence are left out."""
    found: dict[str, object] = {}
    field: Any  # the two descriptor classes of protobuf share no typed base
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            value_field = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _value(value_field, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_value(field, item) for item in value]
        else:
            found[field.name] = _value(field, value)
    return found


def filled(message: M, values: Mapping[str, object], path: str = "") -> M:
    """Fills a message with what `plain` made of one; returns it.

    Raises:
        ValueError: names the field, what was found and what would be right.
    """
    known = message.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        place = f"{path}.{key}" if path else key
        if key not in known:
            raise ValueError(f"{place}: unknown key; known are {', '.join(known)}")
        try:
            _fill(message, known[key], value, place)
        except (TypeError, AttributeError, OverflowError, ValueError) as error:
            if str(error).startswith(place):
                raise  # An inner message said where.
            raise ValueError(f"{place}: {error}") from error
    return message


def enum_word(field: Any, number: int) -> str:
    """An enum value as a lower-case word without its prefix; empty for unspecified."""
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        return str(number)
    names = [item.name for item in field.enum_type.values]
    prefix = names[0].removesuffix("UNSPECIFIED")
    word = value.name.removeprefix(prefix).lower()
    return "" if word == "unspecified" else word


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _value(field: Any, value: object) -> object:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Duration):
        return value.ToTimedelta().total_seconds()
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None and isinstance(value, int):
        return enum_word(field, value)
    if isinstance(value, bytes):
        return value.hex()
    return value


def _fill(message: Message, field: Any, value: Any, place: str) -> None:
    held = getattr(message, field.name)
    if _is_map(field):
        # Maps of the contracts hold numbers and texts alone.
        held.update(value)
    elif field.is_repeated and field.message_type is not None:
        for index, item in enumerate(value):
            filled(held.add(), item, f"{place}[{index}]")
    elif field.is_repeated:
        held.extend(value)
    elif isinstance(held, Timestamp):
        held.FromJsonString(value)
    elif isinstance(held, Duration):
        held.FromTimedelta(timedelta(seconds=value))
    elif field.message_type is not None:
        held.SetInParent()
        filled(held, value, place)
    elif field.enum_type is not None:
        setattr(message, field.name, _enum_number(field, value, place))
    else:
        setattr(message, field.name, bytes.fromhex(value) if isinstance(held, bytes) else value)


def _enum_number(field: Any, word: object, place: str) -> int:
    if not word:
        return 0
    words = {enum_word(field, value.number): value.number for value in field.enum_type.values}
    if word not in words:
        raise ValueError(
            f"{place}: found {word!r}, expected one of {', '.join(filter(None, words))}"
        )
    return int(words[word])
