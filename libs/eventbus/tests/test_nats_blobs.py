"""The store's format is NATS's own: any client reads what the bus stored, and the other way round."""

import hashlib
import os

import nats
from hone.common.v1 import blob_pb2

from eventbus.nats_bus import NatsBus


async def test_blob_is_an_object_that_any_client_reads(nats_server):
    data = os.urandom(600_000)
    async with await NatsBus.connect(nats_server.url, name="one") as bus:
        blobs = await bus.blobs()
        await blobs.put("adapters/run1-v7", b"older")
        await blobs.put("adapters/run1-v7", data)
        client = await nats.connect(nats_server.url)
        store = await client.jetstream().object_store("hone-blobs")
        assert (await store.get("adapters/run1-v7")).data == data
        # Only the newer content's three chunks and the one name are left.
        stream = await client.jetstream().stream_info("OBJ_hone-blobs")
        assert stream.state.messages == 4
        await store.put("from/elsewhere", data)
        ref = blob_pb2.BlobRef(
            bucket="hone-blobs",
            name="from/elsewhere",
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        assert await blobs.get(ref) == data
        await client.close()
