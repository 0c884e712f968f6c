"""Event ids and subjects."""

import time
import uuid

import pytest
from hone.events.v1 import events_pb2

from eventbus import ids, subjects
from eventbus.envelope import new_envelope, subject_of
from servicekit.errors import InvalidArgument


def _envelope(payload, **about):
    return new_envelope(payload, **({"source": "s", "run_id": "run1", "clock": time.time} | about))


def test_subjects_cover_every_payload():
    fields = events_pb2.Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields
    assert set(subjects.TYPES) == {field.name for field in fields}
    assert len(set(subjects.TYPES.values())) == len(fields)


@pytest.mark.parametrize(
    ("payload", "subject"),
    [
        (events_pb2.RolloutTurn(turn=1), "hone.v1.turn.taken.run1"),
        (events_pb2.RolloutRequested(), "hone.v1.rollout.requested.run1"),
        (events_pb2.RunStepPlanned(step=1), "hone.v1.step.planned.run1"),
        (events_pb2.RunStepTrained(step=1), "hone.v1.step.trained.run1"),
        (events_pb2.DeadLettered(), "hone.v1.message.dead_lettered.run1"),
        (events_pb2.PolicyPublished(), "hone.v1.policy.published.run1"),
    ],
)
def test_subject_follows_the_payload(payload, subject):
    assert subject_of(_envelope(payload, rollout_id="r")) == subject


def test_event_id_is_derived_and_stable():
    first = _envelope(events_pb2.RolloutTurn(turn=3), rollout_id="r")
    again = _envelope(events_pb2.RolloutTurn(turn=3), rollout_id="r")
    assert first.event_id == again.event_id == ids.event_id("r", "turn.taken", 3)
    assert uuid.UUID(first.event_id).version == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (events_pb2.RolloutTurn(turn=1), events_pb2.RolloutTurn(turn=2)),
        (events_pb2.SandboxCreated(sandbox_id="a"), events_pb2.SandboxCreated(sandbox_id="b")),
        (events_pb2.SandboxDestroyed(sandbox_id="a"), events_pb2.SandboxDestroyed(sandbox_id="b")),
        (events_pb2.ToolCalled(tool_call_id="a"), events_pb2.ToolCalled(tool_call_id="b")),
        (
            events_pb2.PolicyPublished(policy_version=1),
            events_pb2.PolicyPublished(policy_version=2),
        ),
        (events_pb2.RunStepTrained(step=1), events_pb2.RunStepTrained(step=2)),
        (
            events_pb2.RunStepPlanned(step=1, phase="PHASE_TRAIN"),
            events_pb2.RunStepPlanned(step=1, phase="PHASE_EVALUATE"),
        ),
        (
            events_pb2.RunFinished(end="RUN_END_STOPPED"),
            events_pb2.RunFinished(end="RUN_END_COMPLETED"),
        ),
    ],
)
def test_event_ids_of_different_facts_differ(one, other):
    first = _envelope(one, rollout_id="r").event_id
    assert first != _envelope(other, rollout_id="r").event_id
    assert first != _envelope(one, rollout_id="r", ordinal=77).event_id


def test_a_start_under_a_newer_epoch_is_another_event():
    started = events_pb2.RolloutStarted(owner="a")
    ids_by_epoch = [_envelope(started, rollout_id="r", epoch=n).event_id for n in (1, 1, 2)]
    assert ids_by_epoch[0] == ids_by_epoch[1] == ids.event_id("r", "rollout.started", 1)
    assert ids_by_epoch[2] == ids.event_id("r", "rollout.started", 2)


def test_envelope_says_what_is_missing():
    with pytest.raises(InvalidArgument, match="needs its rollout_id"):
        _envelope(events_pb2.RolloutStarted())
    with pytest.raises(InvalidArgument, match="grader_version"):
        _envelope(events_pb2.RewardAssigned(), rollout_id="r", source="grader")
    with pytest.raises(InvalidArgument, match="grader_version"):
        _envelope(events_pb2.RolloutFailed(), rollout_id="r", source="grader")
    with pytest.raises(InvalidArgument, match="payload says 'g1'"):
        _envelope(
            events_pb2.RewardAssigned(grader_version="g1"), rollout_id="r", grader_version="g2"
        )
    with pytest.raises(InvalidArgument, match="not a payload"):
        _envelope(events_pb2.Envelope())
    with pytest.raises(InvalidArgument, match="run_id ''"):
        _envelope(events_pb2.RunStarted(), run_id="")


def test_envelope_carries_its_time():
    envelope = _envelope(events_pb2.RunStarted(), clock=lambda: 1_800_000_000.25)
    assert envelope.create_time.ToMilliseconds() == 1_800_000_000_250
