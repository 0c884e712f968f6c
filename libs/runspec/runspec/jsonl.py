"""Splits JSONL bytes into objects, with a problem for every line that is none."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from runspec.problems import RowError, RowErrors, described


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line's object, or what is wrong with the line."""

    line: int
    value: dict[str, object]
    error: str = ""


def read_rows(data: bytes, source: str) -> Iterator[Row]:
    """Yields a row per line that is not blank.

    Raises:
        RowErrors: there is no row at all.
    """
    found = False
    for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        found = True
        yield _row(line, raw)
    if not found:
        message = "is empty; expected one JSON object per line"
        raise RowErrors(source, [RowError(line=0, field="", message=message)])


def _row(line: int, raw: bytes) -> Row:
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        # An escape such as backslash-ud800 is JSON but no text that could be sent on.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return Row(
            line=line, value={}, error=f"holds half of a character ({error.object[error.start]!a})"
        )
    except UnicodeDecodeError as error:
        return Row(line=line, value={}, error=f"is not UTF-8 (byte {error.start} of the line)")
    except json.JSONDecodeError as error:
        return Row(line=line, value={}, error=f"is not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return Row(line=line, value={}, error="is nested too deeply")
    except ValueError as error:
        return Row(line=line, value={}, error=str(error))
    if not isinstance(value, dict):
        return Row(line=line, value={}, error=f"found {described(value)}, expected a JSON object")
    return Row(line=line, value=value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    built: dict[str, object] = {}
    for key, value in pairs:
        if key in built:
            raise ValueError(f"has the key {key!r} twice in one object")
        built[key] = value
    return built


def _no_constant(text: str) -> object:
    raise ValueError(f"has {text}, which is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds the number {text[:40]}, which is too large")
    return value
