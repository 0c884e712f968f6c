"""NATS killed, frozen, wiped and late: nothing is lost, and no effect happens twice."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import aclosing

import pytest

from eventbus.claims import Acquired, ClaimState, Held
from eventbus.errors import LogTruncated, RetryLater
from eventbus.jetstream.options import BusOptions
from eventbus.nats_bus import NatsBus
from servicekit.errors import Unavailable

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.fixture
async def connect(nats_server, clock):
    buses = []

    async def make(**options):
        bus = await NatsBus.connect(
            nats_server.url, name="test", options=BusOptions(**options), clock=clock
        )
        buses.append(bus)
        return bus

    yield make
    for bus in buses:
        await bus.close()


@pytest.fixture
def outage(nats_server):
    """Kills the server and starts it again after a while."""

    async def run(seconds):
        await asyncio.to_thread(nats_server.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(nats_server.start)

    return run


async def test_killed_server_loses_and_repeats_nothing(connect, turn, outage):
    publisher, first, second = await connect(), await connect(), await connect()
    total = 1500
    stop, begun, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    effects: set[str] = set()
    calls: Counter[str] = Counter()

    async def handle(delivery):
        calls[delivery.envelope.event_id] += 1
        effects.add(delivery.envelope.event_id)
        if len(effects) > 200:
            begun.set()
        if len(effects) == total:
            done.set()

    def consume(bus):
        return bus.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=2)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(publisher.publish(turn(n))) for n in range(total)]
        group.create_task(consume(first))
        group.create_task(consume(second))
        await begun.wait()
        await outage(1.0)
        acks = [await task for task in tasks]
        await done.wait()
        stop.set()
    assert len({ack.sequence for ack in acks}) == total
    logged = [event.envelope.event_id async for event in publisher.read()]
    assert len(logged) == len(set(logged)) == total
    assert effects == set(logged)
    assert max(calls.values()) <= 2


async def test_killed_server_does_not_disturb_a_reader(connect, turn, outage):
    bus = await connect()
    total, seen, stop = 600, [], asyncio.Event()
    reached = asyncio.Event()

    async def follow():
        async with aclosing(bus.read(follow=True, stop=stop)) as events:
            async for event in events:
                seen.append(event.sequence)
                if len(seen) > 150:
                    reached.set()
                if event.sequence == total:
                    stop.set()

    async def publish():
        for number in range(total):
            await bus.publish(turn(number))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(follow())
        group.create_task(publish())
        await reached.wait()
        await outage(0.5)
    assert seen == list(range(1, total + 1))


@pytest.mark.slow
async def test_ten_seconds_without_nats(connect, turn, publish_turns, outage, rollout_id, tmp_path):
    bus, other = await connect(), await connect()
    await publish_turns(bus, 1)
    claims, blobs = await bus.claims(), await bus.blobs()
    claim = (await claims.try_claim(rollout_id, "a", 60)).claim
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 24)
    stop, effects, seen = asyncio.Event(), [], []
    begun = asyncio.Event()

    async def handle(delivery):
        # The server may hand the event to the other replica when it is back: the claim tells who acts.
        won = await claims.try_claim(delivery.envelope.event_id, "a replica", 60)
        if not isinstance(won, Acquired):
            raise RetryLater(2)
        effects.append(delivery.envelope.rollout_turn.turn)
        begun.set()
        if delivery.envelope.rollout_turn.turn == 0:
            await asyncio.sleep(12)

    async def follow():
        async with aclosing(bus.read(follow=True, stop=stop)) as events:
            async for event in events:
                seen.append(event.sequence)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        consumers = [
            group.create_task(
                b.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=3)
            )
            for b in (bus, other)
        ]
        reading = group.create_task(follow())
        await begun.wait()
        dark = group.create_task(outage(10))
        publishing = [group.create_task(bus.publish(turn(n))) for n in range(1, 20)]
        renewing = group.create_task(claims.renew(claim))
        claiming = group.create_task(claims.try_claim("other", "a", 60))
        storing = group.create_task(blobs.put("large", large))
        await dark
        await asyncio.gather(*publishing)
        assert (await renewing).state is ClaimState.RUNNING
        assert isinstance(await claiming, Acquired)
        assert await blobs.get(await storing, tmp_path / "copy") == tmp_path / "copy"
        while len(set(effects)) < 20 or len(seen) < 20:
            await asyncio.sleep(0.05)
        # A second delivery would come within an ack_wait.
        await asyncio.sleep(3)
        stop.set()
        await asyncio.gather(*consumers, reading)
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    assert Counter(effects) == Counter(range(20))
    assert seen == list(range(1, 21))


async def test_long_handler_runs_once_across_a_killed_server(connect, publish_turns, outage):
    bus = await connect()
    await publish_turns(bus, 1)
    stop, begun, done, calls = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        calls.append(delivery.delivery_count)
        begun.set()
        await asyncio.sleep(1.5)
        done.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(
            bus.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=0.4)
        )
        await begun.wait()
        await outage(0.7)
        await done.wait()
        # A second delivery would come within two ack_waits.
        await asyncio.sleep(0.8)
        stop.set()
    assert calls == [1]


async def test_blob_survives_a_killed_server(connect, outage, tmp_path):
    bus = await connect()
    blobs = await bus.blobs()
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * 48)
    async with asyncio.timeout(60):
        storing = asyncio.create_task(blobs.put("large", source))
        await asyncio.sleep(0.15)
        await outage(0.3)
        ref = await storing
        reading = asyncio.create_task(blobs.get(ref, tmp_path / "copy"))
        await asyncio.sleep(0.1)
        await outage(0.3)
        await reading
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


async def test_claim_is_ours_although_the_answer_was_lost(connect, nats_server, rollout_id):
    bus = await connect(request_timeout_seconds=0.5)
    claims = await bus.claims()
    async with asyncio.timeout(30):
        for round_number in range(5):
            key = f"{rollout_id}-{round_number}"
            claiming = asyncio.create_task(claims.try_claim(key, "a", 60))
            await asyncio.sleep(0.0005 * round_number)
            await asyncio.to_thread(nats_server.restart)
            outcome = await claiming
            assert isinstance(outcome, Acquired)
            assert (await claims.commit(outcome.claim)).state is ClaimState.COMMITTED


async def test_frozen_server_is_waited_for(connect, publish_turns, nats_server, rollout_id):
    bus = await connect(request_timeout_seconds=0.4)
    claims = await bus.claims()
    nats_server.freeze()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        publishing = group.create_task(publish_turns(bus, 3))
        claiming = group.create_task(claims.try_claim(rollout_id, "a", 60))
        await asyncio.sleep(1.5)
        nats_server.thaw()
    assert [ack.sequence for ack in publishing.result()] == [1, 2, 3]
    assert isinstance(claiming.result(), Acquired)
    assert isinstance(await claims.try_claim(rollout_id, "b", 60), Held)
    assert [event.sequence async for event in bus.read()] == [1, 2, 3]


async def test_publish_gives_up_at_its_deadline(connect, turn, nats_server):
    bus = await connect(publish_deadline_seconds=0.5)
    await asyncio.to_thread(nats_server.kill)
    with pytest.raises(
        Unavailable, match=r"publishing turn\.taken .* NATS did not answer"
    ) as caught:
        await bus.publish(turn(1))
    assert caught.value.retryable


async def test_stopping_does_not_wait_for_nats(connect, publish_turns, nats_server):
    bus = await connect(drain_seconds=0.3)
    await publish_turns(bus, 1)
    stop, begun, read = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hang(delivery):
        begun.set()
        await asyncio.Event().wait()

    async def follow():
        seen = []
        async for event in bus.read(follow=True, stop=stop):
            seen.append(event.sequence)
            read.set()
        return seen

    async with asyncio.timeout(8), asyncio.TaskGroup() as group:
        group.create_task(bus.consume("c", ["rollout_turn"], hang, stop=stop))
        reading = group.create_task(follow())
        await begun.wait()
        await read.wait()
        await asyncio.to_thread(nats_server.kill)
        group.create_task(bus.consume("late", ["rollout_turn"], hang, stop=stop))
        await asyncio.sleep(0.2)
        stop.set()
    assert reading.result() == [1]


async def test_closing_without_nats_leaves_nothing_running(nats_server):
    # So short a pause makes it likely that closing meets a refused connection.
    options = BusOptions(reconnect_wait_seconds=0.002)
    before = asyncio.all_tasks()
    buses = [await NatsBus.connect(nats_server.url, name="b", options=options) for _ in range(12)]
    await asyncio.to_thread(nats_server.kill)
    waiting = [
        asyncio.create_task(NatsBus.connect(nats_server.url, name="late", options=options))
        for _ in range(12)
    ]
    async with asyncio.timeout(20):
        for number, (bus, late) in enumerate(zip(buses, waiting, strict=True)):
            await asyncio.sleep(0.003 * number)
            await bus.close()
            late.cancel()
        await asyncio.wait(waiting)
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)


async def test_connect_waits_for_nats(nats_server, publish_turns, caplog):
    nats_server.kill()
    caplog.set_level(logging.INFO, logger="hone.eventbus")
    async with asyncio.timeout(20):
        connecting = asyncio.create_task(NatsBus.connect(nats_server.url, name="test"))
        await asyncio.sleep(0.5)
        assert not connecting.done()
        await asyncio.to_thread(nats_server.start)
        async with await connecting as bus:
            await publish_turns(bus, 1)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("waiting for NATS") == 1
    assert "NATS connected" in messages


async def test_outage_is_logged_once_each_way(connect, outage, publish_turns, caplog):
    caplog.set_level(logging.INFO, logger="hone.eventbus")
    bus = await connect()
    await outage(0.8)
    await publish_turns(bus, 1)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("NATS gone, waiting") == 1
    assert messages.count("NATS back") == 1
    assert "waiting for NATS" not in messages


async def test_server_with_an_empty_store_is_noticed(connect, turn, publish_turns, nats_server):
    bus = await connect()
    await publish_turns(bus, 3)
    stop, first, fresh = asyncio.Event(), asyncio.Event(), asyncio.Event()
    read = asyncio.Event()

    async def handle(delivery):
        first.set()
        if delivery.envelope.rollout_turn.turn == 99:
            fresh.set()

    async def follow():
        async with aclosing(bus.read(follow=True)) as events:
            async for event in events:
                if event.sequence == 3:
                    read.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(bus.consume("c", ["rollout_turn"], handle, stop=stop))
        reading = asyncio.create_task(follow())
        await first.wait()
        await read.wait()
        await asyncio.to_thread(nats_server.kill)
        nats_server.wipe()
        await asyncio.to_thread(nats_server.start)
        assert (await bus.publish(turn(99))).sequence == 1
        await fresh.wait()
        stop.set()
        with pytest.raises(LogTruncated, match="not the log"):
            await reading


async def test_killed_consumer_process_loses_nothing(
    connect, publish_turns, nats_server, consuming
):
    bus = await connect()
    await publish_turns(bus, 1)
    script = textwrap.dedent(
        """
        import asyncio, sys
        from eventbus.nats_bus import NatsBus

        async def handle(delivery):
            print("begun", flush=True)
            await asyncio.Event().wait()

        async def main():
            bus = await NatsBus.connect(sys.argv[1], name="victim")
            await bus.consume(
                "c", ["rollout_turn"], handle, stop=asyncio.Event(), ack_wait_seconds=1
            )

        asyncio.run(main())
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, nats_server.url], stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdout is not None
        assert await asyncio.to_thread(victim.stdout.readline) == b"begun\n"
        victim.send_signal(signal.SIGKILL)
    stop, done, counts = asyncio.Event(), asyncio.Event(), []

    async def handle(delivery):
        counts.append(delivery.delivery_count)
        done.set()

    await consuming(
        stop,
        bus.consume("c", ["rollout_turn"], handle, stop=stop, ack_wait_seconds=1),
        until=done,
    )
    assert counts == [2]
