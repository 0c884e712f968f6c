import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader, RolloutFilter
from console.convert import archived_event, stored_envelope, whole_envelope
from console.spans import Span, SpanEvent, SpanLink
from servicekit.errors import DataLoss, FailedPrecondition, Unavailable


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def rows(envelopes: list[events_pb2.Envelope], first: int = 1) -> list[Any]:
    return [archived_event(first + i, envelope) for i, envelope in enumerate(envelopes)]


def test_replaying_the_stream_changes_nothing_but_the_cursor(archive: Archive, demo: Any) -> None:
    events = rows(demo.envelopes)
    assert archive.write(events, []) == len(events)
    before = dump(archive.path)
    assert archive.write(events, []) == 0
    assert dump(archive.path) == before
    # The same facts from a stream that was made anew, under other sequences.
    assert archive.write(rows(demo.envelopes, first=500), []) == 0
    changed = set(dump(archive.path)) ^ set(before)
    assert all('"cursor"' in line for line in changed)


def test_one_by_one_and_in_one_batch_give_the_same_archive(tmp_path: Path, demo: Any) -> None:
    events = rows(demo.envelopes)
    whole, single = Archive(tmp_path / "whole"), Archive(tmp_path / "single")
    whole.write(events, [])
    for event in events:
        single.write([event], [])
        single.write([event], [])
    whole.close()
    single.close()
    assert dump(tmp_path / "whole") == dump(tmp_path / "single")


def test_cursor_and_events_move_together(archive: Archive, demo: Any) -> None:
    assert archive.cursor() == 0
    events = rows(demo.envelopes)
    broken = [events[0], None]
    with pytest.raises(AttributeError):
        archive.write(broken, [])  # type: ignore[list-item]
    assert archive.cursor() == 0
    assert archive.write(events[:3], []) == 3
    assert archive.cursor() == 3


def test_archive_is_whole_after_it_was_closed_and_opened(tmp_path: Path, demo: Any) -> None:
    first = Archive(tmp_path / "a")
    first.write(rows(demo.envelopes), [])
    first.close()
    second = Archive(tmp_path / "a")
    assert second.cursor() == len(demo.envelopes)
    second.close()


def test_envelopes_come_back_as_they_were(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])
    page = reader.events("run-1", type_name="", limit=100, max_bytes=1 << 30)
    assert [whole_envelope(stored) for stored in page.events] == demo.envelopes
    assert not page.more


def test_a_record_lies_apart_from_its_event(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])
    finished = [e for e in reader.rollout_events(demo.scored_id) if e.record is not None]
    assert len(finished) == 1
    slim = stored_envelope(finished[0])
    assert slim.WhichOneof("payload") == "rollout_finished"
    assert slim.rollout_finished.WhichOneof("record") is None
    record = events_pb2.RolloutRecord.FromString(finished[0].record or b"")
    assert record.tokens.rows[0].token_ids == list(range(10))


def test_listing_columns_tell_each_rollout(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])
    scored = reader.rollout(demo.scored_id)
    assert scored is not None
    assert (scored.outcome, scored.score, scored.task_id) == ("scored", 0.85, "task-7")
    assert (scored.turn_count, scored.tool_call_count, scored.sampled_token_count) == (2, 1, 5)
    assert (scored.seconds, scored.trained_in_step, scored.phase) == (1.5, 0, "train")
    failed = reader.rollout(demo.failed_id)
    assert failed is not None
    assert (failed.outcome, failed.failure_kind, failed.score) == ("failed", "sandbox", None)
    assert failed.seconds == 1.0
    retried = reader.rollout(demo.retried_id)
    assert retried is not None
    assert (retried.outcome, retried.attempt) == ("open", 1)
    assert [a.attempt for a in reader.attempts(retried)] == [0, 1]


def test_a_failure_stays_a_failure_when_a_reward_follows(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    run_writer.request("r" * 36)
    run_writer.fail("r" * 36)
    run_writer.score("r" * 36, 1.0)
    archive.write(rows(run_writer.envelopes), [])
    entry = reader.rollout("r" * 36)
    assert entry is not None
    assert (entry.outcome, entry.score) == ("failed", None)


def test_a_resumed_run_is_active_again(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    run_writer.start()
    run_writer.end(events_pb2.RUN_END_STOPPED)
    archive.write(rows(run_writer.envelopes), [])
    stopped = reader.run("run-1")
    assert stopped is not None and stopped.end == "stopped" and stopped.end_us is not None
    run_writer.request("r" * 36)
    archive.write(rows(run_writer.envelopes), [])
    active = reader.run("run-1")
    assert active is not None and active.end == "" and active.end_us is None


def test_runs_count_outcomes_and_average_scores(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])
    run = reader.run("run-1")
    assert run is not None
    assert (run.num_scored, run.num_failed, run.num_masked, run.num_open) == (1, 1, 0, 1)
    assert (run.mean_score, run.num_steps, run.algorithm, run.end) == (0.85, 1, "grpo", "")
    assert reader.steps("run-1")[0].metrics == {"kl": 0.001, "reward/mean": 0.5}
    assert reader.run("nobody") is None


def test_rollouts_are_filtered_and_come_in_the_order_of_their_requests(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])

    def ids(**filters: Any) -> list[str]:
        where = RolloutFilter(run_id="run-1", **filters)
        return [entry.rollout_id for entry in reader.rollouts(where, limit=10)]

    assert ids() == [demo.scored_id, demo.failed_id, demo.retried_id]
    assert ids(outcome="failed") == [demo.failed_id]
    assert ids(phase="evaluate") == []
    assert len(ids(step=0)) == 3
    assert ids(step=1) == []


def test_a_page_of_events_ends_at_its_size(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    archive.write(rows(demo.envelopes), [])
    seen: list[int] = []
    after, more = 0, True
    while more:
        page = reader.events("run-1", type_name="", limit=4, max_bytes=200, after_position=after)
        assert 1 <= len(page.events) <= 4
        after, more = page.events[-1].position, page.more
        seen += [event.sequence for event in page.events]
    assert seen == list(range(1, len(demo.envelopes) + 1))


def test_events_of_one_type(archive: Archive, reader: ArchiveReader, demo: Any) -> None:
    archive.write(rows(demo.envelopes), [])
    page = reader.events("run-1", type_name="rollout_failed", limit=9, max_bytes=1 << 20)
    assert [stored_envelope(e).rollout_id for e in page.events] == [demo.failed_id]


def test_spans_come_back_as_they_were_and_only_once(
    archive: Archive, reader: ArchiveReader
) -> None:
    span = Span(
        trace_id="ab" * 16,
        span_id="cd" * 8,
        service_name="rollout",
        name="chat",
        kind="client",
        start_ns=5_000,
        end_ns=9_000,
        attributes={"n": 3, "ok": True, "x": 0.5, "s": "text", "l": [1, 2], "m": {"k": "v"}},
        status="error",
        status_message="no",
        links=(SpanLink(trace_id="01" * 16, span_id="02" * 8),),
        events=(SpanEvent(time_ns=6_000, name="retry", attributes={"try": 1}),),
    )
    archive.write([], [span])
    archive.write([], [span])
    assert reader.spans("ab" * 16) == [span]
    assert reader.operations() == {"rollout": ["chat"]}
    assert reader.find_traces(
        service_name="rollout", name="", start_ns=0, end_ns=1 << 60, limit=5
    ) == ["ab" * 16]


def test_writing_spans_alone_leaves_the_cursor(archive: Archive, demo: Any) -> None:
    archive.write(rows(demo.envelopes), [])
    archive.write([], [])
    assert archive.cursor() == len(demo.envelopes)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "console.sqlite"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(DataLoss, match=r"console\.sqlite is damaged or no SQLite file"):
        Archive(path)


def test_a_file_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "console.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (a)")
    before = path.read_bytes()
    with pytest.raises(FailedPrecondition, match="of another program"):
        Archive(path)
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "console.sqlite").mkdir()
    with pytest.raises(Unavailable, match=r"console\.sqlite cannot be used"):
        Archive(tmp_path / "console.sqlite")


def test_an_archive_of_a_later_version_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(FailedPrecondition, match="version 9"):
        Archive(tmp_path / "a")


def test_malformed_fields_never_stop_the_archive(archive: Archive, reader: ArchiveReader) -> None:
    envelope = events_pb2.Envelope(event_id="e1", run_id="run-1", rollout_id="r1")
    envelope.slot.phase = 77  # type: ignore[assignment]
    envelope.create_time.seconds = 1 << 60
    envelope.rollout_failed.failure.kind = 99  # type: ignore[assignment]
    empty = events_pb2.Envelope(event_id="e2")
    archive.write(rows([envelope, empty]), [])
    entry = reader.rollout("r1")
    assert entry is not None
    assert (entry.phase, entry.outcome, entry.failure_kind) == ("", "failed", "99")
    assert archive.cursor() == 2
