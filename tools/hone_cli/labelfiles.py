"""Reads files of labels into rows: csv, tsv, jsonl and a json list; each row knows where it stands."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.jsonvalues import is_deep, is_unicode
from hone_cli.errors import USAGE, CliError
from runspec.jsonl import read_rows
from runspec.problems import RowErrors, described

_MAX_SHOWN = 20
_DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRow:
    """One row."""

    place: str
    """File and line, or file and position in a list."""
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFile:
    """One file that was read."""

    path: Path
    columns: tuple[str, ...]
    """All that occur, in the order in which they do; columns without a name are left out."""
    rows: tuple[LabelRow, ...]


class Faults:
    """What is wrong with the files, gathered so that a person mends them in one pass."""

    def __init__(self) -> None:
        """Starts without faults."""
        self._lines: dict[str, None] = {}

    def add(self, place: object, text: str) -> None:
        """Notes what was found and what would be right."""
        self._lines[f"{place}: {text}"] = None

    def raise_if_any(self) -> None:
        """Raises a CliError that says the first of them, if there are any."""
        if self._lines:
            shown = list(self._lines)[:_MAX_SHOWN]
            more = len(self._lines) - len(shown)
            raise CliError("\n".join([*shown, f"and {more} more"] if more else shown), USAGE)


def read_label_file(path: Path) -> LabelFile:
    """Reads a file by its suffix.

    Raises:
        CliError: it cannot be read, or rows are no rows; names lines.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".jsonl", ".ndjson", ".json"):
        raise CliError(
            f"{path}: found {suffix or 'no suffix'}, expected .csv, .tsv, .jsonl or .json", USAGE
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror or error}", USAGE) from error
    if suffix in (".csv", ".tsv"):
        rows = _csv_rows(_text(data, path), path, tab=suffix == ".tsv")
    elif suffix == ".json":
        rows = _list_rows(_text(data, path), path)
    else:
        rows = _jsonl_rows(data, path)
    if not rows:
        raise CliError(f"{path}: has no rows, expected at least one with labels", USAGE)
    columns = dict.fromkeys(name for row in rows for name in row.values)
    return LabelFile(path=path, columns=tuple(columns), rows=tuple(rows))


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CliError(
            f"{path}:{line}: is not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8",
            USAGE,
        ) from error


def _csv_rows(text: str, path: Path, *, tab: bool) -> list[LabelRow]:
    head = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = "\t" if tab else max(_DELIMITERS, key=head.count)
    # The limit is the whole process's; columns of texts may be long, and the file is in memory already.
    csv.field_size_limit(max(len(text), csv.field_size_limit()))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    faults = Faults()
    header: list[str] | None = None
    rows = []
    line = 1
    try:
        for cells in reader:
            if header is None and cells:
                header = _header(cells, f"{path}:{line}")
            elif header is not None and cells:
                if len(cells) != len(header):
                    faults.add(
                        f"{path}:{line}",
                        f"found {len(cells)} fields, expected {len(header)} as in the header; "
                        "a field that holds the separator needs quotes",
                    )
                named = {name: cell for name, cell in zip(header, cells, strict=False) if name}
                rows.append(LabelRow(place=f"{path}:{line}", values=named))
            line = reader.line_num + 1
    except csv.Error as error:
        faults.add(f"{path}:{line}", f"is not CSV: {error}")
    faults.raise_if_any()
    if header is None:
        raise CliError(f"{path}: is empty, expected a header and rows", USAGE)
    return rows


def _header(cells: Iterable[str], place: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if name and names.count(name) > 1:
            raise CliError(
                f"{place}: the column {name!r} stands twice, expected one name each", USAGE
            )
    return names


def _jsonl_rows(data: bytes, path: Path) -> list[LabelRow]:
    faults = Faults()
    rows = []
    try:
        for row in read_rows(data, str(path)):
            place = f"{path}:{row.line}"
            if row.error:
                faults.add(place, f"{row.error}{_null_hint(row.error)}")
            rows.append(LabelRow(place=place, values=row.value))
    except RowErrors as error:
        raise CliError(str(error), USAGE) from error
    faults.raise_if_any()
    return rows


def _list_rows(text: str, path: Path) -> list[LabelRow]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise CliError(f"{path}:{error.lineno}: is not JSON: {error.msg}", USAGE) from error
    except RecursionError:
        raise CliError(f"{path}: is nested too deeply", USAGE) from None
    except ValueError as error:
        raise CliError(f"{path}: {error}{_null_hint(str(error))}", USAGE) from error
    if not isinstance(found, list):
        raise CliError(f"{path}: found {described(found)}, expected a list of objects", USAGE)
    faults = Faults()
    rows = []
    for index, value in enumerate(found):
        place = f"{path}[{index}]"
        if not isinstance(value, dict):
            faults.add(place, f"found {described(value)}, expected an object")
        elif is_deep(value):
            faults.add(place, "is nested too deeply")
        elif not is_unicode(value):
            faults.add(place, "holds half of a character, such as \\ud800")
        else:
            rows.append(LabelRow(place=place, values=value))
    faults.raise_if_any()
    return rows


def _no_constant(text: str) -> object:
    raise ValueError(f"has {text}, which is not a JSON number")


def _null_hint(error: str) -> str:
    return "; null is a missing label" if "which is not a JSON number" in error else ""
