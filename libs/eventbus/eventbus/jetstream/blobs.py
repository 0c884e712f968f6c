"""Blobs in a NATS object store, in the store's own format, so that any client can read them.

Reading goes through `StreamReader` into a file: the client's `get` into memory is quadratic, and its ordered push
consumer can hang after a killed server.
"""

import asyncio
import base64
import contextlib
import logging
import random
import tempfile
from pathlib import Path
from typing import BinaryIO, overload

import nats.js.errors
from hone.common.v1 import blob_pb2
from nats.js import api
from nats.js.object_store import ObjectStore
from servicekit.errors import DataLoss

from eventbus import blobs
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.reader import StreamReader
from eventbus.jetstream.retry import persist

_LOG = logging.getLogger("hone.eventbus")

_STREAM = f"OBJ_{blobs.BUCKET}"

_PUT_DEADLINE_SECONDS_PER_GIB = 120.0
"""Beyond the publish deadline: the whole put is one try."""


class NatsBlobs:
    """The object store of the suite, in NATS."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the connection."""
        self._connection = connection
        self._rng = rng

    async def put(self, name: str, data: bytes | Path) -> blob_pb2.BlobRef:
        """Stores bytes or a file under a name, unless it is stored there already."""
        ref = await asyncio.to_thread(blobs.reference, name, data)
        known = await self._info(name)
        if known is not None and known.size == ref.size_bytes and _hex_digest(known) == ref.sha256:
            return ref
        deadline = self._connection.options.publish_deadline_seconds
        deadline += _PUT_DEADLINE_SECONDS_PER_GIB * ref.size_bytes / (1 << 30)

        async def store() -> api.ObjectInfo:
            bucket = await self._bucket()
            if isinstance(data, bytes):
                return await bucket.put(name, data)
            with data.open("rb") as file:
                return await bucket.put(name, file)

        info = await persist(
            self._connection,
            f"storing the blob {name}",
            store,
            rng=self._rng,
            deadline_seconds=deadline,
        )
        if _hex_digest(info) != ref.sha256:
            raise DataLoss(
                f"blob {name!r} changed while it was being stored: its sha256 was {ref.sha256} before and "
                f"{_hex_digest(info)} after",
                reason="BLOB_CHANGED",
            )
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
            bucket = await self._bucket()
            try:
                return await bucket.get_info(name)
            except nats.js.errors.NotFoundError:
                return None

        return await persist(self._connection, f"looking for the blob {name}", look, rng=self._rng)

    async def _bucket(self) -> ObjectStore:
        return ObjectStore(name=blobs.BUCKET, stream=_STREAM, js=self._connection.jetstream)


def _hex_digest(info: api.ObjectInfo) -> str:
    text = (info.digest or "").partition("=")[2]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
