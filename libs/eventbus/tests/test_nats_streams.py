"""The stream and the buckets become what they should be, whoever connects first and with what."""

import asyncio

import nats
import pytest

from eventbus.errors import EventUnreadable
from eventbus.jetstream.options import BusOptions
from eventbus.jetstream.purging import purges_of_run
from eventbus.nats_bus import NatsBus
from servicekit.errors import FailedPrecondition, ResourceExhausted


async def _connect(server, **options):
    return await NatsBus.connect(server.url, name="test", options=BusOptions(**options))


async def test_services_that_start_at_once_agree(nats_server):
    async with asyncio.timeout(20):
        buses = await asyncio.gather(
            *(_connect(nats_server, stream_max_bytes=(n % 2 + 1) << 20) for n in range(8))
        )
    for bus in buses:
        await bus.close()


async def test_stream_is_made_as_promised(nats_server):
    async with await _connect(nats_server):
        client = await nats.connect(nats_server.url)
        config = (await client.jetstream().stream_info("EVENTS")).config
        await client.close()
    assert config.subjects == ["hone.v1.>"]
    assert (config.retention, config.storage, config.discard) == ("limits", "file", "new")
    assert (config.max_bytes, config.duplicate_window, config.max_age) == (4 << 30, 600, 0)


async def test_limit_changes_only_when_asked_for(nats_server, publish_turns):
    async with await _connect(nats_server, stream_max_bytes=1 << 20) as bus:
        await publish_turns(bus, 2)
        assert (await bus.usage()).max_bytes == 1 << 20
    async with await _connect(nats_server) as bus:
        assert (await bus.usage()).max_bytes == 1 << 20
    async with await _connect(nats_server, stream_max_bytes=2 << 20) as bus:
        assert (await bus.usage()).max_bytes == 2 << 20
        assert [event.sequence async for event in bus.read()] == [1, 2]


async def test_limit_beyond_the_servers_storage_is_refused(nats_server):
    with pytest.raises(ResourceExhausted, match="max_file_store"):
        await _connect(nats_server, stream_max_bytes=1 << 50)


async def test_durable_of_another_kind_is_not_taken_over(nats_server):
    async with await _connect(nats_server) as bus:
        client = await nats.connect(nats_server.url)
        await client.jetstream().add_consumer(
            "EVENTS", durable_name="c", deliver_subject="somewhere", ack_policy="explicit"
        )
        await client.close()

        async def handle(delivery):
            raise AssertionError

        with pytest.raises(FailedPrecondition, match="durable consumer 'c' exists in a form"):
            await bus.consume("c", ["rollout_turn"], handle, stop=asyncio.Event())


async def test_claims_fade_and_their_time_can_be_changed_in_place(nats_server, rollout_id):
    async def max_age(**options):
        async with await _connect(nats_server, **options) as bus:
            claims = await bus.claims()
            await claims.try_claim(rollout_id, "a", 10)
            assert await claims.get(rollout_id) is not None
        client = await nats.connect(nats_server.url)
        config = (await client.jetstream().stream_info("KV_hone-claims")).config
        await client.close()
        return config.max_age

    assert await max_age(claims_ttl_seconds=0) == 0
    assert await max_age() == 30 * 86400
    assert await max_age(claims_ttl_seconds=3600) == 3600


def test_a_run_is_purged_in_an_order_that_can_be_repeated():
    assert list(purges_of_run("run1", {"b", "a"})) == [
        ("EVENTS", "hone.v1.rollout.requested.run1"),
        ("KV_hone-claims", "$KV.hone-claims.a"),
        ("KV_hone-claims", "$KV.hone-claims.b"),
        ("EVENTS", "hone.v1.*.*.run1"),
    ]


async def test_read_says_which_message_is_no_event(nats_server, publish_turns):
    async with await _connect(nats_server) as bus:
        await publish_turns(bus, 1)
        client = await nats.connect(nats_server.url)
        await client.jetstream().publish("hone.v1.turn.taken.run1", b"\xff\xff not protobuf")
        await client.close()
        await publish_turns(bus, 1, first=5)
        with pytest.raises(EventUnreadable, match="sequence 2 on hone") as caught:
            assert [event async for event in bus.read()] == []
        after = caught.value.sequence + 1
        assert [event.sequence async for event in bus.read(start_sequence=after)] == [3]
