"""Rows from wherever people keep them, as JSONL: the form that rows are checked and uploaded in.

    rows.jsonl, rows.jsonl.gz, rows.json      lines, or in .json one list
    rows.parquet, rows.csv, rows.arrow        read with the package datasets, as `load_dataset` reads them
    a folder of such files                    its splits are found as `load_dataset` finds them
    a folder that `save_to_disk` wrote        one split, or several

Files of lines are taken to the letter. In rows of tables, keys of messages and tools that hold nothing are left out: a
table has every key in every row. Each row stays known by its file and its number in it.
"""

import bisect
import datetime
import glob
import gzip
import json
import math
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runspec.jsonl import unique_keys, whole_number
from runspec.problems import RowError, RowErrors, described

_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TABLES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".arrow": "arrow"}
_MESSAGE_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")
_DEFAULT_SPLITS = {"data.train": ("train",), "data.eval": ("test", "validation", "eval")}
_SPLITS, _STATE = "dataset_dict.json", "state.json"
_BOM = b"\xef\xbb\xbf"


class DataFileError(ValueError):
    """The place that was named cannot be read as rows; the text says what was found and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Rows as JSONL, which know their files."""

    name: str
    """Of the file or folder as a whole."""
    data: bytes
    starts: tuple[int, ...]
    """The lines, from 1, at which the files begin."""
    files: tuple[str, ...]

    def placed(self, errors: RowErrors) -> RowErrors:
        """The same errors at the rows of the files that the lines came from."""
        found = [self._placed(error) if error.line else error for error in errors.errors]
        return RowErrors(self.name, found, more=errors.more)

    def _placed(self, error: RowError) -> RowError:
        index = bisect.bisect_right(self.starts, error.line) - 1
        line = error.line - self.starts[index] + 1
        return replace(error, line=line, source=self.files[index])


def read_rows_of(path: Path, field: str, split: str = "") -> RowSource:
    """Reads a file or folder of rows.

    Args:
        path: where it is.
        field: data.train or data.eval; which split is meant where the folder has several and none is named.
        split: the split of a folder; empty means its only one, or the usual one of the field.

    Raises:
        DataFileError: it is no place of rows, the package datasets is needed and absent, or the split is not there.
        RowErrors: a row holds what JSON cannot.
        OSError: it cannot be read.
    """
    if path.is_dir():
        files = _files_of(path, field, split)
    elif split:
        raise DataFileError(
            f"names the split {split!r}, but {path} is one file; leave the split out"
        )
    else:
        files = [path]
    starts, texts, line = [], [], 1
    for file in files:
        text = _jsonl_of(file)
        starts.append(line)
        texts.append(text)
        line += text.count(b"\n")
    return RowSource(
        name=str(path),
        data=b"".join(texts),
        starts=tuple(starts),
        files=tuple(str(file) for file in files),
    )


def _jsonl_of(file: Path) -> bytes:
    """The rows of one file, each line ended."""
    name = file.name.lower()
    kind = next((kind for end, kind in _TABLES.items() if name.endswith(end)), None)
    if kind is not None:
        return _dumped(_table(file, kind), str(file), of_table=True)
    raw = file.read_bytes()
    try:
        raw = gzip.decompress(raw) if name.endswith(".gz") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"{file} is not gzip: {error}") from error
    raw = raw.removeprefix(_BOM)
    if name.removesuffix(".gz").endswith(".json") and raw.lstrip().startswith(b"["):
        return _dumped(_listed(raw, file), str(file), of_table=False)
    return raw if raw.endswith(b"\n") or not raw else raw + b"\n"


def _listed(raw: bytes, file: Path) -> list[object]:
    try:
        found = json.loads(raw, object_pairs_hook=unique_keys, parse_int=whole_number)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataFileError(f"{file} is not JSON: {error}") from error
    except RecursionError as error:
        raise DataFileError(f"{file} is nested too deeply") from error
    except ValueError as error:
        raise DataFileError(f"{file} {error}") from error
    assert isinstance(found, list)
    return found


def _dumped(rows: Iterable[object], source: str, *, of_table: bool) -> bytes:
    lines: list[bytes] = []
    for number, row in enumerate(rows, start=1):
        if of_table and isinstance(row, Mapping):
            row = {
                key: _without_nulls(value) if key in _MESSAGE_COLUMNS else _without_nan(value)
                for key, value in row.items()
            }
        try:
            text = json.dumps(row, ensure_ascii=False, default=_as_json)
        except TypeError as error:
            field = next((key for key, value in _items(row) if not _is_json(value)), "")
            problem = RowError(line=number, field=field, message=str(error))
            raise RowErrors(source, [problem]) from error
        try:
            lines.append(text.encode() + b"\n")
        except UnicodeEncodeError:  # half of a character, which the reader of the row names
            lines.append(json.dumps(row, default=_as_json).encode() + b"\n")
    return b"".join(lines)


def _items(row: object) -> Iterable[tuple[str, object]]:
    return row.items() if isinstance(row, Mapping) else ()


def _without_nan(value: object) -> object:
    """NaN is how pandas writes what is missing, of which JSON has another sign."""
    match value:
        case float() if math.isnan(value):
            return None
        case dict():
            return {key: _without_nan(item) for key, item in value.items()}
        case list():
            return [_without_nan(item) for item in value]
        case _:
            return value


def _without_nulls(value: object) -> object:
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value]
        case _:
            return value


def _as_json(value: object) -> object:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    raise TypeError(f"found {described(value)}, expected what JSON can hold; remove the column")


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, default=_as_json)
    except TypeError:
        return False
    return True


def _table(file: Path, kind: str) -> Iterator[object]:
    datasets = _datasets(file)
    try:
        if kind == "arrow":
            yield from datasets.Dataset.from_file(str(file))
            return
        with tempfile.TemporaryDirectory(prefix="hone-rows-") as cache:
            # Without escapes rows[1].csv would be another file, rows1.csv.
            yield from datasets.load_dataset(
                kind,
                data_files=[glob.escape(str(file))],
                split="train",
                cache_dir=cache,
                **({"sep": "\t"} if file.suffix.lower() == ".tsv" else {}),
            )
    # The package wraps what pyarrow and pandas raise in errors of many kinds.
    except Exception as error:
        cause = error.__cause__ or error
        raise DataFileError(f"{file} cannot be read as {kind}: {cause}") from error


def _files_of(folder: Path, field: str, split: str) -> list[Path]:
    """The files of one split, in order."""
    if (folder / _SPLITS).is_file():
        name = _chosen(_saved(folder, _SPLITS, "splits", str), folder, field, split)
        return _shards(folder / name)
    if (folder / _STATE).is_file():
        if split:
            raise DataFileError(f"names the split {split!r}, but {folder} is one data set")
        return _shards(folder)
    datasets = _datasets(folder)
    if glob.has_magic(str(folder.resolve())):
        raise DataFileError(
            f"{folder.resolve()} has one of * ? [ in its name, which the package datasets takes for a "
            "pattern; rename the folder, or name one file"
        )
    with tempfile.TemporaryDirectory(prefix="hone-rows-") as cache:
        try:
            builder = datasets.load_dataset_builder(str(folder), cache_dir=cache)
        except Exception as error:  # of many kinds, as above
            raise DataFileError(f"{folder} holds no data set: {error}") from error
    by_split = {str(name): list(files) for name, files in builder.config.data_files.items()}
    chosen = [Path(file) for file in by_split[_chosen(list(by_split), folder, field, split)]]
    known = (*_LINES, *_TABLES, ".json")
    for file in chosen:
        if not file.name.lower().endswith(known):
            raise DataFileError(f"{file} is none of {', '.join(known)}")
    return chosen


def _shards(folder: Path) -> list[Path]:
    """The files of a saved data set, in the order of its rows."""
    entries = _saved(folder, _STATE, "_data_files", dict)
    if not all(isinstance(entry.get("filename"), str) for entry in entries):
        raise DataFileError(f"{folder / _STATE}: _data_files: expected a filename in each")
    return [folder / entry["filename"] for entry in entries]


def _saved(folder: Path, name: str, key: str, kind: type) -> list[Any]:
    """Reads a list from a file that `save_to_disk` writes."""
    file = folder / name
    try:
        said = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{file} is not JSON: {error}") from error
    found = said.get(key) if isinstance(said, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
        raise DataFileError(
            f"{file}: {key}: found {described(found)}, expected what save_to_disk writes"
        )
    return found


def _chosen(splits: list[str], folder: Path, field: str, split: str) -> str:
    has = ", ".join(splits)
    if split:
        if split not in splits:
            raise DataFileError(f"names the split {split!r}, but {folder} has {has}")
        return split
    usual = [name for name in _DEFAULT_SPLITS.get(field, ()) if name in splits]
    if len(splits) == 1 or usual:
        return usual[0] if usual else splits[0]
    raise DataFileError(f"{folder} has the splits {has}; say which by {field}_split")


def _datasets(path: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataFileError(
            f"{path} is read with the package datasets, which is not installed; run: "
            "pip install datasets, or give a JSONL file"
        ) from error
    datasets.disable_progress_bars()
    # What it logs as an error it raises too, and whoever reads rows says it.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets
