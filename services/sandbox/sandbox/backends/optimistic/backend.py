"""The backend `optimistic`: environments that rollouts share, made by another backend; weaker and cheaper.

Rollouts that only look do not disturb one another, and one environment serves many of them. Whether they only looked is
found out afterwards, see `room`; a rollout of which that is not certain is polluted, and the grader gives it
no vote. Nothing that a command leaves running outlives it. It is never chosen for you: the isolation level is called
optimistic(...) wherever it is shown.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox.backends.optimistic.marks import Observer
from sandbox.backends.optimistic.room import Kind, Room
from sandbox.backends.protocol import Backend, BackendInfo, Box, BoxLost
from sandbox.settings import OptimisticOptions
from sandbox.types import (
    MIB,
    BoxFile,
    BoxSpec,
    Chunk,
    Command,
    ExecOutcome,
    Feature,
    FileContent,
    FileEntry,
    Owner,
)
from servicekit.errors import FailedPrecondition, HoneError, Unavailable

log = logging.getLogger(__name__)

_ROOM_SECONDS = 24 * 3600.0
"""Longest life of an environment; no sandbox may live longer."""

_NEEDED = frozenset({Feature.FILES, Feature.ARCHIVES})


class OptimisticBackend:
    """Lets rollouts share what another backend makes."""

    def __init__(
        self,
        inner: Backend,
        data_dir: Path,
        options: OptimisticOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shares sandboxes of `inner`; keeps files below `data_dir`/optimistic while it compares."""
        self._inner = inner
        self._scratch = data_dir.absolute() / "optimistic"
        self._options = options
        self._clock = clock
        self._observer = Observer(
            self._scratch, skip=frozenset(options.skip), max_bytes=options.max_archive_mib * MIB
        )
        self._rooms: dict[str, Room] = {}
        self._making: set[str] = set()
        self._placing = asyncio.Lock()
        self._on_lost: dict[str, Callable[[str], None]] = {}

    def lock(self) -> None:
        """Take the inner backend's state; see `Backend.lock`."""
        self._inner.lock()

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        info = await self._inner.start()
        lacking = _NEEDED - info.features
        if lacking:
            raise FailedPrecondition(
                f"optimistic.inner: the backend {info.backend} has no {', '.join(sorted(lacking))}; "
                "without these nobody can tell whether an environment changed"
            )
        self._scratch.mkdir(parents=True, exist_ok=True)
        for left in self._scratch.iterdir():
            left.unlink()
        shared = "environments are shared: rollouts during which one changed are masked as polluted"
        return BackendInfo(
            backend="optimistic",
            isolation=f"optimistic({info.isolation})",
            features=_NEEDED,
            detail="; ".join(text for text in (shared, info.detail) if text),
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> "SharedBox":
        """Let a rollout into an environment; see `Backend.create`."""
        self._on_lost[spec.sandbox_id] = on_lost
        try:
            async with self._placing:
                room = await self._place(spec)
        except BaseException:  # also when cancelled: it is in no environment
            del self._on_lost[spec.sandbox_id]
            raise
        return SharedBox(spec.sandbox_id, room, self._leave)

    async def reap(self, known: frozenset[str]) -> int:
        """Remove the inner backend's remains, and empty environments of no use; see `Backend.reap`."""
        async with self._placing:  # an empty one may be about to be joined
            for room in list(self._rooms.values()):
                try:
                    await self._end_if_useless(room)
                except (
                    HoneError
                ) as error:  # it is in no table any more: the inner backend's reaper ends it
                    log.warning("environment not ended yet", extra={"error": error.message})
        return await self._inner.reap(frozenset(self._rooms) | frozenset(self._making))

    def live_count(self) -> int:
        """Count rollouts in environments, and environments that are in no table; see `Backend.live_count`."""
        members = sum(len(room.members) for room in self._rooms.values())
        return members + max(0, self._inner.live_count() - len(self._rooms) - len(self._making))

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        for room in list(self._rooms.values()):
            await self._end(room)
        await self._inner.close()

    async def _place(self, spec: BoxSpec) -> Room:
        """Let a rollout into an environment that is as it was made, a fresh one if there is none."""
        kind = _kind(spec)
        for room in list(self._rooms.values()):
            fits = room.kind == kind and self._clock() + spec.lifetime_seconds <= room.end
            if fits and room.is_usable:
                try:
                    if await room.join(spec.sandbox_id):
                        return room
                except BoxLost:
                    pass  # whoever is in it is told by `_room_lost`
                await self._end_if_useless(room)
        room = await self._make(spec, kind)
        try:
            await room.join(spec.sandbox_id)
        except BoxLost as error:
            await self._end(room)
            raise Unavailable(f"the environment died at once: {error}") from error
        return room

    async def _make(self, spec: BoxSpec, kind: Kind) -> Room:
        room_id = f"room_{uuid.uuid4().hex}"
        inner = replace(spec, sandbox_id=room_id, lifetime_seconds=_ROOM_SECONDS, owner=None)
        self._making.add(room_id)
        try:
            box = await self._inner.create(inner, self._room_lost)
        finally:
            self._making.discard(room_id)
        room = Room(
            room_id,
            kind,
            box,
            self._observer,
            share=self._options.share,
            end=self._clock() + _ROOM_SECONDS,
        )
        self._rooms[room_id] = room
        return room

    async def _leave(self, member: str, room: Room) -> None:
        try:
            await room.leave(member)
        finally:
            self._on_lost.pop(member, None)
            await self._end_if_useless(room)

    async def _end_if_useless(self, room: Room) -> None:
        """End an environment that is empty, unless it is clean and the only such one: that waits for who comes next."""
        if room.members:
            return
        stands_in = any(
            other.is_usable and (other.kind == room.kind or not other.members)
            for other in self._rooms.values()
            if other is not room
        )
        if stands_in or not room.is_usable or self._clock() >= room.end:
            await self._end(room)

    async def _end(self, room: Room) -> None:
        room.close()  # somebody may be about to join it
        if self._rooms.pop(room.room_id, None) is not None:
            await room.box.destroy()

    def _room_lost(self, room_id: str) -> None:
        room = self._rooms.get(room_id)
        if room is None:
            return
        room.close()
        for member in room.members:
            self._on_lost[member](member)


def _kind(spec: BoxSpec) -> Kind:
    template = spec.template
    return (
        template.name,
        template.rootfs,
        template.image,
        spec.limits,
        spec.network_profile,
        spec.owner.purpose if spec.owner else None,
    )


class SharedBox:
    """A rollout's place in an environment."""

    def __init__(
        self, sandbox_id: str, room: Room, leave: Callable[[str, Room], Coroutine[Any, Any, None]]
    ) -> None:
        """Works in `room` until it is destroyed; `leave` lets it out."""
        self.sandbox_id = sandbox_id
        self.room = room
        self._leave = leave
        self._running: set[str] = set()
        self._destroying: asyncio.Task[None] | None = None

    @property
    def rootfs_digest(self) -> str:
        """What the environment started from."""
        return self.room.box.rootfs_digest

    async def claim(self, owner: Owner) -> None:
        """Do nothing; there is no warm pool: who waits in an environment would count as being there."""

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`. What it leaves running is killed with its end."""
        inner = replace(command, exec_id=self._inner_id(command.exec_id), kill_survivors=True)
        self._running.add(inner.exec_id)
        try:
            async with self._using() as box:
                outcome = await box.run(inner, env, emit)
            self._alive()  # a command that was ended with its sandbox has no result
            return outcome
        finally:
            self._running.discard(inner.exec_id)

    async def kill(self, exec_id: str) -> None:
        """End a running command of this rollout; see `Box.kill`."""
        await self.room.box.kill(self._inner_id(exec_id))

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; see `Box.write_file`."""
        async with self._using() as box:
            await box.write_file(file)

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a file; see `Box.read_file`."""
        return await self._alive().read_file(path, offset_bytes, max_bytes)

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder; see `Box.list_files`."""
        return await self._alive().list_files(path)

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        return await self._alive().stat_file(path)

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive; see `Box.unpack`."""
        async with self._using() as box:
            await box.unpack(folder, archive)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file; see `Box.pack`."""
        await self._alive().pack(path, archive, max_bytes)

    async def snapshot(self, target: Path) -> None:
        """Refuse: a snapshot would be of everybody's work."""
        raise FailedPrecondition(
            "a shared environment has no snapshots; choose another backend", reason="UNSUPPORTED"
        )

    async def polluted(self) -> bool:
        """Say whether others may have changed what this rollout saw; see `Box.polluted`."""
        return await self.room.is_polluted(self.sandbox_id)

    async def destroy(self) -> None:
        """Leave the environment; see `Box.destroy`."""
        if self._destroying is None:
            self._destroying = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._destroying)

    async def _destroy(self) -> None:
        try:
            await asyncio.gather(*(self.room.box.kill(exec_id) for exec_id in list(self._running)))
        except BoxLost:
            pass
        except HoneError as error:  # its state is looked at next, so nobody is deceived
            extra = {"id": self.sandbox_id, "error": error.message}
            log.warning("a command could not be killed", extra=extra)
        finally:
            await self._leave(self.sandbox_id, self.room)

    def _inner_id(self, exec_id: str) -> str:
        return f"{self.sandbox_id}/{exec_id}"

    def _alive(self) -> Box:
        if self._destroying is not None:
            raise BoxLost(f"sandbox {self.sandbox_id} is destroyed")
        return self.room.box

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[Box]:
        box = self._alive()
        async with self.room.in_use():
            yield box
