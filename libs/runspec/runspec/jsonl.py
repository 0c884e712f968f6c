"""Splits JSONL bytes into objects, with a problem for every line that is none.

An object may also be laid out over several lines, as `--json` prints it: the first is `{` and the last `}` alone.
"""

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from runspec.problems import RowError, RowErrors, described

_BOM = b"\xef\xbb\xbf"
_HEAD = 1024
"""Bytes that show what a file is."""
_MAX_DIGITS = 4300
_FORMATS = (
    (b"\xff\xfe", "UTF-16", "UTF-8"),
    (b"\xfe\xff", "UTF-16", "UTF-8"),
    (b"\x1f\x8b", "compressed by gzip", "a name that ends with .jsonl.gz"),
    (b"PAR1", "parquet", "a name that ends with .parquet"),
    (b"ARROW1", "arrow", "a name that ends with .arrow"),
    (b"PK\x03\x04", "a zip archive", "one JSON object per line"),
)
"""How a file begins, what it then is, and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line's object, or what is wrong with the line."""

    line: int
    """The first of an object laid out over several."""
    value: dict[str, object]
    error: str = ""


def read_rows(data: bytes, source: str) -> Iterator[Row]:
    """Yields a row per object or line that is not blank.

    Raises:
        RowErrors: there is no row at all.
    """
    wrong = _other_format(data)
    if wrong:
        raise RowErrors(source, [RowError(line=0, field="", message=wrong)])
    found = False
    first, open_object = 0, bytearray()
    # Line by line, since a list of all lines would be the file once more.
    for line, raw in enumerate(io.BytesIO(data), start=1):
        raw = raw.removesuffix(b"\n")
        raw = raw.removeprefix(_BOM) if line == 1 else raw
        if open_object:
            open_object += raw + b"\n"
            if raw.rstrip() == b"}":
                yield _row(first, bytes(open_object))
                open_object.clear()
        elif raw.strip() == b"{":
            found = True
            first, open_object = line, bytearray(raw + b"\n")
        elif raw.strip():
            found = True
            yield _row(line, raw)
    if open_object:
        yield _row(first, bytes(open_object))
    if not found:
        message = "is empty; expected one JSON object per line"
        raise RowErrors(source, [RowError(line=0, field="", message=message)])


def _other_format(data: bytes) -> str:
    """Says which other format a file is in, where each of its lines would be a problem; empty for none."""
    for start, name, right in _FORMATS:
        if data.startswith(start):
            return f"is {name}, expected {right}"
    if b"\0" in data[:_HEAD]:
        return "is a binary file, expected one JSON object per line"
    if data[:_HEAD].removeprefix(_BOM).lstrip().startswith(b"["):
        return "is a JSON list; expected one JSON object per line, without brackets and commas around them"
    return ""


def _row(line: int, raw: bytes) -> Row:
    try:
        value = read_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Row(line=line, value={}, error=f"is not UTF-8 (byte {error.start} of the line)")
    except json.JSONDecodeError as error:
        return Row(line=line, value={}, error=f"is not JSON: {_said(line, error)}")
    except ValueError as error:
        return Row(line=line, value={}, error=str(error))
    if not isinstance(value, dict):
        return Row(line=line, value={}, error=f"found {described(value)}, expected a JSON object")
    return Row(line=line, value=value)


def read_json(text: str) -> object:
    """Reads JSON that others must be able to read: no key twice, no NaN, no number or text that cannot be sent on.

    Raises:
        json.JSONDecodeError: it is not JSON.
        ValueError: it is, but not fit; the text says why.
    """
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=whole_number,
        )
        # An escape such as backslash-ud800 is JSON but no text that could be sent on.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half of a character ({error.object[error.start]!a})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    return value


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds an object, as `object_pairs_hook` of json.

    Raises:
        ValueError: it has a key twice.
    """
    built: dict[str, object] = {}
    for key, value in pairs:
        if key in built:
            raise ValueError(f"has the key {key!r} twice in one object")
        built[key] = value
    return built


def _no_constant(text: str) -> object:
    raise ValueError(f"has {text}, which is not a JSON number")


def whole_number(text: str) -> int:
    """Reads a number, as `parse_int` of json.

    Raises:
        ValueError: it has more digits than Python reads.
    """
    # Python refuses to read more digits than that, and as text they can be given.
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"holds a number of {len(text)} digits; give it as a text")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds the number {text[:40]}, which is too large")
    return value


def _said(line: int, error: json.JSONDecodeError) -> str:
    of_line = f" of line {line + error.lineno - 1}" if error.lineno > 1 else ""
    return f"{error.msg.removesuffix(' at')} at column {error.colno}{of_line}"
