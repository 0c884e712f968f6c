"""The table of sandboxes: makes them, destroys them, and keeps the journal and the event log in step with both.

The order is what makes a crash harmless. Creating: write the record, make the sandbox, wait for the record to be on
disk, tell the log, answer. Destroying: end everything, write that nothing is left, tell the log; telling is repeated
until it succeeds, across restarts.
"""

import asyncio
import logging
import statistics
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sandbox.admission import Admission
from sandbox.backends.protocol import Backend, BackendInfo, Box, BoxLost
from sandbox.entry import Created, Entry
from sandbox.events import Events
from sandbox.leases import Lease
from sandbox.records import Records, SandboxRecord
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import BoxKey, BoxSpec, Cause, CreateSpec, Purpose, Stats
from servicekit.errors import DeadlineExceeded, FailedPrecondition, HoneError, NotFound, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

_MEASURED_CREATES = 1000


class Fleet:
    """Owns every sandbox; alone makes and destroys."""

    def __init__(
        self,
        *,
        backend: Backend,
        records: Records,
        events: Events,
        admission: Admission,
        provision_seconds: float,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """Owns nothing until `start`.

        Args:
            backend: Makes the sandboxes.
            records: Outlives this process.
            events: Tells the suite.
            admission: Says whether there is room.
            provision_seconds: How long one sandbox may take to become ready.
            clock: Seconds since the epoch.
            new_id: Makes sandbox ids, all of one length.
        """
        self._backend = backend
        self._records = records
        self._events = events
        self._admission = admission
        self._provision_seconds = provision_seconds
        self._clock = clock
        self._new_id = new_id
        self._info: BackendInfo | None = None
        self._entries: dict[str, Entry] = {}
        self._by_key: dict[BoxKey, Entry] = {}
        self._creating: dict[BoxKey, asyncio.Task[Entry]] = {}
        self._making_ids: set[str] = set()
        self._dying: dict[str, Entry] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._create_seconds: deque[float] = deque(maxlen=_MEASURED_CREATES)
        self._created_count = 0
        self._destroyed_count = 0
        self._orphans_reaped_count = 0

    async def start(self) -> BackendInfo:
        """Start the backend, clear away what a dead manager left, and tell what was lost with it."""
        self._info = await self._backend.start()
        await self.reap()
        return self._info

    async def obtain(self, spec: CreateSpec, epoch: int) -> Created:
        """Make the sandbox of a key, or return the one that lives or is being made.

        A caller that gives up does not stop it: it may come back, and otherwise the idle lease ends it.
        """
        entry = self._by_key.get(spec.key)
        if entry is not None:
            entry.lease.renew()
            return Created(info=entry.info(), created=False)
        task = self._creating.get(spec.key)
        joined = task is not None
        if task is None:
            self._refuse_if_over(spec.key)
            task = self.spawn(self._provision(spec, epoch))
            self._creating[spec.key] = task
            task.add_done_callback(lambda _: self._creating.pop(spec.key, None))
        entry = await asyncio.shield(task)
        return Created(info=entry.info(), created=not joined)

    def find(self, sandbox_id: str) -> Entry | SandboxRecord | None:
        """Return a sandbox that lives, or the record of one that is gone."""
        dying = self._dying.get(sandbox_id)
        if dying is not None:
            return dying.record_with(dying.cause or Cause.REQUESTED)
        return self._entries.get(sandbox_id) or self._records.get(sandbox_id)

    def entries(self) -> list[Entry]:
        """Return all live sandboxes."""
        return list(self._entries.values())

    async def destroy(self, entry: Entry, cause: Cause) -> None:
        """End a sandbox and all that runs in it; whoever comes second waits for the first."""
        if entry.destroying is None:
            entry.cause = cause
            sandbox_id = entry.record.sandbox_id
            del self._entries[sandbox_id]
            del self._by_key[entry.record.key]
            self._dying[sandbox_id] = entry
            entry.destroying = self.spawn(self._unmake(entry, cause))
        await asyncio.shield(entry.destroying)

    async def end_rollout(self, rollout_id: str) -> None:
        """Destroy a rollout's sandboxes because its outcome is known, and make none for it again."""
        self._records.end_rollout(rollout_id)
        making = [task for key, task in self._creating.items() if key.rollout_id == rollout_id]
        if making:
            await asyncio.wait(making)  # each sees the end itself and undoes what it made
        doomed = [e for e in self.entries() if e.record.key.rollout_id == rollout_id]
        await asyncio.gather(*(self.destroy(entry, Cause.OUTCOME) for entry in doomed))
        await self._records.sync()

    async def expire(self) -> None:
        """Destroy what is idle too long or past its lifetime."""
        expired = [(entry, entry.lease.expired()) for entry in self.entries()]
        await asyncio.gather(
            *(self.destroy(entry, cause) for entry, cause in expired if cause is not None)
        )

    async def reap(self) -> None:
        """Remove what belongs to no sandbox of the table, and tell what has not been told."""
        known = frozenset(self._making_ids) | frozenset(self._entries) | frozenset(self._dying)
        reaped = await self._backend.reap(known)
        self._orphans_reaped_count += reaped
        if reaped:
            log.warning("orphans reaped", extra={"count": reaped})
        for record in self._records.untold():
            if not await self._tell_destroyed(record):
                break  # the log cannot be reached; the next round tries again

    async def destroy_all(self, cause: Cause) -> None:
        """Destroy every sandbox."""
        if self._creating:
            await asyncio.wait(list(self._creating.values()))
        await asyncio.gather(*(self.destroy(entry, cause) for entry in self.entries()))

    async def close(self) -> None:
        """Destroy what is left because this manager ends, and stop the backend."""
        await self.destroy_all(Cause.MANAGER_LOST)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._backend.close()
        self._records.close()

    def stats(self) -> Stats:
        """Count."""
        assert self._info is not None
        times = sorted(self._create_seconds)
        return Stats(
            live_count=self._backend.live_count(),
            expected_count=len(self._entries) + len(self._making_ids) + len(self._dying),
            created_count=self._created_count,
            destroyed_count=self._destroyed_count,
            orphans_reaped_count=self._orphans_reaped_count,
            backend=self._info.backend,
            isolation=self._info.isolation,
            create_p50_seconds=statistics.median(times) if times else 0.0,
            create_p95_seconds=times[int(0.95 * (len(times) - 1))] if times else 0.0,
        )

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that outlives its caller; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HoneError):
            log.error("background work failed", exc_info=error)

    def _refuse_if_over(self, key: BoxKey) -> None:
        if self._records.has_ended(key.rollout_id):
            raise FailedPrecondition(
                f"rollout {key.rollout_id} has ended; it gets no other sandbox",
                reason="ROLLOUT_ENDED",
            )
        last = self._records.last_of(key)
        record = self.find(last.sandbox_id) if last is not None else None
        if not isinstance(record, SandboxRecord):
            return
        if record.cause is Cause.MANAGER_LOST:
            raise gone(record)
        if key.purpose is Purpose.AGENT:
            raise FailedPrecondition(
                f"rollout {key.rollout_id} had sandbox {record.sandbox_id}, destroyed with cause "
                f"{record.cause}; its state is gone, start a new attempt",
                reason="SANDBOX_ENDED",
            )

    async def _provision(self, spec: CreateSpec, epoch: int) -> Entry:
        begun = self._clock()
        self._admission.reserve(spec.limits.memory_bytes)
        try:
            async with self._admission.turn():
                entry = await self._make(spec, epoch, begun)
        except BaseException:  # also when cancelled: the promise goes back in any case
            self._admission.release(spec.limits.memory_bytes)
            raise
        try:
            await self._records.sync()
            if self._records.has_ended(spec.key.rollout_id):
                self._refuse_if_over(spec.key)
            await self._events.created(entry.info())
        except HoneError:
            await self.destroy(entry, Cause.CANCELLED)
            raise
        if entry.cause is not None:
            raise gone(entry.record)  # lost, or its rollout ended, while it was being told
        self._created_count += 1
        self._create_seconds.append(entry.provision_seconds)
        return entry

    async def _make(self, spec: CreateSpec, epoch: int, begun: float) -> Entry:
        """Make one sandbox and put it into the table; on failure nothing is left."""
        assert self._info is not None
        sandbox_id = self._new_id()
        record = SandboxRecord(
            sandbox_id=sandbox_id,
            key=spec.key,
            run_id=spec.run_id,
            epoch=epoch,
            trace_parent=spec.trace_parent,
        )
        self._records.begin(record)
        self._making_ids.add(sandbox_id)
        try:
            async with asyncio.timeout(self._provision_seconds):
                box = await self._backend.create(
                    BoxSpec(sandbox_id=sandbox_id, limits=spec.limits), self._on_lost
                )
                await _fill(box, spec)
        except BaseException as error:  # also when cancelled: the record must not stay open
            self._records.finish(sandbox_id, Cause.CANCELLED, told=True)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"a sandbox was not ready within {self._provision_seconds:g} s",
                    reason="PROVISION_TIMEOUT",
                ) from error
            raise
        finally:
            self._making_ids.discard(sandbox_id)
        entry = Entry(
            record=record,
            box=box,
            lease=Lease(
                idle_seconds=spec.idle_seconds,
                lifetime_seconds=spec.lifetime_seconds,
                clock=self._clock,
            ),
            backend=self._info,
            env={**DEFAULT_ENV, **spec.env},
            memory_bytes=spec.limits.memory_bytes,
            create_time=begun,
            provision_seconds=self._clock() - begun,
        )
        self._entries[sandbox_id] = entry
        self._by_key[spec.key] = entry
        return entry

    async def _unmake(self, entry: Entry, cause: Cause) -> None:
        await entry.box.destroy()
        self._admission.release(entry.memory_bytes)
        record = self._records.finish(entry.record.sandbox_id, cause)
        del self._dying[entry.record.sandbox_id]
        self._destroyed_count += 1
        await self._tell_destroyed(record)

    async def _tell_destroyed(self, record: SandboxRecord) -> bool:
        try:
            await self._events.destroyed(record)
        except HoneError as error:
            extra = {"sandbox_id": record.sandbox_id, "error": error.message}
            if error.retryable:
                log.warning("sandbox_destroyed not told yet; it is tried again", extra=extra)
                return False
            log.error("sandbox_destroyed cannot be told", extra=extra)
        self._records.mark_told(record.sandbox_id)
        return True

    def _on_lost(self, sandbox_id: str) -> None:
        entry = self._entries.get(sandbox_id)
        if entry is not None:
            log.error("sandbox lost", extra={"sandbox_id": sandbox_id})
            self.spawn(self.destroy(entry, Cause.MANAGER_LOST))


async def _fill(box: Box, spec: CreateSpec) -> None:
    """Write the files that the sandbox starts with; if that fails, nothing is left of it."""
    try:
        for file in spec.files:
            await box.write_file(file)
    except BaseException as error:  # also when cancelled
        await box.destroy()
        if isinstance(error, BoxLost):
            raise Unavailable(str(error), reason="SANDBOX_LOST") from error
        raise


def gone(record: SandboxRecord) -> HoneError:
    """Return what a call about a sandbox that is gone is answered."""
    name = f"sandbox {record.sandbox_id}"
    if record.cause is Cause.MANAGER_LOST:
        return Unavailable(
            f"{name} was lost with the process that held it; start a new attempt",
            reason="SANDBOX_LOST",
        )
    if record.cause is Cause.LIFETIME:
        return FailedPrecondition(f"{name} is past its lifetime", reason="ROLLOUT_TIMEOUT")
    return NotFound(f"{name} was destroyed, cause {record.cause}", reason="SANDBOX_DESTROYED")
