"""Claims and blobs in memory."""

import asyncio
from pathlib import Path
from typing import overload

from hone.common.v1 import blob_pb2

from eventbus import blobs
from eventbus.claiming import Entry


class MemoryClaimStore:
    """Keys, values and revisions."""

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def read(self, key: str) -> Entry | None:
        """Returns the entry, or None."""
        return self._entries.get(key)

    async def write(self, key: str, value: bytes, expected_revision: int) -> int | None:
        """Writes over the expected revision and returns the new one; None if it is another."""
        current = self._entries.get(key)
        if (current.revision if current is not None else 0) != expected_revision:
            return None
        self._revision += 1
        self._entries[key] = Entry(value=value, revision=self._revision)
        return self._revision

    def forget(self, key: str) -> None:
        """Removes an entry."""
        self._entries.pop(key, None)


class MemoryBlobs:
    """Blobs by name."""

    def __init__(self) -> None:
        """Starts empty."""
        self._data: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes | Path) -> blob_pb2.BlobRef:
        """Stores bytes or a file under a name."""
        ref = await asyncio.to_thread(blobs.reference, name, data)
        self._data[name] = (
            data if isinstance(data, bytes) else await asyncio.to_thread(data.read_bytes)
        )
        return ref

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: None = None) -> bytes: ...

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: Path) -> Path: ...

    async def get(self, ref: blob_pb2.BlobRef, destination: Path | None = None) -> bytes | Path:
        """Fetches a blob, checked against its reference."""
        blobs.check_bucket(ref)
        data = self._data.get(ref.name)
        if data is None:
            raise blobs.missing(ref)
        checker = blobs.Checker()
        checker.update(data)
        checker.check(ref)
        if destination is None:
            return data
        with blobs.whole_file(destination) as file:
            file.write(data)
        return destination
