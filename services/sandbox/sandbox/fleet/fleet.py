"""The table of sandboxes: makes them, destroys them, and keeps the journal and the event log in step with both.

The order is what makes a crash harmless. Creating: write the record, make the sandbox (or hand over one that was made
ahead), wait for the record to be on disk, tell the log, answer. Destroying: end everything, write that nothing is left,
tell the log; telling is repeated until it succeeds, across restarts.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from sandbox.backends.protocol import Backend, BackendInfo, Box, BoxLost
from sandbox.figures.alerts import Alarms
from sandbox.figures.measures import Measures
from sandbox.fleet.admission import Admission
from sandbox.fleet.creations import Creation, Creations, ended
from sandbox.fleet.entry import Created, Entry
from sandbox.fleet.events import Events
from sandbox.fleet.execs import ExecBook, ExecMemory
from sandbox.fleet.leases import Lease
from sandbox.fleet.maker import Maker
from sandbox.fleet.plans import Plans
from sandbox.fleet.pool import WarmPool
from sandbox.fleet.provisioner import Provided, Provisioner
from sandbox.fleet.records import Records, SandboxRecord
from sandbox.fleet.table import Table
from sandbox.fleet.turns import Turns
from sandbox.refusals import gone, had_one, rollout_ended, run_cancelled, stopping
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import (
    BoxKey,
    Cause,
    CreateSpec,
    ExecOutcome,
    Feature,
    Purpose,
    Stats,
    Template,
)
from servicekit.errors import FailedPrecondition, HoneError

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 1.0
"""So long the ends of leases are waited for: a destruction that takes longer keeps nothing else waiting."""

T = TypeVar("T")


class Fleet:
    """Owns every sandbox; alone makes and destroys."""

    def __init__(
        self,
        *,
        backend: Backend,
        records: Records,
        events: Events,
        admission: Admission,
        turns: Turns,
        templates: Mapping[str, Template],
        plans: Plans,
        measures: Measures,
        provision_seconds: float,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        on_rollout_end: Callable[[str], None],
    ) -> None:
        """Owns nothing until `start`.

        Args:
            backend: Makes the sandboxes.
            records: Outlives this process.
            events: Tells the suite.
            admission: Says whether there is room.
            turns: Says whose creation is next.
            templates: What is kept ready.
            plans: What is about to be needed.
            measures: Counts what happened.
            provision_seconds: How long one sandbox may take to become ready.
            clock: Seconds since the epoch.
            new_id: Makes sandbox ids, all of one length.
            on_rollout_end: Told the rollout_id when an outcome is known, its sandboxes being gone.
        """
        self._backend = backend
        self._records = records
        self._events = events
        self._admission = admission
        self._turns = turns
        self._plans = plans
        self._measures = measures
        self._alarms = Alarms(measures)
        self._clock = clock
        self._on_rollout_end = on_rollout_end
        self._info: BackendInfo | None = None
        self._table = Table()
        self._creations = Creations()
        self._exec_memory = ExecMemory()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._orphans_reaped_count = 0
        self._leaked_baseline = 0
        self._maker = Maker(
            backend=backend,
            records=records,
            provision_seconds=provision_seconds,
            new_id=new_id,
            on_lost=self._on_lost,
        )
        self._pool = WarmPool(
            templates=templates,
            plans=plans,
            maker=self._maker,
            records=records,
            admission=admission,
            turns=turns,
            clock=clock,
            spawn=self.spawn,
        )
        self._provisioner = Provisioner(
            admission=admission, turns=turns, maker=self._maker, pool=self._pool
        )

    async def start(self) -> BackendInfo:
        """Start the backend, clear away what a dead manager left, and tell what was lost with it."""
        self._info = await self._backend.start()
        await self.reap()
        self._leaked_baseline = self.stats().leaked_count
        if Feature.WARM_POOL in self._info.features:
            self._pool.open()
        return self._info

    async def obtain(self, spec: CreateSpec, epoch: int) -> Created:
        """Make the sandbox of a key, or return the one that lives or is being made.

        A caller that gives up does not stop what has begun: it may come back, and otherwise the idle lease ends it.
        """
        entry = self._table.of_key(spec.key)
        if entry is not None:
            entry.lease.renew()
            return Created(info=entry.info(), created=False)
        creation = self._creations.of_key(spec.key)
        joined = creation is not None
        if creation is None:
            self._refuse_if_over(spec.key)
            creation = self._begin(spec, epoch)
        entry = await self._creations.result(creation)
        return Created(info=entry.info(), created=not joined)

    def has(self, key: BoxKey) -> bool:
        """Say whether the sandbox of a key lives or is being made."""
        return self._table.of_key(key) is not None or self._creations.of_key(key) is not None

    def find(self, sandbox_id: str) -> Entry | SandboxRecord | None:
        """Return a sandbox that lives, or the record of one that is gone."""
        dying = self._table.dying(sandbox_id)
        if dying is not None:
            return dying.record_with(dying.cause or Cause.REQUESTED)
        return self._table.living(sandbox_id) or self._records.get(sandbox_id)

    def entries(self) -> list[Entry]:
        """Return all live sandboxes."""
        return self._table.all()

    async def destroy(self, entry: Entry, cause: Cause) -> None:
        """End a sandbox and all that runs in it; whoever comes second waits for the first."""
        if entry.destroying is None:
            entry.cause = cause
            self._table.begin_end(entry)
            entry.destroying = self.spawn(self._unmake(entry, cause))
        await asyncio.shield(entry.destroying)

    async def end_rollout(self, rollout_id: str) -> None:
        """Destroy a rollout's sandboxes because its outcome is known, and make none for its agent again.

        Where it was known before, what graders have made since stays: they look at a stored rollout again.
        """
        again = self._records.has_ended(rollout_id)
        self._records.end_rollout(rollout_id)
        under_way = []
        for creation in self._creations.of_rollout(rollout_id):
            if again and creation.spec.key.purpose is Purpose.GRADE:
                continue
            if creation.queued:
                self._creations.stop(creation, rollout_ended(rollout_id))
            else:
                under_way.append(creation)  # sees the end itself and undoes what it made
        await ended(under_way)
        doomed = self._table.of_rollout(rollout_id)
        if again:
            doomed = [entry for entry in doomed if entry.record.key.purpose is Purpose.AGENT]
        await self._destroy(doomed, Cause.OUTCOME)
        self._on_rollout_end(rollout_id)
        await self._records.sync()

    async def cancel_run(self, run_id: str) -> int:
        """Destroy a run's sandboxes and stop its creations, also those under way; return how many.

        Those that are being ended already are waited for, and not counted.
        """
        self._plans.run_finished(run_id)
        doomed = [entry for entry in self._table.all() if entry.record.run_id == run_id]
        made = {entry.record.key for entry in doomed}
        stopped = []
        for creation in self._creations.all():
            if creation.spec.run_id != run_id:
                continue
            if creation.spec.key in made:
                creation.refusal = run_cancelled(run_id)  # it is being told, and among the doomed
            else:
                self._creations.stop(creation, run_cancelled(run_id))
                stopped.append(creation)
        await ended(stopped)
        ending = [entry for entry in self._table.ending() if entry.record.run_id == run_id]
        await self._destroy([*doomed, *ending], Cause.CANCELLED)
        return len(doomed) + len(stopped)

    def prepare(self) -> None:
        """Keep ready at once what the plans need from here on."""
        self._pool.tick()

    async def expire(self) -> None:
        """Look after the pool and the figures, and destroy what is idle too long or past its lifetime."""
        self._pool.tick()
        stats = self.stats()
        self._measures.show(stats, self._leaked_baseline)
        self._alarms.check(stats.leaked_count, self._leaked_baseline)
        expired = [(entry, entry.lease.expired()) for entry in self._table.all()]
        ending = [
            self.spawn(self.destroy(entry, cause)) for entry, cause in expired if cause is not None
        ]
        if ending:
            await asyncio.wait(ending, timeout=_PATIENCE_SECONDS)

    async def reap(self) -> None:
        """Remove what belongs to no sandbox of the table, and tell what has not been told."""
        known = frozenset((*self._table.ids(), *self._maker.ids(), *self._pool.ids()))
        reaped = await self._backend.reap(known)
        self._orphans_reaped_count += reaped
        if reaped:
            log.warning("orphans reaped", extra={"count": reaped})
        for record in self._records.untold():
            if not await self._tell_destroyed(record):
                break  # the log cannot be reached; the next round tries again

    async def drain(self) -> None:
        """Turn away creations that wait for their turn, and give up the warm pool."""
        for creation in self._creations.all():
            if creation.queued:
                self._creations.stop(creation, stopping())
        await self._pool.close()

    async def destroy_all(self, cause: Cause) -> None:
        """Destroy every sandbox; those that are being ended are waited for."""
        await ended(self._creations.all())
        await self._destroy([*self._table.all(), *self._table.ending()], cause)

    async def close(self) -> None:
        """Destroy what is left because this manager ends, and stop the backend."""
        await self._pool.close()
        await self.destroy_all(Cause.MANAGER_LOST)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._backend.close()
        self._records.close()

    def note_exec(self, outcome: ExecOutcome) -> None:
        """Count a command that has ended."""
        self._measures.exec_ended(outcome.termination)

    def stats(self) -> Stats:
        """Count."""
        assert self._info is not None
        measures = self._measures
        provisioning = measures.provisioning()
        warm = self._pool.ready_count + self._pool.leaving_count + self._maker.ahead_count
        live = self._backend.live_count() - warm
        expected = len(self._table) + self._maker.owned_count
        return Stats(
            live_count=live,
            expected_count=expected,
            created_count=measures.created_count,
            destroyed_count=measures.destroyed_count,
            orphans_reaped_count=self._orphans_reaped_count,
            backend=self._info.backend,
            isolation=self._info.isolation,
            create_p50_seconds=provisioning.p50_seconds,
            create_p95_seconds=provisioning.p95_seconds,
            warm_count=self._pool.ready_count,
            queued_count=self._turns.queued_count,
            warm_hit_count=measures.warm_hit_count,
            infra_error_rate=measures.calls.share(),
            rollout_timeout_rate=measures.ends.share(),
            leaked_count=live - expected,
            polluted_count=measures.polluted_count,
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
        """Refuse an agent whose sandbox is gone: its state is too. A grading box has none that must last."""
        self._refuse_if_ended(key)
        last = self._records.last_of(key)
        record = self.find(last.sandbox_id) if last is not None else None
        if key.purpose is Purpose.AGENT and isinstance(record, SandboxRecord):
            raise gone(record) if record.cause is Cause.MANAGER_LOST else had_one(key, record)

    def _refuse_if_ended(self, key: BoxKey) -> None:
        """Refuse an agent's sandbox after the outcome; a grader may look at a stored rollout again."""
        if key.purpose is Purpose.AGENT and self._records.has_ended(key.rollout_id):
            raise rollout_ended(key.rollout_id)

    def _begin(self, spec: CreateSpec, epoch: int) -> Creation:
        creation = Creation(spec=spec, epoch=epoch, begin_time=self._clock())
        if spec.key.purpose is Purpose.AGENT:
            self._plans.used(spec.run_id)
        self._creations.begin(creation, lambda: self.spawn(self._provision(creation)))
        return creation

    async def _provision(self, creation: Creation) -> Entry:
        entry = self._enter(creation, await self._provisioner.provide(creation))
        key = creation.spec.key
        try:
            await self._records.sync()
            self._refuse_if_ended(key)
            await self._events.created(entry.info())
        except BaseException as error:  # also when cancelled: what may have been told must end
            # Whoever repeats a create that could not be told hears of a loss, not of an end of its own doing.
            unwanted = isinstance(error, asyncio.CancelledError | FailedPrecondition)
            await self.destroy(entry, Cause.CANCELLED if unwanted else Cause.MANAGER_LOST)
            raise
        if entry.cause is not None:  # it ended while it was being told
            raise creation.refusal or gone(entry.record_with(entry.cause))
        self._measures.provisioned(entry.info())
        return entry

    def _enter(self, creation: Creation, provided: Provided) -> Entry:
        """Put a sandbox that is ready into the table."""
        assert self._info is not None
        spec = creation.spec
        entry = Entry(
            record=provided.record,
            box=provided.box,
            lease=Lease(
                idle_seconds=spec.idle_seconds,
                lifetime_seconds=spec.lifetime_seconds,
                clock=self._clock,
            ),
            backend=self._info,
            env={**DEFAULT_ENV, **spec.template.env, **spec.env},
            memory_bytes=spec.limits.memory_bytes,
            create_time=creation.begin_time,
            provision_seconds=self._clock() - creation.begin_time,
            template=spec.template.name,
            warm=provided.warm,
            execs=ExecBook(self._exec_memory),
        )
        self._table.add(entry)
        return entry

    async def _destroy(self, entries: list[Entry], cause: Cause) -> None:
        await asyncio.gather(*(self.destroy(entry, cause) for entry in entries))

    async def _unmake(self, entry: Entry, cause: Cause) -> None:
        polluted = await _polluted(entry.box)
        await entry.box.destroy()
        entry.execs.forget()
        self._admission.release(entry.memory_bytes)
        record = self._records.finish(entry.record.sandbox_id, cause, polluted=polluted)
        self._table.finish_end(entry)
        self._measures.destroyed(cause, polluted=polluted)
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
        entry = self._table.living(sandbox_id)
        if entry is not None:
            log.error("sandbox lost", extra={"sandbox_id": sandbox_id})
            self.spawn(self.destroy(entry, Cause.MANAGER_LOST))
        else:
            self._pool.lost(sandbox_id)


async def _polluted(box: Box) -> bool:
    try:
        return await box.polluted()
    except BoxLost:
        return False
