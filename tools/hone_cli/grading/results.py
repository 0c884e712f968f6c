"""Graded rows on disk: a JSONL file that grows as they come and that a later command goes on with."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.analysis.rows import GradedRow, row_from_json, row_to_json
from hone_cli.errors import USAGE, CliError
from trajectory.types import Failure


class Results:
    """The rows of one grading; the last one of an id counts."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        """Starts empty.

        Args:
            write: takes each row's JSON line; None keeps rows in memory alone.
        """
        self._write = write
        self._rows: dict[str, GradedRow] = {}

    def get(self, row_id: str) -> GradedRow | None:
        """A row, if it is there."""
        return self._rows.get(row_id)

    def remember(self, row: GradedRow) -> None:
        """Keeps a row that is on disk."""
        self._rows[row.row_id] = row

    def add(self, row: GradedRow) -> None:
        """Keeps a row and writes it down at once."""
        self._rows[row.row_id] = row
        if self._write is not None:
            self._write(json.dumps(row_to_json(row), ensure_ascii=False) + "\n")

    def has(self, row_id: str, digest: str, grader_version: str) -> bool:
        """Whether a row is done; one whose grading failed is not.

        Raises:
            CliError: the file holds it with another content, or judged by another grader.
        """
        row = self._rows.get(row_id)
        if row is None:
            return False
        if row.digest != digest:
            raise CliError(f"--resume: {row_id} has changed since it was graded", USAGE)
        if isinstance(row.outcome, Failure):
            return False
        if row.grader_version != grader_version:
            raise CliError(
                f"--resume: {row_id} was judged by grader version {row.grader_version}, and this is "
                f"{grader_version}; choose another --out",
                USAGE,
            )
        return True


@contextmanager
def results_at(path: Path | None, *, resume: bool) -> Iterator[Results]:
    """Opens the results; with `resume` those of an earlier command are there already.

    Raises:
        CliError: the file cannot be written, exists without --resume, or is none of ours.
    """
    if path is None:
        yield Results()
        return
    earlier: list[GradedRow] = []
    keep = 0
    if path.exists() and path.stat().st_size:
        if not resume:
            message = f"--out: {path} exists; go on with it by --resume, or choose another file"
            raise CliError(message, USAGE)
        earlier, keep = _read(path)
    try:
        with path.open("r+b" if keep else "wb") as file:
            file.truncate(keep)
            file.seek(keep)

            def write(line: str) -> None:
                file.write(line.encode("utf-8"))
                file.flush()

            results = Results(write)
            for row in earlier:
                results.remember(row)
            yield results
    except OSError as error:
        raise CliError(f"--out: cannot write {path}: {error.strerror or error}", USAGE) from error


def _read(path: Path) -> tuple[list[GradedRow], int]:
    """Returns the rows and the bytes they take; half a line at the end is left out."""
    data = path.read_bytes()
    keep = data.rfind(b"\n") + 1
    rows = []
    for line, text in enumerate(data[:keep].splitlines(), start=1):
        try:
            rows.append(row_from_json(json.loads(text)))
        except ValueError as error:
            raise CliError(f"--resume: {path}:{line}: no graded row: {error}", USAGE) from error
    return rows, keep
