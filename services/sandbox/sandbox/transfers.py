"""What callers may do with archives and snapshots: as `manager`, for the calls that move much."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from sandbox.access import require_purpose
from sandbox.door import Door
from sandbox.storage.files import write_all
from sandbox.storage.snapshots import Origin, Snapshot, SnapshotStore
from sandbox.storage.spool import Spool, room_is_ours
from sandbox.types import ArchiveEnd, Caller, Feature
from servicekit.errors import DeadlineExceeded, HoneError, InvalidArgument, ResourceExhausted

T = TypeVar("T")

MAX_ARCHIVE_BYTES = 1 << 30
"""Of one archive, up or down."""

PIECE_BYTES = 1024 * 1024
"""An archive is sent in pieces of this size."""


class Transfers:
    """The service's calls about archives and snapshots, without grpc."""

    def __init__(
        self,
        door: Door,
        spool: Spool,
        snapshots: SnapshotStore,
        *,
        parallel: int = 8,
        queue_seconds: float = 30.0,
        transfer_seconds: float = 600.0,
        max_archive_bytes: int = MAX_ARCHIVE_BYTES,
    ) -> None:
        """Lets callers in by `door`.

        Args:
            door: Checks every call.
            spool: Holds the archives that are under way.
            snapshots: Keeps what is saved.
            parallel: Archives under way at once; more wait. Bounds what they take of the disk.
            queue_seconds: Longest wait.
            transfer_seconds: Longest time of one archive, so that a caller who stalls holds no place for ever.
            max_archive_bytes: Of one archive.
        """
        self._door = door
        self._spool = spool
        self._snapshots = snapshots
        self._places = asyncio.Semaphore(parallel)
        self._queue_seconds = queue_seconds
        self._transfer_seconds = transfer_seconds
        self._max_archive_bytes = max_archive_bytes

    @property
    def full(self) -> bool:
        """Whether the next archive has to wait."""
        return self._places.locked()

    async def upload_tar(
        self,
        caller: Caller,
        rollout_id: str,
        sandbox_id: str,
        folder: str,
        pieces: AsyncIterator[bytes],
    ) -> int:
        """Unpack the archive that the pieces make below a folder; return its size.

        Raises:
            InvalidArgument: it is too large, no archive, or holds what may not be there.
            FailedPrecondition: the sandbox's disk is full (reason DISK_FULL).
            ResourceExhausted: too many archives are under way, or the manager's disk is full.
            DeadlineExceeded: the pieces came too slowly.
        """
        with self._door.inside(caller, rollout_id, sandbox_id, Feature.ARCHIVES) as entry:
            await self._take_place()
            try:
                with self._spool.place() as path:
                    async with self._in_time():
                        size = await self._receive(path, pieces)
                        await entry.box.unpack(folder, path)
                        return size
            finally:
                self._places.release()

    async def download_tar(
        self, caller: Caller, rollout_id: str, sandbox_id: str, path: str
    ) -> AsyncGenerator[bytes | ArchiveEnd, None]:
        """Pack a folder or file and yield the archive in pieces, then its end.

        Raises:
            NotFound: nothing is there.
            OutOfRange: the archive would be too large.
            ResourceExhausted: too many archives are under way, or the manager's disk is full.
            DeadlineExceeded: the pieces were taken too slowly.
        """
        with self._door.inside(caller, rollout_id, sandbox_id, Feature.ARCHIVES) as entry:
            await self._take_place()
            with contextlib.ExitStack() as held:
                held.callback(self._places.release)
                with self._spool.place() as place:
                    async with self._in_time():
                        await entry.box.pack(path, place, self._max_archive_bytes)
                    # Its name goes here: whatever becomes of the call, its content goes with the descriptor.
                    file = held.enter_context(place.open("rb"))
                # A caller who has stalled is not there to be told, but what is held for it goes.
                loop = asyncio.get_running_loop()
                expiry = loop.call_later(self._transfer_seconds, held.close)
                held.callback(expiry.cancel)
                digest, size = hashlib.sha256(), 0
                while piece := await self._read(file):
                    digest.update(piece)
                    size += len(piece)
                    yield piece
                yield ArchiveEnd(size_bytes=size, sha256=digest.hexdigest())

    async def create_snapshot(
        self, caller: Caller, rollout_id: str, sandbox_id: str, snapshot_id: str
    ) -> Snapshot:
        """Save a sandbox's file system; repeating the id returns the first.

        Raises:
            FailedPrecondition: the backend has no snapshots (UNSUPPORTED), or the rollout has ended (ROLLOUT_ENDED).
            ResourceExhausted: there is no room.
            AlreadyExists: the id names a snapshot of another sandbox.
        """
        with self._door.inside(caller, rollout_id, sandbox_id, Feature.SNAPSHOTS) as entry:
            info = entry.info()
            origin = Origin(
                sandbox_id=sandbox_id,
                purpose=info.key.purpose,
                backend=info.backend,
                template=info.template,
                rootfs_digest=info.rootfs_digest,
            )
            return await self._snapshots.save(rollout_id, snapshot_id, origin, entry.box.snapshot)

    def delete_snapshot(self, caller: Caller, rollout_id: str, snapshot_id: str) -> None:
        """Remove a snapshot; one that is gone is no error."""
        self._door.admit(caller, rollout_id, operator_may=True)
        found = self._snapshots.get(rollout_id, snapshot_id)
        if found is not None:
            require_purpose(caller, found.origin.purpose)
            self._snapshots.remove(rollout_id, snapshot_id)

    async def _take_place(self) -> None:
        """Wait for a place; the caller gives it back."""
        try:
            async with asyncio.timeout(self._queue_seconds):
                await self._places.acquire()
        except TimeoutError as error:
            raise ResourceExhausted(
                f"too many archives are under way; waited {self._queue_seconds:g} s",
                reason="TRANSFERS_FULL",
                retry_after_seconds=1.0,
            ) from error

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._transfer_seconds):
                yield
        except TimeoutError as error:
            raise self._too_slow() from error

    def _too_slow(self) -> HoneError:
        return DeadlineExceeded(
            f"the archive took longer than {self._transfer_seconds:g} s",
            reason="TRANSFER_TIMEOUT",
            attributable="client",
        )

    async def _receive(self, path: Path, pieces: AsyncIterator[bytes]) -> int:
        size = 0
        with path.open("xb", buffering=0) as file:
            async for piece in pieces:
                size += len(piece)
                if size > self._max_archive_bytes:
                    raise InvalidArgument(
                        f"archive: has more than {self._max_archive_bytes} bytes; send it in parts"
                    )
                await _in_thread(partial(_keep, file.fileno(), piece))
        return size

    async def _read(self, file: BinaryIO) -> bytes:
        try:
            return await _in_thread(partial(file.read, PIECE_BYTES))
        except ValueError as error:  # closed meanwhile
            raise self._too_slow() from error


async def _in_thread(work: Callable[[], T]) -> T:
    """Run short work in a thread; also a caller that gives up waits for its end, as it uses a file."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _keep(descriptor: int, data: bytes) -> None:
    with room_is_ours():
        write_all(descriptor, data)
