"""One rollout's database, as a sandbox whose only program is `sql`."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from sandbox.backends.local.running import DRAIN_LIMIT_BYTES
from sandbox.backends.protocol import BoxLost
from sandbox.backends.state.sql import (
    Damaged,
    Interrupted,
    OutOfMemory,
    StatementError,
    StopFlag,
    connect,
    execute,
    open_database,
    parse_parameters,
)
from sandbox.output import CappedOutput
from sandbox.types import (
    BoxFile,
    Chunk,
    Command,
    ExecOutcome,
    FileContent,
    FileEntry,
    Owner,
    Stream,
    Termination,
)
from servicekit.errors import FailedPrecondition, Unavailable

_USAGE = 'sql STATEMENT [PARAMETERS], for example: sql "SELECT ?" "[1]"'
_EXIT_USAGE = 2
_EXIT_NOT_FOUND = 127


class StateBox:
    """A database file and the one connection to it."""

    def __init__(
        self,
        path: Path,
        *,
        rootfs_digest: str,
        max_bytes: int,
        workers: Executor,
        has_room: Callable[[], bool],
        on_destroyed: Callable[[], object],
    ) -> None:
        """Works with the database at `path`, which exists.

        Args:
            path: the file; this box removes it.
            rootfs_digest: of what it was cloned from.
            max_bytes: how large it may become.
            workers: where statements run.
            has_room: whether the manager's disk has room for what SQLite keeps in temporary files.
            on_destroyed: called when nothing is left.
        """
        self.rootfs_digest = rootfs_digest
        self._path = path
        self._max_bytes = max_bytes
        self._workers = workers
        self._has_room = has_room
        self._on_destroyed = on_destroyed
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._running: dict[str, StopFlag] = {}
        self._destroying: asyncio.Task[None] | None = None

    async def claim(self, owner: Owner) -> None:
        """Take an owner; see `Box.claim`. Nothing here is labelled."""

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a statement; see `Box.run`. Statements of one box run one after another."""
        sql = _Sql(command, emit, has_room=self._has_room)
        self._running[command.exec_id] = sql.stop
        try:
            async with self._turn:
                if self._destroying is not None:
                    raise BoxLost("the database was dropped")
                working = asyncio.get_running_loop().run_in_executor(
                    self._workers, sql.run, self._connected
                )
                try:
                    await asyncio.shield(working)
                except asyncio.CancelledError:
                    sql.stop.set()
                    await asyncio.wait([working])  # the next statement needs the connection
                    raise
        finally:
            self._running.pop(command.exec_id, None)
        return sql.outcome()

    async def kill(self, exec_id: str) -> None:
        """Stop a statement and wait until it has ended; see `Box.kill`."""
        stop = self._running.get(exec_id)
        if stop is not None:
            stop.set()
            async with self._turn:
                pass

    async def write_file(self, file: BoxFile) -> None:
        """Refuse; see `Box.write_file`."""
        _no_files()

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Refuse; see `Box.read_file`."""
        _no_files()

    async def list_files(self, path: str) -> list[FileEntry]:
        """Refuse; see `Box.list_files`."""
        _no_files()

    async def stat_file(self, path: str) -> FileEntry:
        """Refuse; see `Box.stat_file`."""
        _no_files()

    async def unpack(self, folder: str, archive: Path) -> None:
        """Refuse; see `Box.unpack`."""
        _no_files()

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Refuse; see `Box.pack`."""
        _no_files()

    async def snapshot(self, target: Path) -> None:
        """Copy the database; see `Box.snapshot`. What an open transaction has not committed is not in it."""
        async with self._turn:
            if self._destroying is not None:
                raise BoxLost("the database was dropped")
            saving = asyncio.get_running_loop().run_in_executor(
                self._workers, _save, self._path, target
            )
            try:
                await asyncio.shield(saving)
            except asyncio.CancelledError:
                await asyncio.wait([saving])  # the file must not go while it is read
                raise

    async def polluted(self) -> bool:
        """Say no: the database is this rollout's alone."""
        return False

    async def destroy(self) -> None:
        """Drop the database; see `Box.destroy`."""
        if self._destroying is None:
            self._destroying = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._destroying)

    async def _destroy(self) -> None:
        for stop in list(self._running.values()):
            stop.set()
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._workers, self._drop)
        self._on_destroyed()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        remove_database(self._path)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_database(self._path, self._max_bytes)
        return self._connection


class _Sql:
    """One run of the program `sql`; `run` in a worker, everything else in the event loop."""

    def __init__(
        self, command: Command, emit: Callable[[Chunk], None] | None, has_room: Callable[[], bool]
    ) -> None:
        self.stop = StopFlag(time.monotonic)
        self._command = command
        self._emit = emit
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._stdout = CappedOutput(command.max_output_bytes)
        self._stderr = CappedOutput(command.max_output_bytes)
        self._termination = Termination.EXITED
        self._exit_code = 0
        self._short_of_room = False
        self._begun = time.monotonic()

    def outcome(self) -> ExecOutcome:
        """Return how it went."""
        return ExecOutcome(
            termination=self._termination,
            exit_code=self._exit_code,
            stdout=self._stdout.content(),
            stderr=self._stderr.content(),
            stdout_truncated=self._stdout.truncated,
            stderr_truncated=self._stderr.truncated,
            duration_seconds=time.monotonic() - self._begun,
        )

    def run(self, connected: Callable[[], sqlite3.Connection]) -> None:
        """Run the statement on the connection.

        Raises:
            BoxLost: the database is gone or damaged.
            Unavailable: the manager lacks memory or disk; nothing of the statement is kept.
        """
        self._begun = time.monotonic()
        program, *arguments = self._command.argv
        if program != "sql":
            self._fail(_EXIT_NOT_FOUND, f"{program}: not found; here is only: {_USAGE}")
            return
        if not 1 <= len(arguments) <= 2:
            self._fail(_EXIT_USAGE, f"found {len(arguments)} arguments; right is: {_USAGE}")
            return
        self.stop.start(self._command.timeout_seconds)
        try:
            parameters = parse_parameters(arguments[1]) if len(arguments) == 2 else ()
            execute(
                connected(),
                arguments[0],
                parameters,
                write_line=lambda line: self._write(Stream.STDOUT, line),
                must_stop=self._must_stop,
            )
        except StatementError as error:
            self._fail(1, str(error))
        except Interrupted:
            self._note_interrupt()
        except OutOfMemory as error:
            raise _short_of("memory") from error
        except (Damaged, sqlite3.DatabaseError) as error:
            raise BoxLost(f"the database cannot be used: {error}") from error

    def _must_stop(self) -> bool:
        if self._stdout.total_bytes > DRAIN_LIMIT_BYTES:
            self._termination = Termination.OUTPUT_LIMIT
            return True
        if not self._has_room():
            self._short_of_room = True
            return True
        return self.stop()

    def _note_interrupt(self) -> None:
        if self._short_of_room:
            raise _short_of("disk")
        if self._termination is Termination.EXITED:
            killed = self.stop.was_set
            self._termination = Termination.KILLED if killed else Termination.TIMED_OUT

    def _fail(self, exit_code: int, text: str) -> None:
        self._exit_code = exit_code
        self._write(Stream.STDERR, f"{text}\n".encode(errors="replace"))

    def _write(self, stream: Stream, data: bytes) -> None:
        output = self._stdout if stream is Stream.STDOUT else self._stderr
        room = self._command.max_output_bytes - output.total_bytes
        if self._emit is not None and room > 0:
            self._loop.call_soon_threadsafe(self._emit, Chunk(stream=stream, data=data[:room]))
        output.add(data)


class InTransaction(sqlite3.OperationalError):
    """An open transaction shuts readers out of the database."""


def copy_database(source: Path, target: Path) -> None:
    """Copy a database that may be in use, whole.

    Raises:
        InTransaction: it is in use by somebody who lets nobody read.
    """

    def look(status: int, remaining: int, total: int) -> None:
        if status in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
        ):  # would be waited for without end
            raise InTransaction("an open transaction shuts readers out")

    with (
        closing(connect(source)) as reader,
        closing(sqlite3.connect(target)) as writer,
    ):
        writer.execute("PRAGMA synchronous=OFF")
        reader.backup(writer, progress=look)


def _save(path: Path, target: Path) -> None:
    try:
        copy_database(path, target)
    except InTransaction as error:
        raise FailedPrecondition(
            "an open transaction shuts everybody out of the database; COMMIT or ROLLBACK first",
            reason="TRANSACTION_OPEN",
            attributable="workload",
        ) from error
    except sqlite3.Error as error:
        raise Unavailable(f"the database could not be saved: {error}") from error


def remove_database(path: Path) -> None:
    """Remove a database and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _short_of(what: str) -> Unavailable:
    # Whoever used it up: another rollout may be the cause, so it is no result of this one.
    return Unavailable(
        f"the manager is short of {what} for databases; the statement was undone, try again",
        reason="MANAGER_FULL",
    )


def _no_files() -> NoReturn:
    raise FailedPrecondition(
        "a sandbox of the backend state is a database without files; use the program sql",
        reason="UNSUPPORTED",
    )
