"""The backend `state`: a database of its own for each rollout, for tools that need no files and no programs.

A sandbox is a clone of a seed database, made in milliseconds and dropped at the end; its only program is `sql`. The
template's `rootfs` is the seed: an SQLite file, or a script that ends in .sql; `host` means an empty database.

It isolates state, not programs: statements run inside this process, in worker threads, under SQLite's authorizer.
"""

import asyncio
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandbox.backends.folder import StateFolder
from sandbox.backends.protocol import BackendInfo
from sandbox.backends.state.box import StateBox, copy_database, remove_database
from sandbox.settings import StateOptions
from sandbox.types import MIB, BoxSpec, Feature
from servicekit.errors import FailedPrecondition, InvalidArgument, Unavailable

T = TypeVar("T")

_MAGIC = b"SQLite format 3\0"
_EMPTY = "host"
"""A template's rootfs where nobody said another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seed:
    path: Path
    digest: str


class StateBackend:
    """Makes databases."""

    def __init__(self, data_dir: Path, options: StateOptions) -> None:
        """Keeps seeds and databases below `data_dir`/state."""
        self._folder = StateFolder(data_dir)
        root = self._folder.path / "state"
        self._boxes_dir, self._seeds_dir, self._temporary = (
            root / name for name in ("boxes", "seeds", "tmp")
        )
        self._options = options
        self._workers = ThreadPoolExecutor(options.parallel_statements, "sql")
        self._boxes: dict[str, StateBox] = {}
        self._seeds: dict[str, _Seed] = {}
        self._seeding = asyncio.Lock()
        self._reaped_at_start = 0

    def lock(self) -> None:
        """Take the folder; see `Backend.lock`."""
        self._folder.lock()

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        self.lock()
        await asyncio.to_thread(self._prepare)
        return BackendInfo(
            backend="state",
            isolation="state",
            features=frozenset({Feature.SNAPSHOTS, Feature.WARM_POOL}),
            detail="isolates databases, not programs: statements run inside the manager",
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> StateBox:
        """Clone the seed; see `Backend.create`."""
        seed = await self._seed(spec.template.rootfs)
        source = spec.snapshot or seed.path
        path = self._boxes_dir / f"{spec.sandbox_id}.sqlite"
        size = await self._in_worker(lambda: source.stat().st_size)
        if size > spec.limits.disk_bytes:
            raise InvalidArgument(
                f"limits.disk_bytes: found {spec.limits.disk_bytes}; the database starts with {size}"
            )
        copying = asyncio.get_running_loop().run_in_executor(
            self._workers, shutil.copyfile, source, path
        )
        try:
            await asyncio.shield(copying)
        except BaseException as error:  # also when cancelled: nothing may be left
            await asyncio.wait([copying])
            remove_database(path)
            if isinstance(error, OSError):
                raise Unavailable(f"the database could not be cloned: {error}") from error
            raise
        box = StateBox(
            path,
            rootfs_digest=seed.digest,
            max_bytes=spec.limits.disk_bytes,
            workers=self._workers,
            has_room=self._has_room,
            on_destroyed=lambda: self._boxes.pop(spec.sandbox_id, None),
        )
        self._boxes[spec.sandbox_id] = box
        return box

    async def reap(self, known: frozenset[str]) -> int:
        """Remove databases of nobody; see `Backend.reap`."""
        before, self._reaped_at_start = self._reaped_at_start, 0
        return before + await asyncio.to_thread(self._remove_unknown, known)

    def live_count(self) -> int:
        """Count database files; see `Backend.live_count`."""
        return sum(1 for _ in self._boxes_dir.glob("*.sqlite"))

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        for box in list(self._boxes.values()):
            await box.destroy()
        await asyncio.to_thread(self._workers.shutdown)
        self._folder.release()

    def _prepare(self) -> None:
        for folder in (self._boxes_dir, self._seeds_dir, self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self._reaped_at_start = self._remove_unknown(frozenset())
        for left in self._temporary.iterdir():
            left.unlink()
        with closing(sqlite3.connect(":memory:")) as connection:
            # Both hold for the whole process. SQLite has no other way to say where temporary files go.
            quoted = str(self._temporary).replace("'", "''")
            connection.execute(f"PRAGMA temp_store_directory='{quoted}'")
            connection.execute(f"PRAGMA hard_heap_limit={self._options.heap_mib * MIB}")

    def _remove_unknown(self, known: frozenset[str]) -> int:
        strangers = [
            path
            for path in self._boxes_dir.glob("*.sqlite")
            if path.stem not in known and path.stem not in self._boxes
        ]
        for path in strangers:
            remove_database(path)
        return len(strangers)

    def _has_room(self) -> bool:
        status = os.statvfs(self._temporary)
        return status.f_bavail * status.f_frsize >= self._options.reserve_mib * MIB

    async def _seed(self, rootfs: str) -> _Seed:
        async with self._seeding:
            return await self._in_worker(lambda: self._import_seed(rootfs))

    def _import_seed(self, rootfs: str) -> _Seed:
        """Return our own copy of a seed, made at its first use and again when the file has changed.

        Raises:
            FailedPrecondition: it is no database and no script that makes one.
        """
        if rootfs in ("", _EMPTY):
            return self._imported("empty", b"", lambda path: path.touch())
        source = Path(rootfs)
        try:
            status = source.stat()
            key = f"{rootfs}\0{status.st_mtime_ns}\0{status.st_size}"
            if key in self._seeds:
                return self._seeds[key]
            content = source.read_bytes()
            if source.suffix == ".sql":
                return self._imported(
                    key, content, lambda path: _run_script(path, content.decode())
                )
            if not content.startswith(_MAGIC):
                raise ValueError(
                    "it is neither an SQLite file nor a script whose name ends in .sql"
                )
            return self._imported(key, content, lambda path: copy_database(source, path))
        except (OSError, ValueError, sqlite3.Error) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise FailedPrecondition(
                f"template.rootfs {rootfs!r}: {text}; right are an SQLite file, a .sql script, and "
                f"{_EMPTY!r} for an empty database"
            ) from error

    def _imported(self, key: str, content: bytes, make: Callable[[Path], object]) -> _Seed:
        digest = hashlib.sha256(content).hexdigest()
        path = self._seeds_dir / f"{digest}.sqlite"
        if not path.exists():
            unfinished = self._temporary / path.name
            remove_database(unfinished)
            make(unfinished)
            with closing(sqlite3.connect(unfinished)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # a clone is one file
            unfinished.rename(path)
        self._seeds[key] = _Seed(path=path, digest=f"sha256:{digest}")
        return self._seeds[key]

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)


def _run_script(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
