"""The files of one local sandbox, from the manager's side: short calls and long work in threads.

Long work (archives, snapshots) runs in a pool of its own, so that it does not keep the short calls waiting, and stops
when its caller goes away or the sandbox is destroyed. The descriptors are closed only when nothing uses them any more:
a number that is used for another file meanwhile would lead into the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from sandbox.backends.protocol import BoxLost
from sandbox.storage.archives import TarReader, TarWriter
from sandbox.storage.files import BoxFiles, MakeName, typed
from sandbox.storage.packing import ExactPacker, Packer
from sandbox.storage.spool import room_is_ours
from sandbox.storage.trees import Check, Node, Stopped
from sandbox.storage.unpacking import Restorer, Unpacker
from sandbox.types import BoxFile, FileContent, FileEntry
from servicekit.errors import NotFound

T = TypeVar("T")

LONG_WORKERS = 4
"""Archives and snapshots under way at once, of all sandboxes; more wait in order."""

_UNBOUNDED = 1 << 62


def make_pool() -> ThreadPoolExecutor:
    """Make the pool in which the sandboxes of one backend do their long work."""
    return ThreadPoolExecutor(LONG_WORKERS, thread_name_prefix="archives")


class LocalFiles:
    """Reads and writes below a sandbox's root."""

    def __init__(
        self, *, root: int, writable: int, owner: int, make_name: MakeName, pool: Executor
    ) -> None:
        """Takes the descriptors over.

        Args:
            root: Of the sandbox's root.
            writable: Of the folder that holds what is written: the root again, or an overlay's upper layer.
            owner: Host uid and gid of the sandbox's root.
            make_name: Makes names for temporary files.
            pool: Where long work runs.
        """
        self._root = root
        self._writable = writable
        self._owner = owner
        self._make_name = make_name
        self._pool = pool
        self._files = BoxFiles(root, owner, make_name)
        self._under_way: dict[asyncio.Future[Any], _Job] = {}
        self._closed = False

    def exists(self, path: str) -> bool:
        """Say whether a path leads to something inside the root."""
        return not self._closed and self._files.exists(path)

    async def read(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a part of a file."""
        return await self._short(lambda: self._files.read(path, offset_bytes, max_bytes))

    async def write(self, file: BoxFile) -> None:
        """Write a file."""
        await self._short(lambda: self._files.write(file))

    async def list_folder(self, path: str) -> list[FileEntry]:
        """List a folder."""
        return await self._short(lambda: self._files.list_folder(path))

    async def look_at(self, path: str) -> FileEntry:
        """Say what a path is."""
        return await self._short(lambda: self._files.look_at(path))

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive below a folder."""
        await self._long(lambda check: self._unpack(folder, archive, check))

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file into an archive."""
        await self._long(lambda check: self._pack(path, archive, max_bytes, check))

    async def snapshot(self, target: Path) -> None:
        """Save the disk."""
        await self._long(lambda check: self._snapshot(target, check))

    async def restore(self, snapshot: Path) -> None:
        """Make the disk of this sandbox, in which nothing has run yet, what a snapshot says."""
        await self._long(lambda check: self._restore(snapshot, check))

    async def close(self) -> None:
        """Stop what is under way, wait for its end, and close the descriptors. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for job in self._under_way.values():
            job.stop()
        if self._under_way:
            await asyncio.wait(self._under_way)
        for descriptor in {self._root, self._writable}:
            os.close(descriptor)

    async def _short(self, work: Callable[[], T]) -> T:
        self._refuse_if_closed()
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._track(future, _Job())
        return await asyncio.shield(future)

    async def _long(self, work: Callable[[Check], T]) -> T:
        self._refuse_if_closed()
        job = _Job()
        job.queued = self._pool.submit(work, job.check)
        future = asyncio.wrap_future(job.queued)
        self._track(future, job)
        try:
            return await asyncio.shield(future)
        except Stopped as stopped:
            raise BoxLost("the sandbox was destroyed") from stopped
        except asyncio.CancelledError:
            job.stop()
            await asyncio.wait([future])  # what it began is undone when this returns
            self._refuse_if_closed()
            raise

    def _track(self, future: asyncio.Future[T], job: _Job) -> None:
        self._under_way[future] = job
        future.add_done_callback(self._forget)

    def _forget(self, future: asyncio.Future[Any]) -> None:
        del self._under_way[future]
        if not future.cancelled():
            future.exception()  # whoever waits sees it; after a cancellation nobody does

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BoxLost("the sandbox was destroyed")

    def _unpack(self, folder: str, archive: Path, check: Check) -> None:
        top = self._files.open_target(folder)
        try:
            with archive.open("rb") as file:
                unpacker = Unpacker(top, owner=self._owner, make_name=self._make_name, check=check)
                unpacker.unpack(TarReader(file))
        finally:
            os.close(top)

    def _pack(self, path: str, archive: Path, max_bytes: int, check: Check) -> None:
        top = self._files.open_source(path)
        try:
            with _writing(archive) as file:
                writer = TarWriter(file, max_bytes)
                packer = Packer(writer, check)
                status = os.fstat(top)
                if stat.S_ISDIR(status.st_mode):
                    packer.add_folder(top)
                else:
                    name = PurePosixPath(path).name
                    packer.add(Node(path=name, descriptor=top, status=status))
                writer.close()
        except OSError as error:
            raise typed(path, error) from error
        finally:
            os.close(top)

    def _snapshot(self, target: Path, check: Check) -> None:
        try:
            with _writing(target) as file:
                writer = TarWriter(file, _UNBOUNDED)
                ExactPacker(writer, check, self._owner).add_disk(self._writable)
                writer.close()
        except OSError as error:
            raise typed("/", error) from error

    def _restore(self, snapshot: Path, check: Check) -> None:
        try:
            file = snapshot.open("rb")
        except FileNotFoundError as error:
            raise NotFound("the snapshot was removed", reason="SNAPSHOT_UNKNOWN") from error
        with file:
            restorer = Restorer(
                self._root, owner=self._owner, make_name=self._make_name, check=check
            )
            restorer.restore(TarReader(file), self._writable)


class _Job:
    """Work in a thread, and how to stop it."""

    def __init__(self) -> None:
        self.queued: Future[Any] | None = None
        self._stopped = threading.Event()

    def check(self) -> None:
        """Raise if the work is to stop."""
        if self._stopped.is_set():
            raise Stopped

    def stop(self) -> None:
        """Have it stop at its next step, or not begin."""
        self._stopped.set()
        if self.queued is not None:
            self.queued.cancel()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file on the manager's own disk; reading a sandbox's cannot fail for lack of room."""
    with room_is_ours(), path.open("xb") as file:
        yield file
