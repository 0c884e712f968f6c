"""The archive's reading side: runs, rollouts, events and spans as they are stored.

Every call opens a read-only connection of its own (under a millisecond), so any thread may call and a long
audit never holds up the writer or another reader.
"""

import heapq
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from console.spans import Span, SpanEvent, SpanLink

RUN_COLUMNS = """
run_id, first_position, last_sequence, algorithm, start_us, end_us, end, end_detail,
(SELECT count(*) FROM steps WHERE steps.run_id = runs.run_id) AS num_steps,
(SELECT count(*) FROM steps WHERE steps.run_id = runs.run_id AND instr(metrics_json, '"alarms/') > 0) AS num_alarmed,
(SELECT count(*) FROM rollouts WHERE rollouts.run_id = runs.run_id AND outcome = 'scored') AS num_scored,
(SELECT count(*) FROM rollouts WHERE rollouts.run_id = runs.run_id AND outcome = 'masked') AS num_masked,
(SELECT count(*) FROM rollouts WHERE rollouts.run_id = runs.run_id AND outcome = 'failed') AS num_failed,
(SELECT count(*) FROM rollouts WHERE rollouts.run_id = runs.run_id AND outcome = 'open') AS num_open,
(SELECT avg(score) FROM rollouts WHERE rollouts.run_id = runs.run_id AND outcome = 'scored') AS mean_score
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run as the log tells it; times are microseconds since 1970."""

    run_id: str
    first_position: int
    last_sequence: int
    algorithm: str
    start_us: int | None
    end_us: int | None
    end: str
    end_detail: str
    num_steps: int
    num_alarmed: int
    """Steps that raised an alarm."""
    num_scored: int
    num_masked: int
    num_failed: int
    num_open: int
    mean_score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEntry:
    """A rollout in a line."""

    rollout_id: str
    run_id: str
    first_position: int
    phase: str
    """Empty where the log never told the slot."""
    step: int
    group_index: int
    sample_index: int
    attempt: int
    task_id: str
    outcome: str
    score: float | None
    kind: str
    failure_kind: str
    failure_detail: str
    turn_count: int
    tool_call_count: int
    sampled_token_count: int
    policy_version: int
    request_us: int | None
    start_us: int | None
    seconds: float | None
    trained_in_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """An optimiser update and its figures."""

    step: int
    policy_version: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCount:
    """How many rollouts of a step ended alike."""

    phase: str
    step: int
    result: str
    """success, unjudged, a kind of shortfall, or infrastructure."""
    num: int
    example: str
    """The rollout_id of one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event's bytes, with the record of a finished event where it was fetched or inline."""

    position: int
    sequence: int
    envelope: bytes
    record: bytes | None = None
    record_error: str = ""
    differences: tuple[str, ...] = ()
    """Of one that conflicts with an earlier event of its id: what differs. It is no event of listings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events, and whether there are more."""

    events: list[StoredEvent]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Which rollouts of a run to list; None and empty mean all."""

    run_id: str
    phase: str = ""
    step: int | None = None
    outcome: str = ""


class ArchiveReader:
    """Reads the archive at `path`, which an `Archive` has made."""

    def __init__(self, path: Path) -> None:
        """Remembers where the archive is; opens nothing yet."""
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    def runs(self, *, limit: int, before_position: int | None = None) -> list[RunEntry]:
        """Lists runs, newest first, that began before a position."""
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE first_position < coalesce(?, 1 << 62) "
                "ORDER BY first_position DESC LIMIT ?",
                (before_position, limit),
            )
            return [RunEntry(**row) for row in rows]

    def run(self, run_id: str) -> RunEntry | None:
        """Returns one run, or None if the log knows none of that name."""
        with self._open() as connection:
            row = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?", (run_id,)
            ).fetchone()
            return RunEntry(**row) if row else None

    def steps(self, run_id: str) -> list[StepEntry]:
        """Lists the steps that a run has trained."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT step, policy_version, metrics_json FROM steps WHERE run_id = ? ORDER BY step",
                (run_id,),
            )
            return [
                StepEntry(
                    step=row["step"],
                    policy_version=row["policy_version"],
                    metrics=json.loads(row["metrics_json"]),
                )
                for row in rows
            ]

    def rollouts(
        self, where: RolloutFilter, *, limit: int, after_position: int = 0
    ) -> list[RolloutEntry]:
        """Lists rollouts of a run in the order of their requests, after a position."""
        clauses = ["run_id = ?", "first_position > ?"]
        values: list[str | int] = [where.run_id, after_position]
        for column, value in (
            ("phase", where.phase or None),
            ("step", where.step),
            ("outcome", where.outcome or None),
        ):
            if value is not None:
                clauses.append(f"{column} = ?")
                values.append(value)
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT * FROM rollouts WHERE {' AND '.join(clauses)} "
                "ORDER BY first_position LIMIT ?",
                (*values, limit),
            )
            return [RolloutEntry(**row) for row in rows]

    def outcome_counts(self, run_id: str) -> dict[tuple[str, str], int]:
        """Counts a run's rollouts by phase and outcome."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT phase, outcome, count(*) AS num FROM rollouts WHERE run_id = ? "
                "GROUP BY phase, outcome ORDER BY min(first_position)",
                (run_id,),
            )
            return {(row["phase"], row["outcome"]): row["num"] for row in rows}

    def result_counts(self, run_id: str) -> list[ResultCount]:
        """Counts a run's ended rollouts by step and by why they did not succeed, in the order of the log.

        What failed or was polluted says nothing about the policy: it is of result infrastructure.
        """
        with self._open() as connection:
            rows = connection.execute(
                "SELECT phase, step, CASE WHEN outcome = 'failed' OR kind = 'polluted' THEN 'infrastructure' "
                "WHEN kind <> '' THEN kind WHEN outcome = 'scored' THEN 'success' ELSE 'unjudged' END "
                "AS result, count(*) AS num, min(rollout_id) AS example FROM rollouts "
                "WHERE run_id = ? AND outcome <> 'open' GROUP BY phase, step, result ORDER BY min(first_position)",
                (run_id,),
            )
            return [ResultCount(**row) for row in rows]

    def rollout(self, rollout_id: str) -> RolloutEntry | None:
        """Returns one rollout, or None if the log knows none of that id."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT * FROM rollouts WHERE rollout_id = ?", (rollout_id,)
            ).fetchone()
            return RolloutEntry(**row) if row else None

    def attempts(self, entry: RolloutEntry) -> list[RolloutEntry]:
        """Lists the attempts of a rollout's slot, itself included."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM rollouts WHERE run_id = ? AND phase = ? AND phase <> '' "
                "AND step = ? AND group_index = ? AND sample_index = ? ORDER BY attempt",
                (entry.run_id, entry.phase, entry.step, entry.group_index, entry.sample_index),
            )
            return [RolloutEntry(**row) for row in rows]

    def rollout_events(self, rollout_id: str) -> list[StoredEvent]:
        """Lists a rollout's events in the order of the stream."""
        with self._open() as connection:
            return list(_events(connection, "e.rollout_id = ?", (rollout_id,), limit=-1))

    def events(
        self, run_id: str, *, type_name: str, limit: int, max_bytes: int, after_position: int = 0
    ) -> EventPage:
        """Lists a run's events after a position: at most `limit`, and one or more up to `max_bytes`."""
        where = "e.run_id = ? AND e.position > ?"
        values: tuple[str | int, ...] = (run_id, after_position)
        if type_name:
            where, values = f"{where} AND e.type = ?", (*values, type_name)
        page: list[StoredEvent] = []
        num_bytes = 0
        with self._open() as connection:
            for event in _events(connection, where, values, limit=limit + 1):
                num_bytes += len(event.envelope) + len(event.record or b"")
                if len(page) == limit or (page and num_bytes > max_bytes):
                    return EventPage(events=page, more=True)
                page.append(event)
        return EventPage(events=page, more=False)

    def run_events(self, run_id: str) -> Iterator[StoredEvent]:
        """Yields all events of a run in the order of the stream, as they are at the first."""
        with self._open() as connection:
            yield from _events(connection, "e.run_id = ?", (run_id,), limit=-1)

    def run_log(self, run_id: str) -> Iterator[StoredEvent]:
        """Yields a run's events and the conflicting ones among them, as they came: what an audit reads."""
        with self._open() as connection:
            yield from heapq.merge(
                _events(connection, "e.run_id = ?", (run_id,), limit=-1),
                _conflicts(connection, run_id),
                key=lambda stored: stored.position,
            )

    def unsealed_runs(self, *, completed_before_us: int) -> list[str]:
        """Lists completed runs that ended before a time and that the stream still holds."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT run_id FROM runs WHERE end = 'completed' AND end_us < ? "
                "AND sealed_us IS NULL ORDER BY first_position",
                (completed_before_us,),
            )
            return [row["run_id"] for row in rows]

    def spans(self, trace_id: str) -> list[Span]:
        """Lists the spans of a trace by start time."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM spans WHERE trace_id = ? ORDER BY start_ns, span_id", (trace_id,)
            )
            return [_span(row) for row in rows]

    def operations(self, service_name: str = "") -> dict[str, list[str]]:
        """Returns the span names of each service, or of one."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT DISTINCT service_name, name FROM spans "
                "WHERE ? IN ('', service_name) ORDER BY 1, 2",
                (service_name,),
            )
            found: dict[str, list[str]] = {}
            for row in rows:
                found.setdefault(row["service_name"], []).append(row["name"])
            return found

    def find_traces(
        self, *, service_name: str, name: str, start_ns: int, end_ns: int, limit: int
    ) -> list[str]:
        """Lists trace ids with a span of a service in a span of time, newest first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT trace_id FROM spans WHERE service_name = ? AND ? IN ('', name) "
                "AND start_ns BETWEEN ? AND ? GROUP BY trace_id ORDER BY max(start_ns) DESC LIMIT ?",
                (service_name, name, start_ns, end_ns, limit),
            )
            return [row["trace_id"] for row in rows]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(
            self._uri, uri=True, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA busy_timeout = 10000")
            yield connection
        finally:
            connection.close()


def _events(
    connection: sqlite3.Connection, where: str, values: tuple[str | int, ...], *, limit: int
) -> Iterator[StoredEvent]:
    rows = connection.execute(
        "SELECT e.position, e.sequence, e.envelope, r.record, coalesce(r.error, '') AS record_error "
        f"FROM events AS e LEFT JOIN records AS r USING (event_id) WHERE {where} "
        "ORDER BY e.position LIMIT ?",
        (*values, limit),
    )
    for row in rows:
        yield StoredEvent(**row)


def _conflicts(connection: sqlite3.Connection, run_id: str) -> Iterator[StoredEvent]:
    rows = connection.execute(
        "SELECT position, sequence, envelope, record, record_error, differences FROM conflicts "
        "WHERE run_id = ? ORDER BY position, id",
        (run_id,),
    )
    for row in rows:
        yield StoredEvent(**{**row, "differences": tuple(row["differences"].split("\n"))})


def _span(row: sqlite3.Row) -> Span:
    detail = json.loads(row["detail_json"])
    return Span(
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        parent_span_id=row["parent_span_id"],
        service_name=row["service_name"],
        name=row["name"],
        kind=row["kind"],
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        attributes=detail["attributes"],
        status=row["status"],
        status_message=row["status_message"],
        links=tuple(SpanLink(**link) for link in detail["links"]),
        events=tuple(SpanEvent(**event) for event in detail["events"]),
    )
