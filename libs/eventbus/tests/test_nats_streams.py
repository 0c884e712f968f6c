"""The stream and the buckets become what they should be, whoever connects first and with what."""

import asyncio

import nats
import pytest

from eventbus.jetstream.options import BusOptions
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
