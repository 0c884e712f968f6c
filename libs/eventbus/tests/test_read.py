"""What reading the log promises, on both buses."""

import asyncio
from contextlib import aclosing

import pytest

from eventbus.errors import LogTruncated


async def test_read_ends_at_what_is_last_at_the_call(bus, publish_turns):
    await publish_turns(bus, 3)
    seen = []
    async with asyncio.timeout(5):
        async for event in bus.read():
            seen.append(event.sequence)
            if len(seen) == 1:
                await publish_turns(bus, 5, first=10)
    assert seen == [1, 2, 3]


async def test_read_of_an_empty_log_ends(bus):
    async with asyncio.timeout(5):
        assert [event async for event in bus.read()] == []
        assert [event async for event in bus.read(start_sequence=1)] == []


async def test_read_begins_at_its_start_inclusive(bus, publish_turns):
    await publish_turns(bus, 5)
    assert [event.sequence async for event in bus.read(start_sequence=3)] == [3, 4, 5]
    assert [event.sequence async for event in bus.read(start_sequence=6)] == []


async def test_read_passes_types_and_run_only(bus, turn, publish_turns):
    await publish_turns(bus, 2, run_id="run1")
    await publish_turns(bus, 2, first=5, run_id="run2")
    started = turn(1)
    started.rollout_started.owner = "a"
    started.event_id = "another"
    await bus.publish(started)
    assert [e.sequence async for e in bus.read(run_id="run1")] == [1, 2, 5]
    assert [e.sequence async for e in bus.read(["rollout_turn"])] == [1, 2, 3, 4]
    assert [e.sequence async for e in bus.read(["rollout_started"], run_id="run2")] == []
    both = bus.read(["rollout_turn", "rollout_started"], run_id="run1", start_sequence=2)
    assert [e.sequence async for e in both] == [2, 5]


async def test_read_follows_the_log_and_stops(bus, publish_turns):
    await publish_turns(bus, 2)
    stop, seen = asyncio.Event(), []
    async with asyncio.timeout(10):
        async for event in bus.read(follow=True, stop=stop):
            seen.append(event.sequence)
            if event.sequence in (2, 4):
                await publish_turns(bus, 2, first=event.sequence)
            if event.sequence == 6:
                stop.set()
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_read_stops_while_waiting(bus):
    stop = asyncio.Event()

    async def follow():
        return [event async for event in bus.read(follow=True, stop=stop)]

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        reading = group.create_task(follow())
        await asyncio.sleep(0.05)
        stop.set()
    assert reading.result() == []


async def test_read_says_what_the_log_has_lost_at_its_start(bus, publish_turns):
    await publish_turns(bus, 3, run_id="old")
    await publish_turns(bus, 2, first=5, run_id="new")
    await bus.purge_run("old")
    with pytest.raises(LogTruncated, match="starts at 4") as caught:
        async with aclosing(bus.read(start_sequence=2)) as events:
            await anext(events)
    assert (caught.value.first_sequence, caught.value.last_sequence) == (4, 5)
    assert [event.sequence async for event in bus.read()] == [4, 5]
    assert [event.sequence async for event in bus.read(start_sequence=4)] == [4, 5]


async def test_read_of_a_purged_log_goes_on_after_the_last(bus, publish_turns):
    await publish_turns(bus, 3, run_id="old")
    await bus.purge_run("old")
    assert [event async for event in bus.read(start_sequence=4)] == []
    await publish_turns(bus, 1, first=9)
    assert [event.sequence async for event in bus.read(start_sequence=4)] == [4]


async def test_read_says_that_a_cursor_is_from_another_log(bus, publish_turns):
    await publish_turns(bus, 3)
    with pytest.raises(LogTruncated, match="ends at 3"):
        async with aclosing(bus.read(start_sequence=50, follow=True)) as events:
            await anext(events)


async def test_read_yields_a_long_log_in_order_once(bus, publish_turns):
    await publish_turns(bus, 700)
    assert [event.sequence async for event in bus.read()] == list(range(1, 701))


async def test_read_can_be_left_early(bus, publish_turns):
    await publish_turns(bus, 10)
    async with aclosing(bus.read(follow=True)) as events:
        assert (await anext(events)).sequence == 1
    assert [event.sequence async for event in bus.read(start_sequence=9)] == [9, 10]
