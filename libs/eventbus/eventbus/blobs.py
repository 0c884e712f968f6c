"""Blobs: payloads too large for an event, kept in the object store and named by reference, size and digest."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, overload

from hone.common.v1 import blob_pb2

from servicekit.errors import DataLoss, InvalidArgument, NotFound

BUCKET = "hone-blobs"
"""The one bucket of the suite."""

READ_SIZE_BYTES = 1 << 20


class Blobs(Protocol):
    """The object store."""

    async def put(self, name: str, data: bytes | Path) -> blob_pb2.BlobRef:
        """Stores bytes or a file under a name and returns the reference to put into an event.

        Storing the same content under the same name again changes nothing; other content replaces the old.
        """
        ...

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: None = None) -> bytes: ...

    @overload
    async def get(self, ref: blob_pb2.BlobRef, destination: Path) -> Path: ...

    async def get(self, ref: blob_pb2.BlobRef, destination: Path | None = None) -> bytes | Path:
        """Fetches a blob; with a destination into that file, which appears only once it is whole.

        Raises:
            NotFound: there is no blob of that name.
            DataLoss: what is stored has another size or digest than the reference says.
        """
        ...


class Checker:
    """Adds up what a blob is made of and compares it with its reference."""

    def __init__(self) -> None:
        """Starts empty."""
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def update(self, chunk: bytes) -> None:
        """Takes the next part."""
        self._digest.update(chunk)
        self.size_bytes += len(chunk)

    @property
    def sha256(self) -> str:
        """Lower-case hex digest of all parts so far."""
        return self._digest.hexdigest()

    def check(self, ref: blob_pb2.BlobRef) -> None:
        """Raises DataLoss unless the parts make up the blob that the reference names."""
        if self.size_bytes == ref.size_bytes and self.sha256 == ref.sha256:
            return
        raise DataLoss(
            f"blob {ref.name!r} in {ref.bucket!r} is {self.size_bytes} bytes with sha256 {self.sha256}, but the "
            f"event says {ref.size_bytes} bytes with sha256 {ref.sha256}",
            reason="BLOB_MISMATCH",
        )


def parts(data: bytes | Path) -> Iterator[bytes]:
    """Yields bytes or a file in parts of at most 1 MiB."""
    if isinstance(data, bytes):
        for start in range(0, len(data), READ_SIZE_BYTES):
            yield data[start : start + READ_SIZE_BYTES]
        return
    with data.open("rb") as file:
        while part := file.read(READ_SIZE_BYTES):
            yield part


def reference(name: str, data: bytes | Path) -> blob_pb2.BlobRef:
    """Returns the reference that bytes or a file will have once stored.

    Raises:
        InvalidArgument: the name is empty, or the path is not a readable file.
    """
    if not name:
        raise InvalidArgument("a blob needs a name", violations={"name": "is required"})
    checker = Checker()
    try:
        for part in parts(data):
            checker.update(part)
    except OSError as err:
        raise InvalidArgument(
            f"cannot read {data!r} to store it as blob {name!r}: {err}", reason="BLOB_UNREADABLE"
        ) from err
    return blob_pb2.BlobRef(
        bucket=BUCKET, name=name, size_bytes=checker.size_bytes, sha256=checker.sha256
    )


def check_bucket(ref: blob_pb2.BlobRef) -> None:
    """Raises InvalidArgument if the reference is to another store."""
    if ref.bucket != BUCKET:
        raise InvalidArgument(
            f"blob {ref.name!r} lies in bucket {ref.bucket!r}, but this store is {BUCKET!r}",
            reason="BUCKET_UNKNOWN",
        )


def missing(ref: blob_pb2.BlobRef) -> NotFound:
    """Returns what to raise where there is no such blob."""
    return NotFound(f"there is no blob {ref.name!r} in {ref.bucket!r}", reason="BLOB_MISSING")


@contextlib.contextmanager
def whole_file(destination: Path) -> Iterator[BinaryIO]:
    """Yields a file that takes the destination's place once the block ends well."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, destination)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
