"""Starts, stops and resumes runs; one run at a time has the learner.

Runs that were going when the process ended go on when it starts again: a crash is not a stop.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from learner.health.alarms import Alarm
from learner.ports import Stopped
from learner.runs.checkpoints import Choice, RolledBack
from learner.runs.dtype_choice import DtypeChoice
from learner.runs.hub import Progress, RunHub
from learner.runs.store import Run, RunAlarm, RunState, RunStore, Step, ended
from servicekit.errors import (
    AlreadyExists,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
)

log = logging.getLogger(__name__)

MAX_STARTS_WITHOUT_STEP = 5
"""A run that ends the process this often within one step is given up, so that it cannot do so for ever."""

RunJob = Callable[[Run, "RunReporter", asyncio.Event], Awaitable[dict[str, float]]]
"""Does what a run should do and returns its figures; raises Stopped when the event asked for it."""


class GoesBack(Protocol):
    """Takes runs back to checkpoints."""

    async def plan(self, run: Run, choice: Choice, request_id: str) -> RolledBack:
        """Says what it will make."""
        ...

    async def carry_out(self, run: Run, planned: RolledBack) -> None:
        """Makes it so; may be repeated."""
        ...


AnnounceEnd = Callable[[Run], Awaitable[None]]


class RunReporter:
    """Keeps a run's file and its watchers up to date while a job works."""

    def __init__(self, run: Run, store: RunStore, hub: RunHub, clock: Callable[[], float]) -> None:
        """Reports on `run`."""
        self.run = run
        self._store = store
        self._hub = hub
        self._clock = clock

    def progress(self, step: int, stage: str) -> Callable[[int, int], None]:
        """Returns a function that tells watchers the counts of a stage."""

        def tell(done: int, total: int) -> None:
            self._hub.progressed(Progress(step=step, stage=stage, done=done, total=total))

        return tell

    def dtype_chosen(self, choice: DtypeChoice) -> None:
        """Keeps with the run what `model.dtype: auto` stands for; to be told before anything uses it."""
        log.info(
            "model.dtype: auto is %s: %s",
            choice.dtype,
            choice.reason,
            extra={"run_id": self.run.run_id},
        )
        self.run = replace(self.run, dtype_choice=choice)
        self._store.save(self.run)
        self._hub.changed(self.run)

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Keeps alarms with the run; told again after a restart, they stay one each."""
        known = {(alarm.step, alarm.kind) for alarm in self.run.alarms}
        new = [alarm for alarm in alarms if (step, alarm.kind) not in known]
        if not new:
            return
        for alarm in new:
            said = {"run_id": self.run.run_id, "step": step, "alarm": alarm.kind}
            log.warning("alarm: %s", alarm.detail, extra=said)
        made = tuple(RunAlarm(kind=one.kind, step=step, detail=one.detail) for one in new)
        self.run = replace(self.run, alarms=(*self.run.alarms, *made))
        self._store.save(self.run)
        self._hub.changed(self.run)

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Keeps a finished step; told again after a restart, it stays one step."""
        if step < self.run.step:
            return
        done = Step(
            step=step, policy_version=policy_version, end_time=self._clock(), metrics=metrics
        )
        self.run = replace(
            self.run, step=step + 1, policy_version=policy_version, starts_without_step=0
        )
        self._store.append_step(self.run.run_id, done)
        self._store.save(self.run)
        self._hub.step_done(self.run, done)


class RunManager:
    """All runs of this learner."""

    def __init__(
        self,
        store: RunStore,
        job: RunJob,
        announce_end: AnnounceEnd,
        clock: Callable[[], float],
        rollbacks: GoesBack,
    ) -> None:
        """Runs `job` for each run; see the module."""
        self._store = store
        self._job = job
        self._announce_end = announce_end
        self._clock = clock
        self._rollbacks = rollbacks
        self._going_back: set[str] = set()
        self._hubs: dict[str, RunHub] = {}
        self._active: tuple[str, asyncio.Task[None], asyncio.Event] | None = None
        self._draining = False

    def start(self, name: str, request_id: str, spec_json: str) -> Run:
        """Starts a run; the same request_id gives the same run.

        Raises:
            InvalidArgument: request_id is no UUID. FailedPrecondition: another run has the learner.
        """
        unique = _uuid_of(request_id)
        run_id = f"{name}-{unique.hex[-10:]}"
        try:
            known = self._store.load(run_id)
        except NotFound:
            self._check_free()
        else:
            if known.request_id != request_id:
                raise AlreadyExists(
                    f"run {run_id} belongs to another request; use a new request_id"
                )
            return known
        run = Run(
            run_id=run_id,
            request_id=request_id,
            spec_json=spec_json,
            state=RunState.RUNNING,
            create_time=self._clock(),
        )
        self._store.save(run)
        self._launch(run)
        return run

    def resume(self, run_id: str) -> Run:
        """Goes on from the last checkpoint; a run that is going is left alone.

        Raises:
            NotFound: no such run. FailedPrecondition: it is complete, or another run has the learner.
        """
        run = self._store.load(run_id)
        if self._active is not None and self._active[0] == run_id:
            return self._hubs[run_id].run
        if run.state is RunState.COMPLETED:
            raise FailedPrecondition(
                f"run {run_id} is complete; start a new run from its adapter", reason="RUN_COMPLETE"
            )
        self._check_free()
        run = replace(run, state=RunState.RUNNING, end_time=0.0, detail="", life=run.life + 1)
        self._store.save(run)
        self._launch(run)
        return run

    async def roll_back(
        self, run_id: str, choice: Choice, request_id: str
    ) -> tuple[Run, RolledBack]:
        """Takes a run that is not going back to a checkpoint; it is stopped then, and can be resumed.

        Raises:
            InvalidArgument: request_id is no UUID. NotFound: no such run, or the checkpoint is not kept.
            FailedPrecondition: the run is going, or has nothing to go back to.
        """
        request_id = str(_uuid_of(request_id))
        run = self._store.load(run_id)
        if run.state is RunState.RUNNING or run_id in self._going_back:
            raise FailedPrecondition(
                f"run {run_id} is going; `hone stop {run_id}` first", reason="RUN_ACTIVE"
            )
        self._going_back.add(run_id)
        try:
            made = await self._rollbacks.plan(run, choice, request_id)
            if made.version <= run.rolled_back_to:
                # Carried out before, whatever the run has done since.
                return run, made
            # From here on the run is no longer complete, whatever happens.
            going = ended(run, RunState.STOPPED, at=self._clock(), detail="being rolled back")
            self._store.save(replace(going, metrics={}))
            await self._rollbacks.carry_out(run, made)
            detail = (
                f"rolled back to the weights after step {made.to_step} (policy version "
                f"{made.to_version}), which are version {made.version} now"
            )
            run = replace(
                going,
                policy_version=made.version,
                metrics={},
                detail=detail,
                rolled_back_to=made.version,
            )
            self._store.save(run)
        finally:
            self._going_back.discard(run_id)
        self.hub(run_id).changed(run)
        return run, made

    async def stop(self, run_id: str) -> Run:
        """Stops a run where it is safe and waits until it has; a run that is not going is left alone."""
        if self._active is not None and self._active[0] == run_id:
            _, task, stop = self._active
            stop.set()
            await asyncio.wait([task])
        return self._store.load(run_id)

    def resume_interrupted(self) -> None:
        """Goes on with the run that was going when the process ended."""
        for run in self._store.all():
            try:
                if run.state is RunState.RUNNING:
                    self._resume_interrupted(run)
            except OSError as error:
                log.error(
                    "the run waits for `hone train --resume`: %s",
                    self._store.explain(error),
                    extra={"run_id": run.run_id},
                )

    def _resume_interrupted(self, run: Run) -> None:
        if self._active is not None:
            detail = f"run {self._active[0]} has the learner; resume this one after it"
            self._store.save(ended(run, RunState.STOPPED, at=self._clock(), detail=detail))
        elif run.starts_without_step >= MAX_STARTS_WITHOUT_STEP:
            detail = (
                f"the learner ended {run.starts_without_step} times in step {run.step + 1} of this run; "
                "its log says why"
            )
            log.error("run given up: %s", detail, extra={"run_id": run.run_id})
            self._store.save(ended(run, RunState.FAILED, at=self._clock(), detail=detail))
        else:
            log.info("resuming the run that was going", extra={"run_id": run.run_id})
            again = replace(run, starts_without_step=run.starts_without_step + 1)
            self._store.save(again)
            self._launch(again)

    async def drain(self) -> None:
        """Ends work under way at the next safe point; the run stays running on disk and goes on at the next start."""
        self._draining = True
        if self._active is not None:
            _, task, stop = self._active
            stop.set()
            await asyncio.wait([task])

    def get(self, run_id: str) -> tuple[Run, list[Step]]:
        """Returns a run with its steps."""
        return self._store.load(run_id), self._store.steps(run_id)

    def all(self) -> list[Run]:
        """Returns every run, newest first."""
        return self._store.all()

    def hub(self, run_id: str) -> RunHub:
        """Returns where a run can be watched."""
        if run_id not in self._hubs:
            self._hubs[run_id] = RunHub(*self.get(run_id))
        return self._hubs[run_id]

    def _check_free(self) -> None:
        if self._going_back:
            raise FailedPrecondition(
                f"run {min(self._going_back)} is being rolled back",
                reason="LEARNER_BUSY",
                retryable=True,
            )
        if self._draining:
            raise FailedPrecondition(
                "the learner is shutting down", reason="LEARNER_BUSY", retryable=True
            )
        if self._active is not None:
            raise FailedPrecondition(
                f"run {self._active[0]} has the learner; wait for its end, or `hone stop` it",
                reason="LEARNER_BUSY",
                retryable=True,
            )

    def _launch(self, run: Run) -> None:
        hub = self._hubs[run.run_id] = RunHub(run, self._store.steps(run.run_id))
        stop = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._work(run, hub, stop), name=run.run_id)
        self._active = (run.run_id, task, stop)

    async def _work(self, run: Run, hub: RunHub, stop: asyncio.Event) -> None:
        reporter = RunReporter(run, self._store, hub, self._clock)
        try:
            metrics = await self._job(run, reporter, stop)
            final = replace(
                ended(reporter.run, RunState.COMPLETED, at=self._clock()), metrics=metrics
            )
        except Stopped as stopped:
            if self._draining and not str(stopped):
                # Told to shut down is no crash; the run goes on at the next start.
                self._store.save(replace(reporter.run, starts_without_step=0))
                self._active = None
                return
            # An alarm says why; a person knows.
            detail = str(stopped) or f"stopped after step {reporter.run.step}"
            final = ended(reporter.run, RunState.STOPPED, at=self._clock(), detail=detail)
        # The run's boundary: whatever it was, the run says so and can be resumed.
        except Exception as error:
            detail = self._say(error)
            log.exception("run failed", extra={"run_id": run.run_id})
            final = ended(reporter.run, RunState.FAILED, at=self._clock(), detail=detail)
        try:
            await self._tell_end(final)
            self._store.save(final)
        except OSError as error:
            log.error(
                "the end of the run could not be written: %s",
                self._store.explain(error),
                extra={"run_id": run.run_id},
            )
        finally:
            # Only now can another run start: nothing of this one is still to be written.
            self._active = None
            hub.changed(final)

    def _say(self, error: Exception) -> str:
        """Returns one sentence for people."""
        if isinstance(error, OSError):
            return self._store.explain(error)
        text = error.message if isinstance(error, HoneError) else str(error)
        return text or type(error).__name__

    async def _tell_end(self, final: Run) -> None:
        """Tells the log before the file says so; if the log is away the run still ends."""
        try:
            await self._announce_end(final)
        except Exception:  # whatever it was, the run's file must say that it ended
            log.exception("the end of the run could not be logged", extra={"run_id": final.run_id})


def _uuid_of(request_id: str) -> uuid.UUID:
    """Reads a request's id.

    Raises:
        InvalidArgument: it is no UUID.
    """
    try:
        return uuid.UUID(request_id)
    except ValueError:
        raise InvalidArgument(
            f"request_id: found {request_id[:80]!r}; a UUID is right",
            violations={"request_id": "is not a UUID"},
        ) from None
