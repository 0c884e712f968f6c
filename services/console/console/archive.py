"""The archive's writing side: events and spans into SQLite, each effect once.

An event, its listing columns and the stream cursor are written in one transaction, keyed by event_id: reading
the whole stream again changes nothing. Another fact under a known id changes no listing and is kept as a conflict,
for the audit. One connection, used by one thread at a time (see `writer`); readers
have their own (see `archive_reader`).
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path

from console.conflict_convert import differences
from console.facts import (
    ArchivedEvent,
    LogRow,
    RewardAssigned,
    RolloutFailed,
    RolloutFinished,
    RolloutRequested,
    RolloutStarted,
    RunFinished,
    RunStarted,
    StepPlanned,
    StepTrained,
)
from console.spans import Span
from servicekit.errors import FailedPrecondition
from servicekit.sqlite_files import refuse_foreign, typed_errors

SCHEMA_VERSION = 1
"""Stored as SQLite's user_version; an archive of another version is refused."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ROLLOUT_FAILED = """
UPDATE rollouts SET outcome = 'failed', score = NULL, kind = '', failure_kind = ?, failure_detail = ?,
  seconds = coalesce(seconds, (? - coalesce(start_us, request_us)) / 1e6)
WHERE rollout_id = ? AND outcome = 'open'
"""


def microseconds(when: datetime) -> int:
    """Returns microseconds since 1970, exactly."""
    return (when - _EPOCH) // timedelta(microseconds=1)


def moment(us: int) -> datetime:
    """Returns the time that so many microseconds since 1970 are."""
    return _EPOCH + timedelta(microseconds=us)


class Archive:
    """Writes one archive file."""

    def __init__(self, path: Path) -> None:
        """Opens the archive, making it if there is none.

        Raises:
            FailedPrecondition: the file is an archive of another version, or of another program.
            DataLoss: the file is damaged, or no SQLite file.
            Unavailable: the folder cannot be written to, or the disk is full.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with typed_errors(path):
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        connection = self._connection
        refuse_foreign(connection, self.path, "cursor")
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last commits, cursor included; the stream then tells them again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 10000")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise FailedPrecondition(
                f"{self.path} is an archive of version {version}, this console writes version "
                f"{SCHEMA_VERSION}: move the file away (the event stream fills a new one) or run "
                "the console that made it"
            )
        schema = resources.files("console").joinpath("schema.sql").read_text(encoding="ascii")
        connection.executescript(schema)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        """Closes the file; what was written is on disk."""
        self._connection.close()

    def cursor(self) -> int:
        """Returns the last stream sequence that is stored; 0 at first."""
        row = self._connection.execute("SELECT sequence FROM cursor").fetchone()
        return int(row[0]) if row else 0

    def write(self, events: Sequence[ArchivedEvent], spans: Sequence[Span]) -> int:
        """Stores a batch in one transaction and moves the cursor; returns how many events were new."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            num_new = sum(self._write_event(event) for event in events)
            if events:
                connection.execute(
                    "INSERT INTO cursor (id, sequence) VALUES (1, ?) "
                    "ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence",
                    (events[-1].row.sequence,),
                )
            connection.executemany(
                "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (trace_id, span_id) DO NOTHING",
                [_span_row(span) for span in spans],
            )
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return num_new

    def mark_sealed(self, run_id: str, when: datetime) -> None:
        """Remembers that the stream's copy of a run was purged."""
        self._connection.execute(
            "UPDATE runs SET sealed_us = ? WHERE run_id = ?", (microseconds(when), run_id)
        )

    def _write_event(self, event: ArchivedEvent) -> bool:
        row = event.row
        stored = self._connection.execute(
            "INSERT INTO events (event_id, sequence, run_id, rollout_id, type, create_us, envelope) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (event_id) DO NOTHING",
            (
                row.event_id,
                row.sequence,
                row.run_id,
                row.rollout_id,
                row.type,
                microseconds(row.create_time),
                event.envelope,
            ),
        )
        if stored.rowcount == 0:
            self._keep_conflict(event)
            return False
        position = stored.lastrowid
        if isinstance(row.fact, RolloutFinished):
            self._connection.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?)",
                (row.event_id, row.rollout_id, event.record, row.fact.record_error),
            )
        if row.run_id:
            self._write_run(row, position)
        if row.rollout_id:
            self._write_rollout(row, position)
        return True

    def _keep_conflict(self, event: ArchivedEvent) -> None:
        """Keeps an event whose id is taken, unless it repeats what is known under that id."""
        row = event.row
        known = self._connection.execute(
            "SELECT e.envelope, r.record FROM events AS e LEFT JOIN records AS r USING (event_id) "
            "WHERE e.event_id = ? UNION ALL "
            "SELECT envelope, record FROM conflicts WHERE event_id = ?",
            (row.event_id, row.event_id),
        ).fetchall()
        found = [
            differences(envelope, record, event.envelope, event.record)
            for envelope, record in known
        ]
        if not all(found):
            return
        error = row.fact.record_error if isinstance(row.fact, RolloutFinished) else ""
        self._connection.execute(
            "INSERT INTO conflicts (event_id, position, sequence, run_id, differences, envelope, "
            "record, record_error) "
            "VALUES (?, (SELECT max(position) FROM events), ?, ?, ?, ?, ?, ?)",
            (
                row.event_id,
                row.sequence,
                row.run_id,
                "\n".join(found[0]),
                event.envelope,
                event.record,
                error,
            ),
        )

    def _write_run(self, row: LogRow, position: int | None) -> None:
        execute = self._connection.execute
        execute(
            "INSERT INTO runs (run_id, first_position, last_sequence) VALUES (?, ?, ?) "
            "ON CONFLICT (run_id) DO UPDATE SET last_sequence = excluded.last_sequence",
            (row.run_id, position, row.sequence),
        )
        at = microseconds(row.create_time)
        match row.fact:
            case RunStarted(algorithm=algorithm):
                execute(
                    "UPDATE runs SET algorithm = ?, start_us = ? WHERE run_id = ?",
                    (algorithm, at, row.run_id),
                )
            case RunFinished(end=end, detail=detail):
                execute(
                    "UPDATE runs SET end = ?, end_detail = ?, end_us = ? WHERE run_id = ?",
                    (end, detail, at, row.run_id),
                )
            case StepPlanned() | RolloutRequested():
                # A run that was stopped and goes on again.
                execute(
                    "UPDATE runs SET end = '', end_detail = '', end_us = NULL "
                    "WHERE run_id = ? AND end <> ''",
                    (row.run_id,),
                )
            case StepTrained() as fact:
                self._write_step(row.run_id, fact)
            case _:
                pass

    def _write_step(self, run_id: str, fact: StepTrained) -> None:
        self._connection.execute(
            "INSERT INTO steps VALUES (?, ?, ?, ?) ON CONFLICT (run_id, step) DO NOTHING",
            (run_id, fact.step, fact.policy_version, json.dumps(dict(fact.metrics))),
        )
        self._connection.executemany(
            "UPDATE rollouts SET trained_in_step = ? "
            "WHERE rollout_id = ? AND run_id = ? AND trained_in_step IS NULL",
            [(fact.step, rollout_id, run_id) for rollout_id in fact.rollout_ids],
        )

    def _write_rollout(self, row: LogRow, position: int | None) -> None:
        execute = self._connection.execute
        execute(
            "INSERT INTO rollouts (rollout_id, run_id, first_position) VALUES (?, ?, ?) "
            "ON CONFLICT (rollout_id) DO NOTHING",
            (row.rollout_id, row.run_id, position),
        )
        if row.slot is not None:
            slot = row.slot
            execute(
                "UPDATE rollouts SET phase = ?, step = ?, group_index = ?, sample_index = ?, "
                "attempt = ? WHERE rollout_id = ? AND phase = ''",
                (
                    slot.phase.value,
                    slot.step,
                    slot.group_index,
                    slot.sample_index,
                    row.attempt,
                    row.rollout_id,
                ),
            )
        at = microseconds(row.create_time)
        match row.fact:
            case RolloutRequested() as fact:
                execute(
                    "UPDATE rollouts SET task_id = ?, policy_version = ?, request_us = ? "
                    "WHERE rollout_id = ?",
                    (fact.task_id, fact.policy_version, at, row.rollout_id),
                )
            case RolloutStarted():
                execute(
                    "UPDATE rollouts SET start_us = coalesce(start_us, ?) WHERE rollout_id = ?",
                    (at, row.rollout_id),
                )
            case RolloutFinished() as fact:
                self._write_finish(row.rollout_id, fact)
            case RolloutFailed() as fact:
                execute(_ROLLOUT_FAILED, (fact.kind, fact.detail, at, row.rollout_id))
            case RewardAssigned() as fact:
                # A failure stays a failure: no later reward hides it.
                execute(
                    "UPDATE rollouts SET outcome = ?, score = ?, kind = ? "
                    "WHERE rollout_id = ? AND outcome <> 'failed'",
                    (fact.outcome, fact.score, fact.kind, row.rollout_id),
                )
            case _:
                pass

    def _write_finish(self, rollout_id: str, fact: RolloutFinished) -> None:
        self._connection.execute(
            "UPDATE rollouts SET turn_count = ?, tool_call_count = ?, sampled_token_count = ?, "
            "policy_version = coalesce(?, policy_version), seconds = ? WHERE rollout_id = ?",
            (
                fact.turn_count,
                fact.tool_call_count,
                fact.sampled_token_count,
                fact.policy_versions[-1] if fact.policy_versions else None,
                fact.seconds,
                rollout_id,
            ),
        )


def _span_row(span: Span) -> tuple[str | int, ...]:
    detail = {
        "attributes": dict(span.attributes),
        "links": [asdict(link) for link in span.links],
        "events": [asdict(event) for event in span.events],
    }
    return (
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.service_name,
        span.name,
        span.kind,
        span.start_ns,
        span.end_ns,
        span.status,
        span.status_message,
        json.dumps(detail),
    )
