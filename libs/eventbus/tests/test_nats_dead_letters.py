"""Messages that take their handlers down with them, and what the server says about them."""

import asyncio

import nats
import pytest
from nats.js import api

from eventbus.jetstream.options import BusOptions
from eventbus.nats_bus import NatsBus


@pytest.fixture
def take_and_drop(nats_server):
    """Takes deliveries of a consumer as a process that dies does, and gives them back at once."""

    async def run(consumer, max_deliver, times):
        client = await nats.connect(nats_server.url)
        jetstream = client.jetstream()
        config = api.ConsumerConfig(
            name=consumer,
            durable_name=consumer,
            ack_policy=api.AckPolicy.EXPLICIT,
            max_deliver=max_deliver,
            filter_subjects=["hone.v1.turn.taken.*"],
        )
        await jetstream.add_consumer("EVENTS", config)
        pulling = await jetstream.pull_subscribe_bind(consumer, "EVENTS")
        for _ in range(times):
            (message,) = await pulling.fetch(1, timeout=5)
            await message.nak()
        await client.flush()
        await client.close()

    return run


async def _letters(bus):
    return [event.envelope async for event in bus.read(["dead_lettered"])]


async def test_message_that_nobody_answers_becomes_one_dead_letter(
    nats_server, publish_turns, take_and_drop, rollout_id
):
    first = await NatsBus.connect(nats_server.url, name="one")
    second = await NatsBus.connect(nats_server.url, name="two")
    await publish_turns(first, 1)
    await take_and_drop("c", max_deliver=-1, times=3)
    stop, calls = asyncio.Event(), []

    async def handle(delivery):
        calls.append(delivery)

    async def wait_for_letter():
        async for _ in first.read(["dead_lettered"], follow=True, stop=stop):
            stop.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for bus in (first, second):
            group.create_task(bus.consume("c", ["rollout_turn"], handle, stop=stop, max_deliver=3))
        group.create_task(wait_for_letter())
    (letter,) = await _letters(first)
    assert calls == []
    assert letter.rollout_id == rollout_id
    assert letter.dead_lettered.delivery_count == 4
    assert "not acknowledged in 3 deliveries" in letter.dead_lettered.reason
    await first.close()
    await second.close()


async def test_advisory_of_the_server_becomes_one_dead_letter(
    nats_server, publish_turns, take_and_drop, rollout_id
):
    options = BusOptions(spare_deliveries=0)
    first = await NatsBus.connect(nats_server.url, name="one", options=options)
    second = await NatsBus.connect(nats_server.url, name="two", options=options)
    stop, idle, calls = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        calls.append(delivery)
        # Busy with the first event, neither replica pulls the second.
        await idle.wait()

    async def wait_for_letter():
        async for _ in first.read(["dead_lettered"], follow=True, stop=stop):
            stop.set()

    await publish_turns(first, 2)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for bus in (first, second):
            group.create_task(
                bus.consume(
                    "c", ["rollout_turn"], handle, stop=stop, max_deliver=2, max_in_flight=1
                )
            )
        while len(calls) < 2:
            await asyncio.sleep(0.01)
        await publish_turns(first, 1, first=7)
        await take_and_drop("c", max_deliver=2, times=2)
        idle.set()
        group.create_task(wait_for_letter())
    (letter,) = await _letters(first)
    assert letter.rollout_id == rollout_id
    assert letter.dead_lettered.stream_sequence == 3
    assert letter.dead_lettered.delivery_count == 2
    assert "advisory" in letter.dead_lettered.reason
    assert sorted(delivery.sequence for delivery in calls) == [1, 2]
    await first.close()
    await second.close()


async def test_bytes_that_are_no_envelope_become_a_dead_letter(nats_server):
    bus = await NatsBus.connect(nats_server.url, name="one")
    client = await nats.connect(nats_server.url)
    await client.jetstream().publish("hone.v1.turn.taken.run7", b"\xff\xff not protobuf")
    await client.close()
    stop = asyncio.Event()

    async def handle(delivery):
        raise AssertionError

    async def wait_for_letter():
        async for _ in bus.read(["dead_lettered"], follow=True, stop=stop):
            stop.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(bus.consume("c", ["rollout_turn"], handle, stop=stop))
        group.create_task(wait_for_letter())
    (letter,) = await _letters(bus)
    assert letter.run_id == "run7"
    assert "not a hone.events.v1.Envelope" in letter.dead_lettered.reason
    await bus.close()


async def test_dead_letter_that_cannot_be_handled_breeds_no_other(nats_server, publish_turns):
    bus = await NatsBus.connect(nats_server.url, name="one")
    await publish_turns(bus, 1)
    stop, calls = asyncio.Event(), []

    async def refuse(delivery):
        calls.append(delivery.envelope.WhichOneof("payload"))
        raise ValueError("never")

    async def sentinel(delivery):
        stop.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for name, types in (("c", ["rollout_turn"]), ("d", ["dead_lettered"])):
            group.create_task(bus.consume(name, types, refuse, stop=stop, max_deliver=1))
        while len(calls) < 2:
            await asyncio.sleep(0.01)
        await publish_turns(bus, 1, first=9)
        group.create_task(bus.consume("s", ["rollout_turn"], sentinel, stop=stop))
    assert "dead_lettered" in calls
    assert all(letter.dead_lettered.consumer == "c" for letter in await _letters(bus))
    await bus.close()
