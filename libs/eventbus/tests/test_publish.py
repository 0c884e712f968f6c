"""What publishing promises, on both buses."""

import asyncio
import time

import pytest
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2

from eventbus.envelope import new_envelope
from servicekit.errors import InvalidArgument, ResourceExhausted


async def test_publish_numbers_events_in_order(bus, publish_turns):
    acks = await publish_turns(bus, 3)
    assert [ack.sequence for ack in acks] == [1, 2, 3]
    assert not any(ack.duplicate for ack in acks)


async def test_publish_finds_an_event_that_is_there(bus, turn):
    first = await bus.publish(turn(1))
    again = await bus.publish(turn(1))
    assert (again.sequence, again.duplicate) == (first.sequence, True)
    assert (await bus.usage()).bytes > 0
    assert [event.sequence async for event in bus.read()] == [1]


async def test_publish_admits_one_end_of_a_rollout(bus, rollout_id):
    failed = events_pb2.RolloutFailed(failure=outcome_pb2.Failure(detail="lost"))
    about = {"run_id": "run1", "rollout_id": rollout_id, "clock": time.time}
    finished = new_envelope(events_pb2.RolloutFinished(), source="rollout", **about)
    lost = new_envelope(failed, source="rollout", **about)
    assert finished.event_id == lost.event_id
    assert not (await bus.publish(finished)).duplicate
    assert (await bus.publish(lost)).duplicate
    assert [e.envelope.WhichOneof("payload") async for e in bus.read()] == ["rollout_finished"]


async def test_publish_admits_one_judgement_per_grader_version(bus, rollout_id):
    failed = events_pb2.RolloutFailed(failure=outcome_pb2.Failure(detail="grader broke"))
    about = {"source": "grader", "run_id": "run1", "rollout_id": rollout_id, "clock": time.time}
    scored = new_envelope(events_pb2.RewardAssigned(grader_version="g1"), **about)
    broken = new_envelope(failed, grader_version="g1", **about)
    regraded = new_envelope(events_pb2.RewardAssigned(grader_version="g2"), **about)
    acks = [await bus.publish(event) for event in (scored, broken, regraded)]
    assert [ack.duplicate for ack in acks] == [False, True, False]


async def test_publish_refuses_an_event_that_is_too_large(bus, turn):
    event = turn(1)
    event.rollout_turn.Clear()
    event.rollout_finished.inline.grader_json = "x" * (901 * 1024)
    with pytest.raises(InvalidArgument, match="blobs"):
        await bus.publish(event)


async def test_publish_refuses_what_has_no_payload_id_or_run(bus, turn):
    with pytest.raises(InvalidArgument, match="no payload"):
        await bus.publish(events_pb2.Envelope(event_id="x", run_id="run1"))
    nameless = turn(1)
    nameless.event_id = ""
    with pytest.raises(InvalidArgument, match="event_id"):
        await bus.publish(nameless)
    dotted = turn(1)
    dotted.run_id = "a.b"
    with pytest.raises(InvalidArgument, match=r"run_id 'a\.b'"):
        await bus.publish(dotted)


async def test_publish_is_pushed_back_by_a_full_stream(make_bus, turn):
    bus = await make_bus(max_bytes=50_000, deadline_seconds=0.3)
    large = turn(0)
    large.source = "x" * 20_000
    await bus.publish(large)
    usage = await bus.usage()
    assert usage.max_bytes == 50_000
    assert 0.4 < usage.fraction < 0.5
    with pytest.raises(ResourceExhausted, match="no room") as caught:
        for number in range(1, 5):
            event = turn(number)
            event.source = "x" * 20_000
            await bus.publish(event)
    assert caught.value.retryable


async def test_publish_goes_on_once_a_full_stream_has_room(make_bus, turn):
    bus = await make_bus(max_bytes=50_000, deadline_seconds=10)
    for number in range(2):
        event = turn(number, "old")
        event.source = "x" * 20_000
        await bus.publish(event)
    waiting = turn(9, "new")
    waiting.source = "x" * 20_000
    async with asyncio.timeout(9), asyncio.TaskGroup() as group:
        publishing = group.create_task(bus.publish(waiting))
        done, _ = await asyncio.wait([publishing], timeout=0.2)
        assert not done
        assert await bus.purge_run("old") == 2
    assert not publishing.result().duplicate
    assert [event.envelope.run_id async for event in bus.read()] == ["new"]


async def test_purge_run_removes_only_its_run_and_its_claims(bus, turn, rollout_id):
    await bus.publish(turn(1, "run1"))
    await bus.publish(turn(2, "run2"))
    claims = await bus.claims()
    await claims.try_claim(rollout_id, "a", 10)
    other = await claims.try_claim("other-rollout", "a", 10)
    assert await bus.purge_run("run1") == 1
    assert [event.envelope.run_id async for event in bus.read()] == ["run2"]
    assert await claims.get(rollout_id) is None
    assert await claims.get("other-rollout") == other.claim
