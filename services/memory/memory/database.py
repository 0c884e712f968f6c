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
_APPLICATION_ID = int.from_bytes(b"HMEM")
"""Stored as SQLite's application_id: whose file it is."""


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
        with self._typed_errors(), self.connection:
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
        with self._typed_errors():
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                self._check_whose(connection)
                connection.execute("PRAGMA journal_mode = WAL")
                # What was answered, and the event that was acknowledged, outlive a power cut too.
                connection.execute("PRAGMA synchronous = FULL")
                # Before the schema, so that a file whose making was cut short is known again.
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                schema = resources.files("memory").joinpath("schema.sql")
                connection.executescript(schema.read_text(encoding="ascii"))
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            except BaseException:
                connection.close()
                raise
            return connection

    def _check_whose(self, connection: sqlite3.Connection) -> None:
        """Refuse what this service did not make; nothing is written to it."""
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID and (tables or application or version):
            raise FailedPrecondition(
                f"{self._path} is a file of another program: move it away, or set data_dir"
            )
        if version not in (0, SCHEMA_VERSION):
            raise FailedPrecondition(
                f"{self._path} is a file of version {version}, this service writes version {SCHEMA_VERSION}: "
                "run the service that made it, or move the file away"
            )

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise what SQLite's errors mean to callers; a defect of ours stays what it is."""
        try:
            yield
        except sqlite3.OperationalError as err:
            raise Unavailable(f"{self._path} cannot be used: {err}") from err
        except sqlite3.DatabaseError as err:
            if type(err) is not sqlite3.DatabaseError:
                raise
            raise DataLoss(f"{self._path} is damaged or no SQLite file: {err}") from err
