"""SQLite files of services: whose a file is, and what SQLite's errors mean to callers.

The owner of a file knows its tables and versions; nothing here does.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servicekit.errors import DataLoss, FailedPrecondition, Unavailable


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Raises SQLite's errors about the file as typed ones; those about a wrong statement stay what they are.

    Raises:
        Unavailable: the file cannot be used now, as on a full disk.
        DataLoss: it is damaged, or no SQLite file.
    """
    try:
        yield
    except sqlite3.OperationalError as err:
        raise Unavailable(f"{path} cannot be used: {err}") from err
    except sqlite3.DatabaseError as err:
        if type(err) is not sqlite3.DatabaseError:
            raise
        raise DataLoss(f"{path} is damaged or no SQLite file: {err}") from err


def refuse_foreign(connection: sqlite3.Connection, path: Path, first_table: str) -> None:
    """Checks that the file is new or its owner's; nothing is written.

    Args:
        connection: To the file.
        path: Of the file, for the error.
        first_table: The table that the owner makes first.

    Raises:
        FailedPrecondition: the file has tables, and not that one.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if tables and first_table not in tables:
        raise FailedPrecondition(
            f"{path} is a file of another program: move it away, or set data_dir"
        )
