"""Memories, their uses and their credits in SQLite. One thread at a time; each method is one transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memory.database import Database
from memory.nearest import VectorIndex, Vectors
from memory.records import Credited, Memory, MemoryPage, Recalled, Snapshot
from memory.requests import Credit, Recall, Remember
from servicekit.errors import AlreadyExists, FailedPrecondition, NotFound

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MEMORY = (
    "SELECT position, memory_id, namespace, intent, experience, utility, recall_count, credit_count, "
    "memories.create_us, update_us FROM memories JOIN scopes USING (scope) "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a memory stands."""

    scope: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A memory that a recall chose."""

    position: int
    similarity: float
    score: float


class MemoryStore:
    """One file of memories.

    Every method raises Unavailable where the file cannot be used now, as on a full disk; DataLoss where it is damaged.
    """

    def __init__(
        self, path: Path, *, embedder: str, dimension: int, clock: Callable[[], float]
    ) -> None:
        """Open or make the file.

        Args:
            path: The SQLite file.
            embedder: Name of what makes the vectors.
            dimension: Of the vectors.
            clock: Seconds since 1970.

        Raises:
            FailedPrecondition: another process has it, or its vectors are of another embedder.
        """
        self._database = Database(path)
        self._dimension = dimension
        self._clock = clock
        try:
            self._keep_to(embedder, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def scope(self, namespace: str, snapshot_name: str) -> int | None:
        """Return the number of a namespace or snapshot; None for a namespace that never held anything.

        Raises:
            NotFound: there is no such snapshot.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT scope FROM scopes WHERE namespace = ? AND snapshot_name = ?",
                (namespace, snapshot_name),
            ).fetchone()
        if row is None and snapshot_name:
            raise NotFound(f"there is no snapshot {snapshot_name!r} of namespace {namespace!r}")
        return int(row[0]) if row is not None else None

    def add(self, request: Remember, vector: Vectors) -> Place | None:
        """Add a memory and return where it stands; None if it is there already."""
        now = self._now_us()
        with self._database.transaction() as connection:
            scope = _live_scope(connection, request.namespace, now)
            cursor = connection.execute(
                "INSERT INTO memories (scope, memory_id, utility, recall_count, credit_count, create_us, update_us, "
                "vector, intent, experience) VALUES (?, ?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    scope,
                    request.memory_id,
                    request.utility,
                    now,
                    now,
                    vector.astype(np.float32).tobytes(),
                    request.intent,
                    request.experience,
                ),
            )
            if cursor.rowcount == 0:
                return None
            assert cursor.lastrowid is not None
            return Place(scope=scope, position=cursor.lastrowid)

    def get(self, namespace: str, memory_id: str, snapshot_name: str = "") -> Memory:
        """Return one memory.

        Raises:
            NotFound: it is not there.
        """
        with self._database.transaction() as connection:
            row = connection.execute(
                _MEMORY + "WHERE namespace = ? AND snapshot_name = ? AND memory_id = ?",
                (namespace, snapshot_name, memory_id),
            ).fetchone()
        if row is None:
            place = f"snapshot {snapshot_name!r} of " if snapshot_name else ""
            raise NotFound(f"there is no memory {memory_id!r} in {place}namespace {namespace!r}")
        return _memory(row)

    def page(self, scope: int, first_position: int, size: int) -> MemoryPage:
        """Return up to `size` memories from a position on, oldest first."""
        with self._database.transaction() as connection:
            rows = connection.execute(
                _MEMORY + "WHERE scope = ? AND position >= ? ORDER BY position LIMIT ?",
                (scope, first_position, size + 1),
            ).fetchall()
        return MemoryPage(
            memories=tuple(_memory(row) for row in rows[:size]),
            next_position=int(rows[size][0]) if len(rows) > size else 0,
        )

    def vectors(self, scope: int) -> VectorIndex:
        """Return the vectors of a scope."""
        with self._database.transaction() as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM memories WHERE scope = ?", (scope,)
            ).fetchone()
            positions = np.empty(count, np.int64)
            vectors = np.empty((count, self._dimension), np.float32)
            rows = connection.execute(
                "SELECT position, vector FROM memories WHERE scope = ? ORDER BY position", (scope,)
            )
            for row, (position, vector) in enumerate(rows):
                positions[row], vectors[row] = position, np.frombuffer(vector, np.float32)
        return VectorIndex(positions, vectors)

    def utilities(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Return the utilities at these positions, in their order."""
        with self._database.transaction() as connection:
            found = dict(
                connection.execute(
                    f"SELECT position, utility FROM memories WHERE position IN ({_marks(positions)})",
                    positions,
                ).fetchall()
            )
        return np.array([found[position] for position in positions], np.float64)

    def recalled(self, request: Recall) -> tuple[Recalled, ...] | None:
        """Return what a rollout's recall returned before; None if it is new."""
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT 1 FROM recalls WHERE rollout_id = ? AND recall_key = ?",
                (request.rollout_id, request.key),
            ).fetchone()
            if known is None:
                return None
            rows = connection.execute(
                "SELECT position, similarity, score FROM uses WHERE rollout_id = ? AND recall_key = ? ORDER BY rank",
                (request.rollout_id, request.key),
            ).fetchall()
            return _recalled(connection, [_choice(row) for row in rows])

    def choose(self, request: Recall, choices: Sequence[Choice]) -> tuple[Recalled, ...]:
        """Return the memories chosen, recorded as used where a rollout asks."""
        with self._database.transaction() as connection:
            if request.rollout_id:
                connection.execute(
                    "INSERT INTO recalls VALUES (?, ?)", (request.rollout_id, request.key)
                )
                connection.executemany(
                    "INSERT INTO uses VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (request.rollout_id, request.key, rank, c.position, c.similarity, c.score)
                        for rank, c in enumerate(choices)
                    ],
                )
                connection.executemany(
                    "UPDATE memories SET recall_count = recall_count + 1 WHERE position = ?",
                    [(choice.position,) for choice in choices],
                )
            return _recalled(connection, choices)

    def credit(self, credit: Credit, update: Callable[[float], float]) -> tuple[Credited, ...]:
        """Apply a credit once and return what it changed, then and whenever it is repeated.

        Args:
            credit: Says which memories.
            update: Returns the utility that follows another.

        Raises:
            NotFound: a memory named is not there; none was credited.
            AlreadyExists: the id stands for a credit with other content.
        """
        now = self._now_us()
        with self._database.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO credits VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (credit.source, credit.credit_id, credit.digest, now),
            )
            if cursor.rowcount == 0:
                return _repeated(connection, credit)
            changes = []
            for position, namespace, memory_id, utility in _targets(connection, credit):
                changed = update(utility)
                connection.execute(
                    "UPDATE memories SET utility = ?, credit_count = credit_count + 1, update_us = ? "
                    "WHERE position = ?",
                    (changed, now, position),
                )
                changes.append(
                    Credited(
                        namespace=namespace,
                        memory_id=memory_id,
                        previous_utility=utility,
                        utility=changed,
                    )
                )
            connection.executemany(
                "INSERT INTO credited VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        credit.source,
                        credit.credit_id,
                        rank,
                        change.namespace,
                        change.memory_id,
                        change.previous_utility,
                        change.utility,
                    )
                    for rank, change in enumerate(changes)
                ],
            )
            return tuple(changes)

    def forget(self, namespace: str, memory_id: str) -> Place | None:
        """Remove a memory and its uses, and return where it stood; None if it is not there."""
        with self._database.transaction() as connection:
            row = connection.execute(
                "DELETE FROM memories WHERE memory_id = ? AND scope = "
                "(SELECT scope FROM scopes WHERE namespace = ? AND snapshot_name = '') RETURNING scope, position",
                (memory_id, namespace),
            ).fetchone()
            if row is None:
                return None
            place = Place(scope=row[0], position=row[1])
            connection.execute("DELETE FROM uses WHERE position = ?", (place.position,))
            return place

    def snapshot(self, namespace: str, snapshot_name: str) -> Snapshot:
        """Copy a namespace under a name, or return the copy that has it."""
        now = self._now_us()
        with self._database.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO scopes (namespace, snapshot_name, create_us) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (namespace, snapshot_name, now),
            )
            created = cursor.rowcount == 1
            if created:
                connection.execute(
                    "INSERT INTO memories (scope, memory_id, utility, recall_count, credit_count, create_us, "
                    "update_us, vector, intent, experience) "
                    "SELECT ?, memory_id, utility, recall_count, credit_count, memories.create_us, update_us, vector, "
                    "intent, experience FROM memories JOIN scopes USING (scope) "
                    "WHERE namespace = ? AND snapshot_name = '' ORDER BY position",
                    (cursor.lastrowid, namespace),
                )
            count, create_us = connection.execute(
                "SELECT count(position), scopes.create_us FROM scopes LEFT JOIN memories USING (scope) "
                "WHERE namespace = ? AND snapshot_name = ?",
                (namespace, snapshot_name),
            ).fetchone()
        return Snapshot(
            namespace=namespace,
            snapshot_name=snapshot_name,
            memory_count=count,
            create_time=_moment(create_us),
            created=created,
        )

    def _keep_to(self, embedder: str, path: Path) -> None:
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO embedder VALUES (1, ?) ON CONFLICT DO NOTHING", (embedder,)
            )
            (found,) = connection.execute("SELECT name FROM embedder").fetchone()
        if found != embedder:
            raise FailedPrecondition(
                f"{path} holds vectors of {found}, this service makes those of {embedder}: move the file away"
            )

    def _now_us(self) -> int:
        return round(self._clock() * 1e6)


def _live_scope(connection: sqlite3.Connection, namespace: str, now_us: int) -> int:
    connection.execute(
        "INSERT INTO scopes (namespace, snapshot_name, create_us) VALUES (?, '', ?) ON CONFLICT DO NOTHING",
        (namespace, now_us),
    )
    row = connection.execute(
        "SELECT scope FROM scopes WHERE namespace = ? AND snapshot_name = ''", (namespace,)
    ).fetchone()
    return int(row[0])


def _targets(connection: sqlite3.Connection, credit: Credit) -> list[tuple[int, str, str, float]]:
    """Return position, namespace, id and utility of what is to be credited."""
    select = (
        "SELECT position, namespace, memory_id, utility FROM memories JOIN scopes USING (scope) "
    )
    if credit.rollout_id:
        return connection.execute(
            select
            + "WHERE position IN (SELECT position FROM uses WHERE rollout_id = ?) ORDER BY position",
            (credit.rollout_id,),
        ).fetchall()
    named = connection.execute(
        select + "WHERE namespace = ? AND snapshot_name = '' "
        f"AND memory_id IN ({_marks(credit.memory_ids)}) ORDER BY position",
        (credit.namespace, *credit.memory_ids),
    ).fetchall()
    missing = set(credit.memory_ids) - {memory_id for _, _, memory_id, _ in named}
    if missing:
        raise NotFound(f"there is no memory {min(missing)!r} in namespace {credit.namespace!r}")
    return named


def _repeated(connection: sqlite3.Connection, credit: Credit) -> tuple[Credited, ...]:
    key = (credit.source, credit.credit_id)
    (digest,) = connection.execute(
        "SELECT digest FROM credits WHERE source = ? AND credit_id = ?", key
    ).fetchone()
    # An event that is told again with another content changes nothing either: the console's audit names it.
    if credit.source == "call" and digest != credit.digest:
        raise AlreadyExists(
            f"credit_id {credit.credit_id!r} stands for a credit with other content; a new id is right",
            reason="CREDIT_ID_TAKEN",
        )
    rows = connection.execute(
        "SELECT namespace, memory_id, previous_utility, utility FROM credited "
        "WHERE source = ? AND credit_id = ? ORDER BY rank",
        key,
    ).fetchall()
    return tuple(
        Credited(namespace=row[0], memory_id=row[1], previous_utility=row[2], utility=row[3])
        for row in rows
    )


def _recalled(connection: sqlite3.Connection, choices: Sequence[Choice]) -> tuple[Recalled, ...]:
    """Return the memories chosen, without those that are forgotten."""
    positions = [choice.position for choice in choices]
    rows = connection.execute(_MEMORY + f"WHERE position IN ({_marks(positions)})", positions)
    memories = {row[0]: _memory(row) for row in rows}
    return tuple(
        Recalled(memory=memories[c.position], similarity=c.similarity, score=c.score)
        for c in choices
        if c.position in memories
    )


def _choice(row: tuple[int, float, float]) -> Choice:
    return Choice(position=row[0], similarity=row[1], score=row[2])


def _memory(row: tuple[int, str, str, str, str, float, int, int, int, int]) -> Memory:
    return Memory(
        memory_id=row[1],
        namespace=row[2],
        intent=row[3],
        experience=row[4],
        utility=row[5],
        recall_count=row[6],
        credit_count=row[7],
        create_time=_moment(row[8]),
        update_time=_moment(row[9]),
    )


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
