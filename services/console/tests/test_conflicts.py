"""A second fact under a known event id is kept, and the audit says so; a repetition is not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.audit import Finding, audit_run
from console.convert import archived_event, stored_row


def store(archive: Archive, envelopes: list[events_pb2.Envelope], first: int = 1) -> int:
    return archive.write([archived_event(first + i, e) for i, e in enumerate(envelopes)], [])


def findings(reader: ArchiveReader) -> tuple[Finding, ...]:
    return audit_run(map(stored_row, reader.run_log("run-1"))).findings


def told_again(demo: Any, payload: str) -> events_pb2.Envelope:
    """Returns the first event of a type as a service tells it again ten minutes later."""
    envelope = copy.deepcopy(next(e for e in demo.envelopes if e.WhichOneof("payload") == payload))
    envelope.create_time.seconds += 601
    return envelope


def by_another_owner(envelope: events_pb2.Envelope) -> None:
    envelope.rollout_started.owner = "replica-b"


def with_another_record(envelope: events_pb2.Envelope) -> None:
    envelope.rollout_finished.inline.turns[0].policy_version = 3


def as_a_failure(envelope: events_pb2.Envelope) -> None:
    envelope.rollout_failed.failure.detail = "lost"


def with_another_score(envelope: events_pb2.Envelope) -> None:
    envelope.reward_assigned.scored.score = 0.1


def of_other_rollouts(envelope: events_pb2.Envelope) -> None:
    envelope.run_step_trained.trained_rollout_ids[:] = ["another"]


def for_another_cause(envelope: events_pb2.Envelope) -> None:
    envelope.sandbox_destroyed.cause = "manager_lost"


def under_another_epoch(envelope: events_pb2.Envelope) -> None:
    envelope.epoch = 2


@pytest.mark.parametrize(
    ("payload", "change", "rule", "what"),
    [
        ("rollout_started", by_another_owner, "started_twice", "is 'replica-b'"),
        ("rollout_finished", with_another_record, "ended_twice", "record differs"),
        ("rollout_finished", as_a_failure, "ended_twice", "type was 'rollout_finished'"),
        ("reward_assigned", with_another_score, "judged_twice", "scored differs"),
        ("run_step_trained", of_other_rollouts, "trained_without_score", "trained_rollout_ids"),
        ("sandbox_destroyed", for_another_cause, "sandbox_destroyed_twice", "'manager_lost'"),
        ("rollout_turn", under_another_epoch, "event_id_conflict", "epoch was 1 and is 2"),
    ],
)
def test_another_fact_under_a_known_id_is_kept_and_found(
    archive: Archive,
    reader: ArchiveReader,
    demo: Any,
    payload: str,
    change: Callable[[events_pb2.Envelope], None],
    rule: str,
    what: str,
) -> None:
    turn = events_pb2.RolloutTurn(turn=0)
    demo.writer.tell(turn, "rollout", rollout_id=demo.scored_id, epoch=1)
    store(archive, demo.envelopes)
    assert findings(reader) == ()
    second = told_again(demo, payload)
    change(second)
    # Told twice, and by a stream made anew: one conflict.
    for sequence in (900, 900, 77):
        assert store(archive, [second], first=sequence) == 0
    found = findings(reader)
    assert {f.rule for f in found} >= {rule, "event_id_conflict"}
    (conflict,) = [f for f in found if f.rule == "event_id_conflict"]
    assert what in conflict.detail
    assert f"sequence 900 has the id {second.event_id}" in conflict.detail
    assert len(list(reader.run_events("run-1"))) == len(demo.envelopes)


def test_another_publication_of_a_version_is_found(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    for sha256 in ("aa", "aa", "bb"):
        payload = events_pb2.PolicyPublished(policy_version=3)
        payload.adapter.sha256 = sha256
        run_writer.tell(payload, "learner")
    store(archive, run_writer.envelopes)
    assert [f.rule for f in findings(reader)] == ["policy_version_rewritten", "event_id_conflict"]


def test_facts_told_again_are_no_conflict(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    store(archive, demo.envelopes)
    again = [told_again(demo, e.WhichOneof("payload")) for e in demo.envelopes]
    for envelope in again:
        match envelope.WhichOneof("payload"):
            case "rollout_failed":
                envelope.rollout_failed.failure.detail = "the same in other words"
            case "reward_assigned":
                envelope.reward_assigned.scored.rewards[0].explanation = "as before"
            case "sandbox_created":
                envelope.sandbox_created.duration.seconds = 9
    assert store(archive, again, first=500) == 0
    assert findings(reader) == ()
