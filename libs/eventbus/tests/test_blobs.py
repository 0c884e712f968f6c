"""What blobs promise, on both buses."""

import hashlib

import pytest
from hone.common.v1 import blob_pb2

from servicekit.errors import DataLoss, InvalidArgument, NotFound


async def test_blob_of_bytes_comes_back(bus):
    blobs = await bus.blobs()
    data = bytes(range(256)) * 3000
    ref = await blobs.put("records/one", data)
    assert ref == blob_pb2.BlobRef(
        bucket="hone-blobs",
        name="records/one",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    assert await blobs.get(ref) == data


async def test_blob_of_a_file_comes_back_as_a_file(bus, tmp_path):
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_bytes(b"adapter" * 1_000_000)
    blobs = await bus.blobs()
    ref = await blobs.put("adapters/v1", source)
    assert await blobs.get(ref, target) == target
    assert target.read_bytes() == source.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target"]


async def test_blob_may_be_empty(bus):
    blobs = await bus.blobs()
    assert await blobs.get(await blobs.put("empty", b"")) == b""


async def test_blob_put_again_changes_nothing(bus):
    blobs = await bus.blobs()
    ref = await blobs.put("same", b"content")
    assert await blobs.put("same", b"content") == ref
    assert await blobs.get(ref) == b"content"


async def test_blob_that_was_replaced_is_not_what_the_event_named(bus, tmp_path):
    blobs = await bus.blobs()
    old = await blobs.put("name", b"old content")
    new = await blobs.put("name", b"new content, longer")
    assert await blobs.get(new) == b"new content, longer"
    target = tmp_path / "target"
    with pytest.raises(DataLoss, match="the event says 11 bytes"):
        await blobs.get(old, target)
    assert not target.exists()


async def test_blob_that_is_missing(bus, tmp_path):
    blobs = await bus.blobs()
    with pytest.raises(NotFound, match="'nothing'"):
        await blobs.get(blob_pb2.BlobRef(bucket="hone-blobs", name="nothing"))
    with pytest.raises(InvalidArgument, match="bucket 'other'"):
        await blobs.get(blob_pb2.BlobRef(bucket="other", name="nothing"))
    with pytest.raises(InvalidArgument, match="cannot read"):
        await blobs.put("name", tmp_path / "absent")
    with pytest.raises(InvalidArgument, match="needs a name"):
        await blobs.put("", b"x")


async def test_blob_outlives_the_events_of_its_run(bus, publish_turns):
    blobs = await bus.blobs()
    ref = await blobs.put("run1/record", b"kept")
    await publish_turns(bus, 1)
    await bus.purge_run("run1")
    assert await blobs.get(ref) == b"kept"
