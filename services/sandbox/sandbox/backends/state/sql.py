"""One statement on one database: what it may do, how long, and how its rows become lines.

Plain Python on a connection, called in a worker thread. What a statement must not do is decided before it runs, by
SQLite's authorizer: no other file is opened (ATTACH, VACUUM INTO, extensions), and no setting that reaches beyond the
database is changed. It knows nothing of sandboxes.
"""

import base64
import json
import math
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

MAX_VALUE_BYTES = 8 * 1024 * 1024
"""Longest text or blob, and longest row."""

MAX_SQL_BYTES = 1024 * 1024

_CACHE_KIB = 1024
_TICK_OPERATIONS = 2000
"""Between two looks at the clock: about 0.1 ms of work."""

_FETCH_ROWS = 64
_MODULES = frozenset({"fts3", "fts4", "fts5", "rtree", "rtree_i32"})
_PRAGMAS = frozenset(
    {
        "case_sensitive_like",
        "collation_list",
        "data_version",
        "defer_foreign_keys",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "freelist_count",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "page_count",
        "quick_check",
        "recursive_triggers",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)
"""They tell about the schema or change what is of this connection or database alone."""

_OURS = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_READONLY,
    }
)
"""Primary codes that no statement brings about; but a statement can spoil a virtual table's own tables."""

_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
    (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 50),
)

Parameters = Sequence[Any] | Mapping[str, Any]


class Interrupted(Exception):
    """The statement was stopped from outside; nothing of it is kept."""


class StatementError(Exception):
    """The statement is wrong or refused; says so in SQLite's words."""


class Damaged(Exception):
    """The database is gone, or cannot be read or written: no doing of a statement."""


class OutOfMemory(Exception):
    """SQLite has used up what all databases of this process may use together."""


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    """Open a database that exists; SQLite by itself would make an empty one where it is gone."""
    made: sqlite3.Connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, **options
    )
    return made


def open_database(path: Path, max_bytes: int) -> sqlite3.Connection:
    """Open a database for statements of a stranger.

    Args:
        path: the file.
        max_bytes: the most that it may grow to, and its temporary tables too.
    """
    connection = connect(path, isolation_level=None, check_same_thread=False)
    try:
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = max(1, max_bytes // page_size)
        for setting in (
            "PRAGMA journal_mode=DELETE",
            "PRAGMA synchronous=OFF",  # it need not outlive this process
            f"PRAGMA cache_size=-{_CACHE_KIB}",
            "PRAGMA temp_store=FILE",  # so that sorting takes disk and not the manager's memory
            f"PRAGMA max_page_count={pages}",
            f"PRAGMA temp.max_page_count={pages}",
            "PRAGMA trusted_schema=OFF",
        ):
            connection.execute(setting).fetchall()
        for name, value in _LIMITS:
            connection.setlimit(name, value)
        connection.set_authorizer(_authorize)
    except BaseException:
        connection.close()
        raise
    return connection


def execute(
    connection: sqlite3.Connection,
    statement: str,
    parameters: Parameters,
    *,
    write_line: Callable[[bytes], None],
    must_stop: Callable[[], bool],
) -> None:
    """Run one statement; each row goes to `write_line` as a JSON object, and a change as {"changes": n}.

    Args:
        connection: of `open_database`; used by one thread at a time.
        statement: SQL, exactly one statement.
        parameters: for its placeholders.
        write_line: takes each line.
        must_stop: asked all the time; once it says yes the statement ends.

    Raises:
        Interrupted: `must_stop` said yes.
        StatementError: SQLite refused it, or it failed.
        Damaged: not the statement but the database is at fault.
        OutOfMemory: other databases may be the cause.
    """
    connection.set_progress_handler(lambda: int(must_stop()), _TICK_OPERATIONS)
    try:
        cursor = connection.execute(statement, parameters)
        if cursor.description is None:
            if cursor.rowcount >= 0:
                write_line(_line({"changes": cursor.rowcount}))
            return
        names = _unique([column[0] for column in cursor.description])
        while rows := cursor.fetchmany(_FETCH_ROWS):
            for row in rows:
                write_line(_line({n: _plain(value) for n, value in zip(names, row, strict=True)}))
            if must_stop():
                raise Interrupted
    except MemoryError as error:
        raise OutOfMemory from error
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        if code == sqlite3.SQLITE_INTERRUPT or must_stop():
            raise Interrupted from error
        if code == sqlite3.SQLITE_IOERR_NOMEM:
            raise OutOfMemory from error
        if code & 0xFF in _OURS and code != sqlite3.SQLITE_CORRUPT_VTAB:
            raise Damaged(str(error)) from error
        raise StatementError(str(error)) from error
    finally:
        connection.set_progress_handler(None, 0)


def parse_parameters(text: str) -> Parameters:
    """Return the parameters that a JSON text gives.

    Raises:
        StatementError: it is no JSON array or object of plain values.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise StatementError(f"parameters: {error}; must be a JSON array or object") from error
    if not isinstance(found, list | dict):
        raise StatementError(
            f"parameters: found {type(found).__name__}; must be a JSON array or object"
        )
    values = found.values() if isinstance(found, dict) else found
    for value in values:
        if value is not None and not isinstance(value, str | int | float):
            raise StatementError(
                f"parameters: found {type(value).__name__}; each must be text, a number, true, false "
                "or null"
            )
    return found


class StopFlag:
    """Whether a statement is to be stopped; set by the event loop, asked by the worker."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts unset, without a time limit."""
        self._clock = clock
        self._deadline = math.inf
        self._set = threading.Event()

    def start(self, seconds: float) -> None:
        """Let the time limit begin to run."""
        self._deadline = self._clock() + seconds

    def set(self) -> None:
        """Stop it."""
        self._set.set()

    @property
    def was_set(self) -> bool:
        """Whether somebody stopped it; otherwise only its time can be over."""
        return self._set.is_set()

    def __call__(self) -> bool:
        """Say whether the statement must stop."""
        return self._set.is_set() or self._clock() > self._deadline


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
) -> int:
    refused = (
        action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)  # VACUUM is an ATTACH inside
        or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in _PRAGMAS)
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
        or (action == sqlite3.SQLITE_CREATE_VTABLE and (second or "").lower() not in _MODULES)
        or (action == sqlite3.SQLITE_READ and _is_closed_table((first or "").lower()))
    )
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


def _is_closed_table(name: str) -> bool:
    """Whether it is a table-valued form of a pragma that is refused, or shows the engine's own state."""
    if name.startswith("pragma_"):
        return name.removeprefix("pragma_") not in _PRAGMAS
    return name == "sqlite_stmt"


def _unique(names: Sequence[str]) -> list[str]:
    """Return names for the columns that differ: a second `a` is called `a_2`."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


def _plain(value: Any) -> Any:
    """Return what JSON can say: a blob as {"base64": ...}, an infinite number as text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
