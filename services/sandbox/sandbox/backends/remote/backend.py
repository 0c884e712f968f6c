"""The backend `remote`: micro-VMs of a service with the E2B API, somewhere else.

What such a service does to its callers decides the shape of this: it limits how fast sandboxes may be asked for,
answers late or not at all, and goes on charging for a sandbox that nobody remembers. So creations pass a token bucket,
each call has its deadline, every sandbox bears our tags and ends by itself soon after we stop extending it, a creation
whose end is not known is looked for by its tag and ended, and what bears our tags and is in no table is ended at start
and on every round of the reaper.
"""

import asyncio
import hashlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.backends.folder import StateFolder
from sandbox.backends.protocol import BackendInfo
from sandbox.backends.remote.access import check_url, internet, read_key
from sandbox.backends.remote.api import ListedVm, RemoteApi, Uncertain, Vm
from sandbox.backends.remote.box import RemoteBox
from sandbox.backends.remote.envd import ENVD_PORT, Envd
from sandbox.backends.remote.pacing import TokenBucket
from sandbox.backends.remote.snapshots import SavedSnapshots
from sandbox.settings import RemoteOptions
from sandbox.types import BoxSpec, Feature
from servicekit.errors import HoneError, ResourceExhausted

log = logging.getLogger(__name__)

_MANAGER, _SANDBOX = "hone_manager", "hone_sandbox"
"""Tags: which manager made it, and which of our sandboxes it is."""

_PARALLEL_CALLS = 32
_LIFETIME_MARGIN_SECONDS = 60
_CLOSE_SECONDS = 30.0
_UNDO_SECONDS = 1.0
"""How long a creation that was cancelled waits until it is undone; then that goes on by itself."""


class RemoteBackend:
    """Makes micro-VMs at a service."""

    def __init__(
        self,
        data_dir: Path,
        options: RemoteOptions,
        *,
        random_source: random.Random,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keeps its name, the ids of what it made and its snapshots' names below `data_dir`.

        Args:
            data_dir: the manager's folder.
            options: of the service.
            random_source: makes the jitter.
            clock: seconds since the epoch.
            monotonic: seconds that only grow.
        """
        self._folder = StateFolder(data_dir)
        self._ids_dir = self._folder.path / "remote" / "ids"
        self._options = options
        self._clock = clock
        self._bucket = TokenBucket(
            options.creates_per_second,
            burst=max(1, int(options.creates_per_second)),
            random_source=random_source,
            clock=monotonic,
        )
        self._boxes: dict[str, RemoteBox] = {}
        self._ends: dict[str, float] = {}
        """When the service ends each, and never later than its lifetime allows."""
        self._deadlines: dict[str, float] = {}
        self._making: set[str] = set()
        self._alive: set[str] = set()
        """Ids of the service that exist as far as we know, with or without a box."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls = asyncio.Semaphore(_PARALLEL_CALLS)
        self._reaped_at_start = 0
        self._session: aiohttp.ClientSession | None = None
        self._api_or_none: RemoteApi | None = None
        self._snapshots_or_none: SavedSnapshots | None = None
        self._instance = ""

    def lock(self) -> None:
        """Take the folder; see `Backend.lock`."""
        self._folder.lock()

    async def start(self) -> BackendInfo:
        """Get ready; see `Backend.start`."""
        self.lock()
        self._instance = self._folder.instance()
        self._ids_dir.mkdir(parents=True, exist_ok=True)
        options = self._options
        for name, url in (("api_url", options.api_url), ("envd_url", options.envd_url)):
            check_url(f"remote.{name}", url)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        self._api_or_none = RemoteApi(
            self._session,
            url=options.api_url,
            api_key=read_key(options.api_key_file),
            call_seconds=options.call_seconds,
            create_seconds=options.create_seconds,
        )
        self._snapshots_or_none = SavedSnapshots(
            self._folder.path / "remote" / "snapshots",
            self._api,
            lambda: f"hone-{self._instance}-{uuid.uuid4().hex}",
        )
        self._reaped_at_start = await self._end_remains()
        return BackendInfo(
            backend="remote",
            isolation="remote",
            features=frozenset(Feature),
            detail="sizes are the service's template's: limits of a sandbox are not applied there",
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> RemoteBox:
        """Make a sandbox; see `Backend.create`."""
        template = spec.template.image or self._options.template
        saved = None
        if spec.snapshot is not None:
            saved = await asyncio.to_thread(SavedSnapshots.read, spec.snapshot)
            template = saved.template
        deadline = self._clock() + spec.lifetime_seconds + _LIFETIME_MARGIN_SECONDS
        wait = self._bucket.wait_seconds()
        if wait > self._options.pace_seconds:
            raise ResourceExhausted(
                f"the service takes {self._options.creates_per_second:g} creations a second; the next "
                f"is free in {wait:.1f} s",
                reason="REMOTE_PACE",
                retry_after_seconds=wait,
            )
        self._making.add(spec.sandbox_id)
        try:
            await self._bucket.take()
            box = await self._make(spec, template, deadline, on_lost)
        finally:
            self._making.discard(spec.sandbox_id)
        if saved is not None:
            box.rootfs_digest = saved.rootfs_digest
        return box

    async def reap(self, known: frozenset[str]) -> int:
        """End strangers, extend what lives, find what is gone; see `Backend.reap`."""
        reaped, self._reaped_at_start = self._reaped_at_start, 0
        try:
            reaped += await self._end_strangers(known)
        except HoneError as error:
            log.warning("sandboxes cannot be listed", extra={"error": error.message})
        await asyncio.gather(*(self._keep(box) for box in list(self._boxes.values())))
        await self._snapshots.sweep()
        return reaped

    def live_count(self) -> int:
        """Count the sandboxes that the service has; see `Backend.live_count`."""
        return len(self._alive)

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()  # what they were to end is ended at the next start, or by its own time
            await asyncio.gather(*late, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._folder.release()

    async def exists(self, remote_id: str) -> bool:
        """Say whether the service still has it; see `Host`."""
        return await self._api.exists(remote_id)

    async def save(self, box: RemoteBox, target: Path) -> bool:
        """Save a file system; see `Host`."""
        return await self._snapshots.save(box.remote_id, box.rootfs_digest, target)

    async def end(self, box: RemoteBox) -> None:
        """End a sandbox; see `Host`. Where the service does not answer the reaper does it."""
        self._boxes.pop(box.sandbox_id, None)
        self._ends.pop(box.sandbox_id, None)
        self._deadlines.pop(box.sandbox_id, None)
        await self._end_all([box.remote_id])
        if box.remote_id not in self._alive:
            await asyncio.to_thread(self._forget_id, box.sandbox_id)

    async def _make(
        self, spec: BoxSpec, template: str, deadline: float, on_lost: Callable[[str], None]
    ) -> RemoteBox:
        seconds = self._grant(deadline)
        asked_at = self._clock()
        asking = self._spawn(
            self._api.create(
                template=template,
                metadata=self._tags(spec, deadline),
                seconds=seconds,
                internet=internet(spec.network_profile),
            )
        )
        try:
            vm = await asyncio.shield(asking)
        except asyncio.CancelledError:
            undoing = self._spawn(self._undo(asking, spec.sandbox_id))
            await asyncio.wait([undoing], timeout=_UNDO_SECONDS)
            raise
        except Uncertain:
            self._spawn(self._undo(asking, spec.sandbox_id))
            raise
        except ResourceExhausted as error:
            self._bucket.hold(error.retry_after_seconds or 0.0)
            raise
        self._alive.add(vm.remote_id)
        box = self._box(spec, vm, on_lost)
        try:
            await asyncio.to_thread(self._note_id, spec.sandbox_id, vm.remote_id)
            await box.prepare()
        except BaseException:  # also when cancelled: nothing may be left
            await box.destroy()
            raise
        self._boxes[spec.sandbox_id] = box
        self._ends[spec.sandbox_id] = asked_at + seconds
        self._deadlines[spec.sandbox_id] = deadline
        return box

    def _box(self, spec: BoxSpec, vm: Vm, on_lost: Callable[[str], None]) -> RemoteBox:
        assert self._session is not None
        options = self._options
        envd = Envd(
            self._session,
            url=options.envd_url.format(
                port=ENVD_PORT, sandbox_id=vm.remote_id, domain=vm.domain or options.domain
            ),
            remote_id=vm.remote_id,
            access_token=vm.access_token,
            user=options.user,
            call_seconds=options.call_seconds,
        )
        named = f"{options.api_url} {vm.template_id}"
        return RemoteBox(
            spec.sandbox_id,
            vm,
            envd,
            host=self,
            rootfs_digest=f"sha256:{hashlib.sha256(named.encode()).hexdigest()}",
            call_seconds=options.call_seconds,
            new_mark=lambda: uuid.uuid4().hex,
            on_lost=on_lost,
        )

    def _tags(self, spec: BoxSpec, deadline: float) -> dict[str, str]:
        owner = spec.owner
        return {
            _MANAGER: self._instance,
            _SANDBOX: spec.sandbox_id,
            "hone_rollout": owner.rollout_id if owner else "",
            "hone_run": owner.run_id if owner else "",
            "hone_purpose": str(owner.purpose) if owner else "",
            "hone_deadline": datetime.fromtimestamp(deadline, UTC).isoformat(timespec="seconds"),
        }

    def _grant(self, deadline: float) -> int:
        """Return for how long the service is to keep a sandbox from now on."""
        return max(1, int(min(self._options.grant_seconds, deadline - self._clock())))

    async def _end_strangers(self, known: frozenset[str]) -> int:
        before = set(self._alive)
        listed = await self._api.list({_MANAGER: self._instance})
        ended = before - self._alive  # while the list was on its way
        found = [vm for vm in listed if vm.remote_id not in ended]
        self._alive = {vm.remote_id for vm in found} | (self._alive - before)
        strangers = [vm.remote_id for vm in found if self._is_stranger(vm, known)]
        await self._end_all(strangers)
        return len(strangers)

    async def _keep(self, box: RemoteBox) -> None:
        """Extend a sandbox that the service would end soon, now or in the next round; note it where it is gone."""
        try:
            await self._extend(box)
        except HoneError as error:
            extra = {"id": box.sandbox_id, "error": error.message}
            log.warning("sandbox not extended yet", extra=extra)

    async def _extend(self, box: RemoteBox) -> None:
        end = self._ends.get(box.sandbox_id)
        if end is None:
            return
        missing = box.remote_id not in self._alive  # by a list that may be older than the sandbox
        if missing and not await self._api.exists(box.remote_id):
            box.lose()
            return
        self._alive.add(box.remote_id)
        if end - self._clock() > self._options.grant_seconds / 2:
            return
        seconds = self._grant(self._deadlines[box.sandbox_id])
        asked_at = self._clock()
        async with self._calls:
            lives = await self._api.extend(box.remote_id, seconds)
        if not lives:
            box.lose()
        elif box.sandbox_id in self._ends:
            self._ends[box.sandbox_id] = asked_at + seconds

    async def _undo(self, asking: asyncio.Task[Vm], sandbox_id: str) -> None:
        """End what a creation made, or makes yet, that nobody waits for any more."""
        try:
            vm = await asking
        except HoneError:
            listed = await self._api.list({_MANAGER: self._instance, _SANDBOX: sandbox_id})
            await self._end_all(vm.remote_id for vm in listed)
            return  # one that appears later still is a stranger to the reaper
        await self._end_all([vm.remote_id])

    async def _end_remains(self) -> int:
        """End what an earlier manager of this folder left; return how many there were."""
        listed = await self._api.list({_MANAGER: self._instance})
        noted = await asyncio.to_thread(self._noted_ids)
        remains = {vm.remote_id for vm in listed}
        await self._end_all(remains | set(noted.values()))
        for sandbox_id, remote_id in noted.items():
            if remote_id not in self._alive:
                self._forget_id(sandbox_id)
        return len(remains)

    async def _end_all(self, remote_ids: Iterable[str]) -> None:
        await asyncio.gather(*(self._end(remote_id) for remote_id in remote_ids))

    async def _end(self, remote_id: str) -> None:
        self._alive.add(remote_id)
        try:
            async with self._calls:
                await self._api.delete(remote_id)
        except HoneError as error:
            log.warning("sandbox not ended yet", extra={"id": remote_id, "error": error.message})
            return
        self._alive.discard(remote_id)

    def _is_stranger(self, vm: ListedVm, known: frozenset[str]) -> bool:
        sandbox_id = vm.metadata.get(_SANDBOX, "")
        box = self._boxes.get(sandbox_id)
        if box is not None:
            return box.remote_id != vm.remote_id  # made twice: the reply to the first was lost
        return sandbox_id not in known and sandbox_id not in self._making

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HoneError):
            log.error("background work failed", exc_info=error)

    def _note_id(self, sandbox_id: str, remote_id: str) -> None:
        (self._ids_dir / sandbox_id).write_text(remote_id, encoding="utf-8")

    def _forget_id(self, sandbox_id: str) -> None:
        (self._ids_dir / sandbox_id).unlink(missing_ok=True)

    def _noted_ids(self) -> dict[str, str]:
        return {path.name: path.read_text(encoding="utf-8") for path in self._ids_dir.iterdir()}

    @property
    def _api(self) -> RemoteApi:
        assert self._api_or_none is not None, "not started"
        return self._api_or_none

    @property
    def _snapshots(self) -> SavedSnapshots:
        assert self._snapshots_or_none is not None, "not started"
        return self._snapshots_or_none
