"""JSON Schemas of definitions (draft 2020-12), checked within bounds.

The package jsonschema would fetch a `$ref` to another address, search patterns without a time limit, compare the
elements of `uniqueItems` pair by pair, and divide binary fractions for `multipleOf` (then 0.3 is no multiple of 0.1,
and a number of 400 digits an error); here a reference stays inside the schema, patterns are `grader.patterns`,
`patternProperties` is refused, and the whole has a limit of time.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # ships no types
from referencing import Registry
from referencing.exceptions import Unresolvable

from grader.jsonvalues import is_deep, is_list
from grader.patterns import Pattern, PatternError, compile_pattern
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

LIMIT_SECONDS = 1.0
"""Of processor time of the thread, for one value."""

_deadline: ContextVar[float] = ContextVar("deadline")
"""When the check under way must have ended; jsonschema hands nothing of ours to its keywords."""


class UnsoundSchemaError(ValueError):
    """The value is no JSON Schema, or one that is not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A checked schema."""

    validator: Any
    """Of a class that jsonschema makes at run time."""

    def problem(self, value: object) -> str:
        """Return where a value first breaks the schema and how; empty if it fits.

        Args:
            value: JSON that is not deep.

        Raises:
            GradingFaultError: it took too long, kind timeout; the schema refers to itself without end, kind
                definition.
        """
        _deadline.set(time.thread_time() + LIMIT_SECONDS)
        try:
            error = next(self.validator.iter_errors(value), None)
        except (RecursionError, Unresolvable) as err:
            raise GradingFaultError(
                f"the JSON schema cannot be applied: {err or 'it refers to itself without end'}",
                kind=GraderErrorKind.DEFINITION,
                retryable=False,
                client=True,
            ) from err
        return "" if error is None else f"{error.json_path}: {error.message[:200]}"


def parse_schema(schema: object) -> Schema:
    """Check a schema.

    Raises:
        UnsoundSchemaError: it is none, or uses what is not supported.
    """
    if not isinstance(schema, dict) or is_deep(schema):
        raise UnsoundSchemaError("must be an object that is not nested too deep")
    for key, value in _entries(schema):
        if key == "patternProperties":
            raise UnsoundSchemaError("uses patternProperties, which is not supported")
        if key in ("$ref", "$dynamicRef") and not str(value).startswith("#"):
            raise UnsoundSchemaError(f"refers to {value!r}; a reference must begin with #")
        if key == "pattern" and isinstance(value, str):
            try:
                _compiled(value)
            except PatternError as err:
                raise UnsoundSchemaError(f"pattern {value!r} {err}") from err
    try:
        problem = _METASCHEMA.problem(schema)
    except GradingFaultError as err:
        raise UnsoundSchemaError(f"is too large to be checked: {err.detail}") from err
    if problem:
        raise UnsoundSchemaError(f"is no JSON schema: {problem}")
    return Schema(validator=_Validator(schema, registry=Registry()))


def patterns_in(schema: object) -> list[str]:
    """Return the patterns that a schema uses; a schema that is too deep has none."""
    if is_deep(schema):
        return []
    entries = _entries(schema)
    return [value for key, value in entries if key == "pattern" and isinstance(value, str)]


@lru_cache(maxsize=32)
def _compiled(pattern: str) -> Pattern:
    return compile_pattern(pattern)


def _entries(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of a schema with its value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key, inner
            yield from _entries(inner)
    elif is_list(value):
        for inner in value:
            yield from _entries(inner)


def _pattern(
    validator: Any, pattern: str, instance: object, schema: object
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _compiled(pattern).search(instance):
        yield ValidationError(f"does not match {pattern!r}")


def _unique_items(
    validator: Any, unique: bool, instance: object, schema: object
) -> Iterator[ValidationError]:
    if not unique or not is_list(instance):
        return
    seen = {json.dumps(_plain(value), sort_keys=True) for value in instance}
    if len(seen) < len(instance):
        yield ValidationError("has an element twice")


def _multiple_of(
    validator: Any, step: float, instance: object, schema: object
) -> Iterator[ValidationError]:
    if isinstance(instance, bool) or not isinstance(instance, int | float):
        return
    if _exact(instance) % _exact(step):
        yield ValidationError(f"{instance} is not a multiple of {step}")


def _exact(number: float) -> Fraction:
    """Return a number of JSON as it was written."""
    return Fraction(number) if isinstance(number, int) else Fraction(str(number))


def _plain(value: object) -> object:
    """Write equal numbers alike: 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if is_list(value) else value


_Keyword = Callable[[Any, Any, object, Any], Iterator[ValidationError] | None]


def _timed(keyword: _Keyword) -> _Keyword:
    def check(
        validator: Any, value: object, instance: object, schema: object
    ) -> Iterator[ValidationError] | None:
        if time.thread_time() > _deadline.get():
            raise GradingFaultError(
                f"the JSON schema took more than {LIMIT_SECONDS:g} s; make it or its patterns simpler",
                kind=GraderErrorKind.TIMEOUT,
                retryable=False,
                client=True,
            )
        return keyword(validator, value, instance, schema)

    return check


_KEYWORDS = {
    **Draft202012Validator.VALIDATORS,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "uniqueItems": _unique_items,
}
_Validator: Any = validators.extend(
    Draft202012Validator, {name: _timed(keyword) for name, keyword in _KEYWORDS.items()}
)
_METASCHEMA = Schema(validator=_Validator(Draft202012Validator.META_SCHEMA, registry=REGISTRY))
"""What every schema fits."""
