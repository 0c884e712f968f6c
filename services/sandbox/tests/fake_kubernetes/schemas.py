"""Checks objects against the published schemas, strictly: no unknown field, every type, every required field.

The schemas are those that the `kubernetes` package was generated from: its model classes say each field's JSON name
and type. What the schemas do not say but an API server refuses all the same (names, labels, quantities, references
inside a pod) is checked in `rules.py`.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from kubernetes.client import models

Problems = dict[str, str]
"""Path of a field to what is wrong with it."""

_GENERIC = re.compile(r"(List|Dict)\[(?:str, )?(.+)\]")


def check(kind: str, value: object, path: str = "") -> Problems:
    """Return what is wrong with an object of a model class, for example V1Pod."""
    if not isinstance(value, Mapping):
        return {path or ".": f"must be an object, found {_name(value)}"}
    model = getattr(models, kind)
    by_json_name = {json: name for name, json in model.attribute_map.items()}
    found: Problems = {}
    for name, item in value.items():
        where = f"{path}.{name}" if path else name
        if name not in by_json_name:
            found[where] = "unknown field"
        elif item is not None:
            found |= check_type(model.openapi_types[by_json_name[name]], item, where)
    for name, field in model.model_fields.items():
        json_name = field.serialization_alias or name
        if field.is_required() and value.get(json_name) is None:
            found[f"{path}.{json_name}" if path else json_name] = "is required"
    return found


def check_type(kind: str, value: object, path: str) -> Problems:
    """Return what is wrong with a value of a type as the model classes write it."""
    generic = _GENERIC.fullmatch(kind)
    if generic is not None:
        container, inner = generic.groups()
        if container == "List":
            if not isinstance(value, list):
                return {path: f"must be a list, found {_name(value)}"}
            items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        else:
            if not isinstance(value, Mapping):
                return {path: f"must be an object, found {_name(value)}"}
            items = ((f"{path}.{name}", item) for name, item in value.items())
        return {k: v for where, item in items for k, v in check_type(inner, item, where).items()}
    if kind in _PLAIN:
        return {} if _PLAIN[kind](value) else {path: f"must be a {kind}, found {_name(value)}"}
    return check(kind, value, path)


def _is_time(value: object) -> bool:
    try:
        datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return False
    return isinstance(value, str)


def _is_base64(value: object) -> bool:
    try:
        base64.b64decode(str(value), validate=True)
    except binascii.Error:
        return False
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_PLAIN: dict[str, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_int,
    "float": lambda value: _is_int(value) or isinstance(value, float),
    "bool": lambda value: isinstance(value, bool),
    "object": lambda _: True,
    "datetime": _is_time,
    "bytes": _is_base64,
}


def _name(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
