"""The SQLite file of memories: opened by one process at a time, written in whole transactions."""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from servicekit.errors import DataLoss, FailedPrecondition, Unavailable

SCHEMA_VERSION = 1
"""Stored as SQLite's user_version; a file of another version is refused."""


class Database:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it if there is none.

        Raises:
            FailedPrecondition: another process has it, or it is of another version.
            DataLoss: it is damaged or no file of memories.
            Unavailable: it cannot be read or written.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            self.connection = self._opened()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the file and let another process have it. Idempotent."""
        self.connection.close()
        self._lock.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all that is done inside, or nothing; it is on disk when the block ends.

        Raises:
            Unavailable: the file cannot be written, as on a full disk.
        """
        try:
            with self.connection:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
        except sqlite3.OperationalError as err:
            raise Unavailable(f"{self._path} cannot be used: {err}") from err

    def _locked(self) -> BinaryIO:
        # The vectors in RAM are the process's own, so a second writer would make them wrong.
        lock = self._path.with_name(self._path.name + ".lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            lock.close()
            raise FailedPrecondition(
                f"{self._path}: another memory service works with this file; stop it, or set data_dir"
            ) from err
        return lock

    def _opened(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        except sqlite3.OperationalError as err:
            raise Unavailable(f"{self._path} cannot be opened: {err}") from err
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # What was answered, and the event that was acknowledged, outlive a power cut too.
            connection.execute("PRAGMA synchronous = FULL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise FailedPrecondition(
                    f"{self._path} is a file of version {version}, this service writes version {SCHEMA_VERSION}: "
                    "run the service that made it, or move the file away"
                )
            schema = resources.files("memory").joinpath("schema.sql").read_text(encoding="ascii")
            connection.executescript(schema)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException as err:
            connection.close()
            if isinstance(err, sqlite3.OperationalError):
                raise Unavailable(f"{self._path} cannot be used: {err}") from err
            if isinstance(err, sqlite3.DatabaseError):
                raise DataLoss(f"{self._path} is damaged or no file of memories: {err}") from err
            raise
        return connection
