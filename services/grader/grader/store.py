"""What was judged: the judgement and the event that tells it, written in one transaction before it is told.

A replayed rollout.finished finds its row and changes nothing; a crash between writing and telling leaves a row that is
not yet published, which the next start publishes. The event's bytes are kept until then.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servicekit.sqlite_files import refuse_foreign, typed_errors

_SCHEMA = """
CREATE TABLE IF NOT EXISTS judged (
    finished_event_id TEXT PRIMARY KEY,
    rollout_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    grader_version TEXT NOT NULL,
    create_time REAL NOT NULL,
    published INTEGER NOT NULL DEFAULT 0,
    event BLOB,
    trace_parent TEXT NOT NULL DEFAULT '',
    UNIQUE (rollout_id, attempt, grader_version)
) STRICT;
CREATE INDEX IF NOT EXISTS judged_unpublished ON judged (published) WHERE published = 0;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One judgement and the event that tells it."""

    finished_event_id: str
    """Of the rollout.finished that was judged."""
    rollout_id: str
    attempt: int
    grader_version: str
    event: bytes
    """The serialised envelope; empty once published."""
    trace_parent: str
    """W3C trace context of the grade span."""
    published: bool = False


class JudgedStore:
    """SQLite file of judgements; safe to use from several threads.

    Each method raises Unavailable where the file cannot be used now, as on a full disk; DataLoss where it is damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises:
            FailedPrecondition: it is of another program.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        with typed_errors(path):
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            refuse_foreign(self._connection, path, "judged")
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)

    def find(self, finished_event_id: str) -> Judged | None:
        """Return the judgement of a finished event, if there is one."""
        found = self._select("finished_event_id = ?", (finished_event_id,))
        return found[0] if found else None

    def unpublished(self) -> list[Judged]:
        """Return the judgements that were not yet told, oldest first."""
        return self._select("published = 0 ORDER BY create_time", ())

    def add(self, judged: Judged, create_time: float) -> bool:
        """Write a judgement; False if the attempt was already judged by this version."""
        with self._working() as connection:
            cursor = connection.execute(
                "INSERT INTO judged (finished_event_id, rollout_id, attempt, grader_version, create_time, event, "
                "trace_parent) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    judged.finished_event_id,
                    judged.rollout_id,
                    judged.attempt,
                    judged.grader_version,
                    create_time,
                    judged.event,
                    judged.trace_parent,
                ),
            )
            return cursor.rowcount == 1

    def mark_published(self, finished_event_id: str) -> None:
        """Note that a judgement was told, and drop its event."""
        with self._working() as connection:
            connection.execute(
                "UPDATE judged SET published = 1, event = NULL WHERE finished_event_id = ?",
                (finished_event_id,),
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        with self._lock, typed_errors(self._path):
            yield self._connection

    def _select(self, condition: str, values: tuple[object, ...]) -> list[Judged]:
        with self._working() as connection:
            rows = connection.execute(
                "SELECT finished_event_id, rollout_id, attempt, grader_version, event, trace_parent, published "
                f"FROM judged WHERE {condition}",
                values,
            ).fetchall()
        return [
            Judged(
                finished_event_id=row[0],
                rollout_id=row[1],
                attempt=row[2],
                grader_version=row[3],
                event=row[4] or b"",
                trace_parent=row[5],
                published=bool(row[6]),
            )
            for row in rows
        ]
