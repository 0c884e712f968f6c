"""The SQLite file of memories: opened by one process at a time, written in whole transactions."""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from servicekit.errors import FailedPrecondition, Unavailable
from servicekit.sqlite_files import refuse_foreign, typed_errors

SCHEMA_VERSION = 1
"""Stored as SQLite's user_version; a file of another version is refused."""


class Database:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it if there is none.

        Raises:
            FailedPrecondition: another process has it, or it is of another version or program.
            DataLoss: it is damaged or no SQLite file.
            Unavailable: it cannot be read or written.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as err:
            raise Unavailable(f"{path} cannot be opened: {err}") from err
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
            DataLoss: it is damaged.
        """
        with typed_errors(self._path), self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection

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
        with typed_errors(self._path):
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                refuse_foreign(connection, self._path, "embedder")
                connection.execute("PRAGMA journal_mode = WAL")
                # What was answered, and the event that was acknowledged, outlive a power cut too.
                connection.execute("PRAGMA synchronous = FULL")
                self._check_version(connection)
                schema = resources.files("memory").joinpath("schema.sql")
                connection.executescript(schema.read_text(encoding="ascii"))
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            except BaseException:
                connection.close()
                raise
            return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise FailedPrecondition(
                f"{self._path} is a file of version {version}, this service writes version {SCHEMA_VERSION}: "
                "run the service that made it, or move the file away"
            )
