"""Graded rows on disk: a JSONL file that grows as they come and that a later command goes on with."""

import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from grader.analysis.rows import GradedRow, row_from_json, row_to_json
from hone_cli.errors import USAGE, CliError
from trajectory.types import Failure

_NO_PARTS: Mapping[str, float] = {}


class Results:
    """The rows of one grading; the last one of an id counts.

    What graders explained goes to the file alone: no report reads it, and of many rows it would fill the memory.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        earlier: Iterable[GradedRow] = (),
    ) -> None:
        """Starts with what is on disk.

        Args:
            write: takes each row's JSON line; None keeps rows in memory alone.
            earlier: rows of an earlier command.
        """
        self._write = write
        self._rows = {row.row_id: row for row in earlier}

    def get(self, row_id: str) -> GradedRow | None:
        """A row, if it is there."""
        return self._rows.get(row_id)

    def add(self, row: GradedRow) -> None:
        """Keeps a row and writes it down at once."""
        self._rows[row.row_id] = _lean(row)
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


def _lean(row: GradedRow) -> GradedRow:
    if row.scored is None:
        return row
    rewards = tuple(
        replace(
            reward,
            name=sys.intern(reward.name),
            grader_name=sys.intern(reward.grader_name),
            grader_version=sys.intern(reward.grader_version),
            explanation="",
            parts=_NO_PARTS,
        )
        for reward in row.scored.rewards
    )
    return replace(row, outcome=replace(row.scored, rewards=rewards))


@contextmanager
def results_at(path: Path | None, *, resume: bool) -> Iterator[Results]:
    """Opens the results; with `resume` those of an earlier command are there already.

    Raises:
        CliError: the file cannot be written, exists without --resume, is none of ours, or another command writes it.
    """
    if path is None:
        yield Results()
        return
    descriptor = _opened(path)
    try:
        keep = 0
        earlier: list[GradedRow] = []
        if os.fstat(descriptor).st_size:
            if not resume:
                message = f"--out: {path} exists; go on with it by --resume, or choose another file"
                raise CliError(message, USAGE)
            earlier, keep = _read(path)
            os.ftruncate(descriptor, keep)
        os.lseek(descriptor, keep, os.SEEK_SET)
        yield Results(lambda line: _write(descriptor, line, path), earlier)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Opens and locks a file, without touching what it holds."""
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise CliError(
                f"--out: {path} is no regular file; --resume could not go on with it", USAGE
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise CliError(f"--out: another hone grade is writing {path}", USAGE) from error
        raise _cannot_write(path, error) from error
    return descriptor


def _write(descriptor: int, line: str, path: Path) -> None:
    left = memoryview(line.encode("utf-8"))
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as error:
        kept = f"{path} keeps the rows before; the same command with --resume goes on"
        raise CliError(f"--out: {error.strerror or error}; {kept}") from error


def _cannot_write(path: Path, error: OSError) -> CliError:
    return CliError(f"--out: cannot write {path}: {error.strerror or error}", USAGE)


def _read(path: Path) -> tuple[list[GradedRow], int]:
    """Returns the rows and the bytes they take; half a line at the end is left out."""
    keep = 0
    rows = []
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            if not text.endswith(b"\n"):
                break
            try:
                rows.append(_lean(row_from_json(json.loads(text))))
            except ValueError as error:
                raise CliError(f"--resume: {path}:{line}: no graded row: {error}", USAGE) from error
            keep += len(text)
    return rows, keep
