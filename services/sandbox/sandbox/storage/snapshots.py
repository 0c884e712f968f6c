"""Saved file systems of sandboxes, on the manager's disk: each belongs to a rollout and ends with it.

    <folder>/<rollout_id>/<snapshot_id>/state       what the backend wrote, in a form of its own
                                        about.json  where it came from, its size and its SHA-256

A snapshot appears whole, by a rename. It is removed on request, with its rollout's outcome, and when it is older than
any sandbox can be; what a dead manager left half done is removed at start.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox.refusals import rollout_ended
from sandbox.storage.spool import room_is_ours
from sandbox.types import Purpose
from servicekit.errors import (
    AlreadyExists,
    DataLoss,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)

log = logging.getLogger(__name__)

MAX_AGE_SECONDS = 86_400.0
"""The longest lifetime of a sandbox; nothing that could use an older snapshot lives."""

_SNAPSHOT_ID = re.compile(r"[a-z0-9-]{1,64}")
_UNFINISHED = ".new-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a snapshot was taken from, and so what can start from it."""

    sandbox_id: str
    purpose: Purpose
    backend: str
    template: str
    rootfs_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A saved file system."""

    rollout_id: str
    snapshot_id: str
    origin: Origin
    size_bytes: int
    sha256: str
    create_time: float
    """Seconds since the epoch."""
    path: Path


class SnapshotStore:
    """The snapshots of all rollouts."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        clock: Callable[[], float],
        has_ended: Callable[[str], bool],
    ) -> None:
        """Knows none until `open`.

        Args:
            folder: Holds them; nothing else is in it.
            max_bytes: What all together may take.
            clock: Seconds since the epoch.
            has_ended: Whether a rollout's outcome is known.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._clock = clock
        self._has_ended = has_ended
        self._snapshots: dict[tuple[str, str], Snapshot] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    @property
    def used_bytes(self) -> int:
        """What all together take."""
        return sum(snapshot.size_bytes for snapshot in self._snapshots.values())

    def open(self) -> None:
        """Find what an earlier manager saved; remove what is half done, too old, or of a rollout that has ended."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for rollout in self._folder.iterdir():
            if rollout.name.startswith(_UNFINISHED) or self._has_ended(rollout.name):
                shutil.rmtree(rollout)
                continue
            for folder in rollout.iterdir():
                snapshot = _load(folder)
                if snapshot is None:
                    log.warning("snapshot removed: broken", extra={"folder": str(folder)})
                    shutil.rmtree(folder)
                else:
                    self._snapshots[snapshot.rollout_id, snapshot.snapshot_id] = snapshot
        self._expire()

    async def save(
        self,
        rollout_id: str,
        snapshot_id: str,
        origin: Origin,
        write: Callable[[Path], Awaitable[None]],
    ) -> Snapshot:
        """Keep what `write` writes to a path, or return what was kept under this id before.

        A caller that gives up stops it, and nothing is left.

        Raises:
            AlreadyExists: the id names a snapshot of another sandbox.
            ResourceExhausted: there is no room (reason SNAPSHOTS_FULL).
            FailedPrecondition: the rollout has ended.
        """
        key = (rollout_id, snapshot_id)
        async with self._alone(key):
            found = self._snapshots.get(key)
            if found is not None:
                if found.origin.sandbox_id != origin.sandbox_id:
                    raise AlreadyExists(
                        f"snapshot {snapshot_id} was taken from {found.origin.sandbox_id}; choose another id"
                    )
                return found
            self._expire()
            self._refuse_if_full(1)
            unfinished = self._folder / f"{_UNFINISHED}{uuid.uuid4().hex}"
            with room_is_ours():
                unfinished.mkdir(parents=True)
            try:
                await write(unfinished / "state")
                size, sha256 = await asyncio.to_thread(_measure, unfinished / "state")
                self._refuse_if_full(size)
                if self._has_ended(rollout_id):
                    raise rollout_ended(rollout_id)
                snapshot = Snapshot(
                    rollout_id=rollout_id,
                    snapshot_id=snapshot_id,
                    origin=origin,
                    size_bytes=size,
                    sha256=sha256,
                    create_time=self._clock(),
                    path=self._place(*key) / "state",
                )
                with room_is_ours():
                    _write_about(unfinished, snapshot)
                    self._place(*key).parent.mkdir(exist_ok=True)
                    os.rename(unfinished, self._place(*key))
                self._snapshots[key] = snapshot
                return snapshot
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)  # renamed, it is gone

    def get(self, rollout_id: str, snapshot_id: str) -> Snapshot | None:
        """Return a snapshot, or None if there is none, or not any more."""
        return self._snapshots.get((rollout_id, snapshot_id))

    def find(self, rollout_id: str, snapshot_id: str) -> Snapshot:
        """Return a snapshot.

        Raises:
            NotFound: there is none, or not any more.
        """
        found = self._snapshots.get((rollout_id, snapshot_id))
        if found is None:
            raise NotFound(
                f"rollout {rollout_id} has no snapshot {snapshot_id!r}", reason="SNAPSHOT_UNKNOWN"
            )
        return found

    async def check(self, snapshot: Snapshot) -> None:
        """Make sure that it is what was saved.

        Raises:
            DataLoss: it is not; a new one must be taken.
            NotFound: it was removed meanwhile.
        """
        try:
            found = await asyncio.to_thread(_measure, snapshot.path)
        except FileNotFoundError:
            found = None
        if found is None:
            self.find(snapshot.rollout_id, snapshot.snapshot_id)
        if found != (snapshot.size_bytes, snapshot.sha256):
            raise DataLoss(
                f"snapshot {snapshot.snapshot_id} is not what was saved: found {found}, saved were "
                f"{snapshot.size_bytes} bytes with SHA-256 {snapshot.sha256}",
                reason="SNAPSHOT_BROKEN",
            )

    def remove(self, rollout_id: str, snapshot_id: str) -> None:
        """Remove a snapshot; one that is gone is no error."""
        if self._snapshots.pop((rollout_id, snapshot_id), None) is not None:
            shutil.rmtree(self._place(rollout_id, snapshot_id), ignore_errors=True)
            with contextlib.suppress(OSError):
                (self._folder / rollout_id).rmdir()  # where it was the last one

    def drop(self, rollout_id: str) -> None:
        """Remove all snapshots of a rollout."""
        for key in [key for key in self._snapshots if key[0] == rollout_id]:
            self.remove(*key)

    def _expire(self) -> None:
        oldest = self._clock() - MAX_AGE_SECONDS
        for key in [key for key, one in self._snapshots.items() if one.create_time < oldest]:
            self.remove(*key)

    def _refuse_if_full(self, size: int) -> None:
        if self.used_bytes + size > self._max_bytes:
            raise ResourceExhausted(
                f"the snapshots take {self.used_bytes} of {self._max_bytes} bytes; this one does not fit, "
                "delete others or wait until their rollouts end",
                reason="SNAPSHOTS_FULL",
            )

    def _place(self, rollout_id: str, snapshot_id: str) -> Path:
        return self._folder / rollout_id / snapshot_id

    @contextlib.asynccontextmanager
    async def _alone(self, key: tuple[str, str]) -> AsyncIterator[None]:
        """Let one caller at a time save under a key."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._locks.get(key) is lock:
                del self._locks[key]


def check_snapshot_id(snapshot_id: str) -> None:
    """Refuse what cannot be the id of a snapshot.

    Raises:
        InvalidArgument: it has other characters, or too many.
    """
    if not _SNAPSHOT_ID.fullmatch(snapshot_id):
        text = f"found {snapshot_id[:100]!r}; must have 1 to 64 characters of a-z, 0-9 and -"
        raise InvalidArgument(f"snapshot_id: {text}", violations={"snapshot_id": text})


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _write_about(folder: Path, snapshot: Snapshot) -> None:
    about = {
        "rollout_id": snapshot.rollout_id,
        "snapshot_id": snapshot.snapshot_id,
        "origin": asdict(snapshot.origin),
        "size_bytes": snapshot.size_bytes,
        "sha256": snapshot.sha256,
        "create_time": snapshot.create_time,
    }
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _load(folder: Path) -> Snapshot | None:
    """Read a snapshot's description; None where it is broken or lies in another's place."""
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        origin = about.pop("origin")
        origin["purpose"] = Purpose(origin["purpose"])
        snapshot = Snapshot(origin=Origin(**origin), path=folder / "state", **about)
        size = snapshot.path.stat().st_size
    except (OSError, ValueError, TypeError, KeyError):
        return None
    named = (snapshot.rollout_id, snapshot.snapshot_id, snapshot.size_bytes)
    return snapshot if named == (folder.parent.name, folder.name, size) else None
