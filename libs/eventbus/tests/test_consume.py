"""What consuming promises, on both buses."""

import asyncio
import itertools
from collections import Counter

import pytest

from eventbus.errors import RetryLater
from servicekit.errors import InvalidArgument


async def test_consume_shares_the_work_of_replicas(make_bus, publish_turns, consuming):
    first, second = await make_bus(), await make_bus()
    await publish_turns(first, 60)
    stop, done, shared = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: Counter[int] = Counter()
    per_replica: Counter[str] = Counter()

    def handler(name):
        async def handle(delivery):
            seen[delivery.sequence] += 1
            per_replica[name] += 1
            if len(per_replica) == 2:
                shared.set()
            await shared.wait()  # whoever comes first has hands for two, and leaves the rest
            if len(seen) == 60:
                done.set()

        return handle

    await consuming(
        stop,
        first.consume("grader", ["rollout_turn"], handler("a"), stop=stop, max_in_flight=2),
        second.consume("grader", ["rollout_turn"], handler("b"), stop=stop, max_in_flight=2),
        until=done,
    )
    assert seen == Counter(range(1, 61))
    assert set(per_replica) == {"a", "b"}


async def test_events_that_wait_hold_up_no_other(bus, publish_turns, consuming):
    """An outage can keep more events waiting than a whole step asks for; those of other runs must pass them."""
    await publish_turns(bus, 80)
    stop, done, waiting = asyncio.Event(), asyncio.Event(), set()

    async def handle(delivery):
        if len(waiting) < 79:
            waiting.add(delivery.sequence)
            raise RetryLater(3600)
        done.set()

    one = bus.consume("grader", ["rollout_turn"], handle, stop=stop, max_in_flight=1)
    await consuming(stop, one, until=done)
    assert len(waiting) == 79


async def test_consume_gives_each_consumer_the_whole_stream(bus, publish_turns, consuming):
    await publish_turns(bus, 3)
    for name in ("one", "two"):
        stop, done, seen = asyncio.Event(), asyncio.Event(), []

        async def handle(delivery, seen=seen, done=done):
            seen.append(delivery.sequence)
            if len(seen) == 3:
                done.set()

        await consuming(stop, bus.consume(name, ["rollout_turn"], handle, stop=stop), until=done)
        assert sorted(seen) == [1, 2, 3]


async def test_consume_does_not_repeat_what_was_acknowledged(bus, publish_turns, consuming):
    await publish_turns(bus, 2)
    seen = []
    for _ in range(2):
        stop, done = asyncio.Event(), asyncio.Event()
        await publish_turns(bus, 1, first=2 + len(seen))
        expected = len(seen) + (3 if not seen else 1)

        async def handle(delivery, done=done, expected=expected):
            seen.append(delivery.sequence)
            if len(seen) == expected:
                done.set()

        await consuming(stop, bus.consume("c", ["rollout_turn"], handle, stop=stop), until=done)
    assert sorted(seen) == [1, 2, 3, 4]


async def test_consume_brings_an_event_back_after_retry_later(bus, publish_turns, consuming):
    await publish_turns(bus, 1)
    stop, done, counts, times = asyncio.Event(), asyncio.Event(), [], []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        times.append(asyncio.get_running_loop().time())
        if len(counts) < 5:
            raise RetryLater(0.1)
        done.set()

    # Five deliveries with max_deliver 2: RetryLater is no attempt.
    await consuming(
        stop, bus.consume("c", ["rollout_turn"], handle, stop=stop, max_deliver=2), until=done
    )
    assert counts == [1, 2, 3, 4, 5]
    assert min(b - a for a, b in itertools.pairwise(times)) >= 0.09
    assert [e.envelope async for e in bus.read(["dead_lettered"])] == []


async def test_consume_does_not_give_up_for_deliveries_that_were_retry_later(
    bus, publish_turns, consuming
):
    await publish_turns(bus, 1)
    stop, done, counts = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        if len(counts) < 2:
            raise RetryLater(0.01)
        if len(counts) < 3:
            raise ValueError("first attempt, second delivery")
        done.set()

    await consuming(
        stop, bus.consume("c", ["rollout_turn"], handle, stop=stop, max_deliver=2), until=done
    )
    assert counts == [1, 2, 3]
    assert [e.envelope async for e in bus.read(["dead_lettered"])] == []


async def test_consume_brings_an_event_back_after_a_failure(bus, publish_turns, consuming):
    await publish_turns(bus, 1)
    stop, done, counts = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        if len(counts) == 1:
            raise ValueError("first time")
        done.set()

    await consuming(stop, bus.consume("c", ["rollout_turn"], handle, stop=stop), until=done)
    assert counts == [1, 2]


async def test_consume_writes_one_dead_letter_with_its_reason(
    make_bus, publish_turns, consuming, rollout_id
):
    first, second = await make_bus(), await make_bus()
    await publish_turns(first, 1)
    stop, dead, counts, letters = asyncio.Event(), asyncio.Event(), [], []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        raise ValueError("cannot parse the answer")

    async def bury(delivery):
        letters.append(delivery.envelope)
        dead.set()

    await consuming(
        stop,
        first.consume("grader", ["rollout_turn"], handle, stop=stop, max_deliver=2),
        second.consume("grader", ["rollout_turn"], handle, stop=stop, max_deliver=2),
        first.consume("undertaker", ["dead_lettered"], bury, stop=stop),
        until=dead,
    )
    assert counts == [1, 2]
    (letter,) = letters
    assert (letter.run_id, letter.rollout_id, letter.source) == ("run1", rollout_id, "eventbus")
    assert letter.dead_lettered.consumer == "grader"
    assert letter.dead_lettered.stream_sequence == 1
    assert letter.dead_lettered.delivery_count == 2
    assert letter.dead_lettered.subject == "hone.v1.turn.taken.run1"
    assert letter.dead_lettered.reason == "ValueError: cannot parse the answer"


async def test_consume_runs_no_more_handlers_at_once_than_asked(bus, publish_turns, consuming):
    await publish_turns(bus, 30)
    stop, done, full = asyncio.Event(), asyncio.Event(), asyncio.Event()
    running, most, seen = 0, 0, 0

    async def handle(delivery):
        nonlocal running, most, seen
        running += 1
        most = max(most, running)
        if running == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.005)
        running -= 1
        seen += 1
        if seen == 30:
            done.set()

    await consuming(
        stop,
        bus.consume("c", ["rollout_turn"], handle, stop=stop, max_in_flight=4),
        until=done,
    )
    assert most == 4


async def test_consume_keeps_a_long_handler_single(make_bus, publish_turns, consuming):
    first, second = await make_bus(), await make_bus()
    await publish_turns(first, 1)
    stop, done, counts = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        await asyncio.sleep(1.5)
        done.set()

    await consuming(
        stop,
        first.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=0.5),
        second.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=0.5),
        until=done,
    )
    assert counts == [1]


async def test_consume_lets_running_handlers_finish_when_stopped(bus, publish_turns):
    await publish_turns(bus, 1)
    stop, begun, finished = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        begun.set()
        await asyncio.sleep(0.3)
        finished.append(delivery.sequence)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(bus.consume("c", ["rollout_turn"], handle, stop=stop))
        await begun.wait()
        stop.set()
    assert finished == [1]


async def test_consume_hands_over_what_does_not_finish_in_the_drain_time(
    make_bus, publish_turns, consuming
):
    first = await make_bus(drain_seconds=0.1)
    second = await make_bus(drain_seconds=0.1)
    await publish_turns(first, 1)
    stop_first, stop_second = asyncio.Event(), asyncio.Event()
    begun, done, counts = asyncio.Event(), asyncio.Event(), []

    async def hang(delivery):
        begun.set()
        await asyncio.Event().wait()

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        done.set()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(first.consume("c", ["rollout_turn"], hang, stop=stop_first))
        await begun.wait()
        stop_first.set()
    # ack_wait is 30 s: only the hand-over brings it here in time.
    await consuming(
        stop_second,
        second.consume("c", ["rollout_turn"], handle, stop=stop_second),
        until=done,
    )
    assert counts == [2]


async def test_consume_applies_new_types_to_an_old_consumer(bus, turn, consuming):
    started = turn(1)
    started.rollout_started.owner = "a"
    started.event_id = "another"
    seen = []
    for round_number, types in enumerate((["rollout_turn"], ["rollout_turn", "rollout_started"])):
        await bus.publish(turn(round_number))
        stop, done = asyncio.Event(), asyncio.Event()

        async def handle(delivery, done=done, last=types[-1]):
            seen.append(delivery.envelope.WhichOneof("payload"))
            if last == "rollout_started":
                await bus.publish(started)
            if seen[-1] == last:
                done.set()

        await consuming(stop, bus.consume("c", types, handle, stop=stop), until=done)
    assert seen == ["rollout_turn", "rollout_turn", "rollout_started"]


async def test_consume_refuses_unknown_and_no_types(bus):
    async def handle(delivery):
        raise AssertionError

    with pytest.raises(InvalidArgument, match="did you mean 'rollout_turn'"):
        await bus.consume("c", ["rollout_turns"], handle, stop=asyncio.Event())
    with pytest.raises(InvalidArgument, match="at least one"):
        await bus.consume("c", [], handle, stop=asyncio.Event())
    with pytest.raises(InvalidArgument, match=r"consumer 'a\.b'"):
        await bus.consume("a.b", ["rollout_turn"], handle, stop=asyncio.Event())
    with pytest.raises(InvalidArgument, match="max_in_flight is 0, must be at least 1"):
        await bus.consume("c", ["rollout_turn"], handle, stop=asyncio.Event(), max_in_flight=0)
