"""SQLite files: errors that callers can act on, and files that are not one's own."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from servicekit.errors import DataLoss, FailedPrecondition, Unavailable
from servicekit.sqlite_files import refuse_foreign, typed_errors


def test_a_file_that_cannot_be_opened_and_one_that_is_damaged_are_told_apart(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unavailable, match="cannot be used"), typed_errors(tmp_path):
        sqlite3.connect(tmp_path)
    file = tmp_path / "a.sqlite"
    file.write_bytes(b"no SQLite file" * 100)
    with (
        closing(sqlite3.connect(file)) as connection,
        pytest.raises(DataLoss, match=r"a\.sqlite is damaged"),
        typed_errors(file),
    ):
        connection.execute("SELECT * FROM sqlite_schema")


def test_a_defect_of_ours_is_not_called_damage() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE a (b PRIMARY KEY)")
        with pytest.raises(sqlite3.IntegrityError), typed_errors(Path("a")):
            connection.execute("INSERT INTO a VALUES (1), (1)")


def test_a_file_with_other_tables_is_foreign() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        refuse_foreign(connection, Path("a"), "own")
        connection.execute("CREATE TABLE b (c)")
        with pytest.raises(FailedPrecondition, match="a is a file of another program"):
            refuse_foreign(connection, Path("a"), "own")
        connection.execute("CREATE TABLE own (c)")
        refuse_foreign(connection, Path("a"), "own")
