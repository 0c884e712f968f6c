"""Protobuf messages as plain values for --json: numbers stay numbers, enums are words, times are ISO 8601."""

from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp


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
