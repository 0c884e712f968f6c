"""Blobs in a NATS object store, in the store's own format, so that any client can read them.

The client's own `put` and `get` are not used: `put` begins again from nothing when NATS goes for a moment and leaves
its chunks behind, `get` into memory is quadratic, and its push consumer can hang after a killed server. Here each
chunk is published under an id like an event, and chunks are read like events, into a file.
"""

import asyncio
import base64
import contextlib
import json
import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, overload

import nats.js.errors
from hone.common.v1 import blob_pb2
from nats.js import api
from nats.js.object_store import ObjectStore

from eventbus import blobs
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.publisher import Publisher
from eventbus.jetstream.reader import StreamReader
from eventbus.jetstream.retry import persist
from servicekit.errors import DataLoss, HoneError

_STREAM = f"OBJ_{blobs.BUCKET}"

_CHUNK_BYTES = 256 * 1024


class NatsBlobs:
    """The object store of the suite, in NATS."""

    def __init__(
        self, connection: NatsConnection, publisher: Publisher, rng: random.Random
    ) -> None:
        """Keeps the parts."""
        self._connection = connection
        self._publisher = publisher
        self._rng = rng

    async def put(self, name: str, data: bytes | Path) -> blob_pb2.BlobRef:
        """Stores bytes or a file under a name, unless it is stored there already."""
        ref = await asyncio.to_thread(blobs.reference, name, data)
        known = await self._info(name)
        if known is not None and known.size == ref.size_bytes and known.digest == _digest(ref):
            return ref
        nuid = f"{self._rng.getrandbits(128):032x}"
        try:
            num_chunks = await self._put_chunks(ref, data, nuid)
            await self._put_info(ref, nuid, num_chunks)
        except HoneError:
            with contextlib.suppress(HoneError):
                await self._purge_chunks(nuid)
            raise
        if known is not None and known.nuid:
            await self._purge_chunks(known.nuid)
        return ref

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: None = None) -> bytes: ...

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: Path) -> Path: ...

    async def get(self, ref: blob_pb2.BlobRef, destination: Path | None = None) -> bytes | Path:
        """Fetches a blob; with a destination into that file, which appears only once it is whole."""
        blobs.check_bucket(ref)
        info = await self._info(ref.name)
        if info is None or info.nuid is None:
            raise blobs.missing(ref)
        if destination is None:
            with tempfile.TemporaryFile() as file:
                await self._fetch(ref, info.nuid, file)
                file.seek(0)
                return await asyncio.to_thread(file.read)
        with blobs.whole_file(destination) as file:
            await self._fetch(ref, info.nuid, file)
        return destination

    async def _put_chunks(self, ref: blob_pb2.BlobRef, data: bytes | Path, nuid: str) -> int:
        """Stores the chunks, one after another so that they lie in order, and returns how many there are."""
        checker = blobs.Checker()
        subject = f"$O.{blobs.BUCKET}.C.{nuid}"
        number = 0
        for number, chunk in enumerate(_chunks(data), start=1):
            checker.update(chunk)
            await self._publisher.publish(
                f"storing the blob {ref.name}", subject, chunk, {"Nats-Msg-Id": f"{nuid}.{number}"}
            )
        if checker.sha256 != ref.sha256:
            raise DataLoss(
                f"blob {ref.name!r} changed while it was being stored: its sha256 was {ref.sha256} before and "
                f"{checker.sha256} after",
                reason="BLOB_CHANGED",
            )
        return number

    async def _put_info(self, ref: blob_pb2.BlobRef, nuid: str, num_chunks: int) -> None:
        info = api.ObjectInfo(
            name=ref.name,
            bucket=ref.bucket,
            nuid=nuid,
            size=ref.size_bytes,
            chunks=num_chunks,
            digest=_digest(ref),
            mtime=datetime.now(UTC).isoformat(),
            options=api.ObjectMetaOptions(max_chunk_size=_CHUNK_BYTES),
        )
        key = base64.urlsafe_b64encode(ref.name.encode()).decode()
        headers = {"Nats-Msg-Id": f"{nuid}.info", "Nats-Rollup": "sub"}
        await self._publisher.publish(
            f"naming the blob {ref.name}",
            f"$O.{blobs.BUCKET}.M.{key}",
            json.dumps(info.as_dict()).encode(),
            headers,
        )

    async def _fetch(self, ref: blob_pb2.BlobRef, nuid: str, file: BinaryIO) -> None:
        checker = blobs.Checker()
        reader = StreamReader(
            self._connection,
            _STREAM,
            [f"$O.{blobs.BUCKET}.C.{nuid}"],
            start_sequence=0,
            follow=False,
            stop=None,
            rng=self._rng,
        )
        async with contextlib.aclosing(reader.messages()) as messages:
            async for _, message in messages:
                checker.update(message.data)
                file.write(message.data)
        file.flush()
        checker.check(ref)

    async def _info(self, name: str) -> api.ObjectInfo | None:
        async def look() -> api.ObjectInfo | None:
            bucket = ObjectStore(name=blobs.BUCKET, stream=_STREAM, js=self._connection.jetstream)
            try:
                return await bucket.get_info(name)
            except nats.js.errors.NotFoundError:
                return None

        return await persist(self._connection, f"looking for the blob {name}", look, rng=self._rng)

    async def _purge_chunks(self, nuid: str) -> None:
        await persist(
            self._connection,
            f"removing the chunks {nuid}",
            lambda: self._connection.jetstream.purge_stream(
                _STREAM, subject=f"$O.{blobs.BUCKET}.C.{nuid}"
            ),
            rng=self._rng,
        )


def _digest(ref: blob_pb2.BlobRef) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(bytes.fromhex(ref.sha256)).decode()


def _chunks(data: bytes | Path) -> Iterator[bytes]:
    for part in blobs.parts(data):
        for start in range(0, len(part), _CHUNK_BYTES):
            yield part[start : start + _CHUNK_BYTES]
