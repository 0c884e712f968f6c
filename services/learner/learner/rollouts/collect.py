"""Fills the slots of the open steps: requests, listens, retries, and closes what waits too long.

One reader of the log serves all steps that are open at once. Requests go out oldest step first. How many steps are
open is the job's business (`jobs.window`); here nothing is asked for before its step is opened.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from learner.ports import LogGone, Stopped
from learner.rollouts.facts import Fact, Policy, RunLog
from learner.rollouts.inbox import Inbox, StepKey
from learner.rollouts.ledger import SlotState, StepLedger, Wanted
from learner.rollouts.plan import seed_of
from trajectory.types import Attribution, Failure, Scored, Slot, Task

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 60.0
"""Longest wait between two attempts in one slot."""

FULL_LOG_SECONDS = 5.0
"""How often a full log is asked for room."""

MAX_IN_FLIGHT = 128
"""Rollouts that are requested and not ended at once; more would only wait in the queue past their deadline."""

QUIET_SECONDS = 30.0
"""After so long without news a line says what is being waited for."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how much to wait for."""

    group_timeout_seconds: float
    min_group_size: int
    retry_seconds: float
    """Wait before a slot's first retry after an infrastructure fault."""


@dataclass(slots=True, kw_only=True, eq=False)
class Filling:
    """A step whose slots are being filled."""

    key: StepKey
    ledger: StepLedger
    tasks: Mapping[str, Task]
    after_sequence: int
    """The log tells everything about the step after this position."""
    opened_at: float
    closed_at: float = math.nan
    """When every slot was final."""
    progress: Progress | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Every slot is final, or collecting has failed."""
    deadlines: dict[int, float] = field(default_factory=dict)
    """By group that has been asked for: when it closes with what it has."""
    retries_due: dict[tuple[Slot, int], float] = field(default_factory=dict)
    """When a retry may be requested: an outage must not burn every attempt within seconds."""
    abandoned: set[str] = field(default_factory=set)
    """Rollouts whose end was told by the learner."""


class Collector:
    """Turns wanted slots into outcomes, over the run's log."""

    def __init__(
        self,
        run_log: RunLog,
        *,
        run_seed: int,
        limits: Limits,
        monotonic: Callable[[], float],
        stop: asyncio.Event,
    ) -> None:
        """Works on one run until `stop` is set; see `listening`."""
        self._stop = stop
        self._log = run_log
        self._seed = run_seed
        self._limits = limits
        self._monotonic = monotonic
        self._policy: Policy | None = None
        self._inbox = Inbox(0, first_step=0)
        self._fillings: list[Filling] = []
        self._news: asyncio.Queue[Fact | Exception | None] = asyncio.Queue()
        """Facts, the error that ended the reading of them, and None where a step was opened."""
        self._failure: Exception | None = None

    @asynccontextmanager
    async def listening(self, after_sequence: int, *, first_step: int) -> AsyncIterator[None]:
        """Reads the log from a position for as long as the block runs, from which `first_step` is rebuilt.

        What the log already tells (after a restart) is read before anything can be requested, so that no slot is
        requested twice.
        """
        self._inbox = Inbox(after_sequence, first_step=first_step)
        await self._read_history(after_sequence)
        feeders = [
            asyncio.create_task(self._pump(self._inbox.position), name="learner.facts"),
            asyncio.create_task(self._watch_stop(), name="learner.stop"),
            asyncio.create_task(self._work(), name="learner.collector"),
        ]
        try:
            yield
        finally:
            for feeder in feeders:
                feeder.cancel()
            await asyncio.gather(*feeders, return_exceptions=True)

    @property
    def position(self) -> int:
        """The log position up to which facts were taken."""
        return self._inbox.position

    def serve(self, policy: Policy) -> None:
        """Takes the policy that attempts requested from now on act with."""
        self._policy = policy

    def open(self, key: StepKey, ledger: StepLedger, tasks: Mapping[str, Task]) -> Filling:
        """Begins to fill a step, behind those that are open.

        Raises:
            Stopped: someone asked for it. Any error that ended the reading of the log.
        """
        if self._failure is not None:
            raise self._failure
        filling = Filling(
            key=key,
            ledger=ledger,
            tasks=tasks,
            after_sequence=self._inbox.open(key, ledger),
            opened_at=self._monotonic(),
        )
        self._fillings.append(filling)
        self._news.put_nowait(None)
        return filling

    async def filled(self, filling: Filling, progress: Progress) -> None:
        """Returns when every slot of an open step is final.

        Raises:
            Stopped: someone asked for it; what was requested goes on, and the log keeps it for the next start.
        """
        filling.progress = progress
        progress(filling.ledger.closed_count, len(filling.ledger.slots))
        await filling.ended.wait()
        if math.isnan(filling.closed_at):
            assert self._failure is not None
            raise self._failure

    async def _read_history(self, after_sequence: int) -> None:
        try:
            await self._take_history(after_sequence)
        except LogGone as gone:
            log.error(
                "the log no longer reaches back to the checkpoint; what it does not tell is rolled out again",
                extra={"cursor": after_sequence, "readable_after": gone.restart_after},
            )
            await self._take_history(gone.restart_after)

    async def _take_history(self, after_sequence: int) -> None:
        async with aclosing(self._log.facts(after_sequence, follow=False)) as history:
            async for fact in history:
                self._inbox.take(fact)

    async def _watch_stop(self) -> None:
        await self._stop.wait()
        self._news.put_nowait(Stopped())

    async def _pump(self, position: int) -> None:
        try:
            async with aclosing(self._log.facts(position, follow=True)) as facts:
                async for fact in facts:
                    self._news.put_nowait(fact)
        except Exception as error:  # handed to the waiting side, which raises it
            self._news.put_nowait(error)

    async def _work(self) -> None:
        try:
            while True:
                await self._listen(until=await self._tend())
        except Exception as error:  # whoever waits for a step, or opens the next one, raises it
            self._failure = error
            for filling in self._fillings:
                filling.ended.set()

    async def _tend(self) -> float:
        """Requests and closes what is due in every open step; returns when something will be due again."""
        now, wake, due = self._monotonic(), math.inf, []
        for filling in list(self._fillings):
            if filling.ledger.closed:
                self._close(filling, now)
                continue
            wake = min(wake, await self._close_overdue(filling, now))
            for wanted in filling.ledger.wanted():
                at = self._due_time(filling, wanted, now)
                if at <= now:
                    due.append((filling, wanted))
                else:
                    wake = min(wake, at)
        in_flight = sum(len(filling.ledger.in_flight) for filling in self._fillings)
        room = max(0, MAX_IN_FLIGHT - in_flight)
        if due and room and not await self._log.has_room():
            log.warning(
                "the event log is nearly full; no rollouts are requested until there is room"
            )
            return now + FULL_LOG_SECONDS
        await asyncio.gather(*(self._request(filling, wanted) for filling, wanted in due[:room]))
        return wake

    def _close(self, filling: Filling, now: float) -> None:
        self._fillings.remove(filling)
        self._inbox.close(filling.key)
        filling.closed_at = now
        filling.ended.set()

    async def _listen(self, until: float) -> None:
        """Waits for news and takes all that there are."""
        wait = min(QUIET_SECONDS, max(0.01, until - self._monotonic()))
        try:
            async with asyncio.timeout(wait):
                got = await self._news.get()
        except TimeoutError:
            if wait >= QUIET_SECONDS and self._fillings:
                _say_what_is_missing(self._fillings[0].ledger)
            return
        while True:
            if isinstance(got, Exception):
                raise got
            if got is not None:
                self._inbox.take(got)
            if self._news.empty():
                break
            got = self._news.get_nowait()
        for filling in self._fillings:
            if filling.progress is not None:
                filling.progress(filling.ledger.closed_count, len(filling.ledger.slots))

    def _due_time(self, filling: Filling, wanted: Wanted, now: float) -> float:
        last = filling.ledger.slots[wanted.slot].outcome
        if not isinstance(last, Failure) or last.attributable is Attribution.CLIENT:
            return now
        wait = min(MAX_RETRY_SECONDS, self._limits.retry_seconds * 2.0 ** (wanted.attempt - 1))
        return filling.retries_due.setdefault((wanted.slot, wanted.attempt), now + wait)

    async def _request(self, filling: Filling, wanted: Wanted) -> None:
        assert self._policy is not None, "serve comes first"
        task = filling.tasks[wanted.task_id]
        seed = seed_of(self._seed, wanted.slot, wanted.attempt)
        rollout_id = await self._log.request(wanted, task, self._policy, seed)
        filling.ledger.fold_requested(wanted.slot, rollout_id, wanted.attempt)

    async def _close_overdue(self, filling: Filling, now: float) -> float:
        """Ends what is still running in groups that are overdue and have enough scored members.

        An attempt that has finished acting is left to the grader, which always answers. A group with too few members
        waits on: each of its rollouts has a deadline of its own.

        Returns:
            When the next group will be overdue.
        """
        following = math.inf
        for group in filling.ledger.groups():
            if all(state.current is None for state in group):
                continue
            index = group[0].slot.group_index
            deadline = filling.deadlines.setdefault(index, now + self._limits.group_timeout_seconds)
            if now < deadline:
                following = min(following, deadline)
                continue
            scored = sum(isinstance(state.outcome, Scored) for state in group)
            if scored >= min(self._limits.min_group_size, len(group)):
                for state in group:
                    await self._abandon(filling, state)
        return following

    async def _abandon(self, filling: Filling, state: SlotState) -> None:
        current = state.current
        if current is None or state.outcome is not None or current.record is not None:
            return
        if current.rollout_id in filling.abandoned:
            return
        filling.abandoned.add(current.rollout_id)
        reason = f"the group closed after {self._limits.group_timeout_seconds:g} s"
        await self._log.abandon(state.slot, current.rollout_id, current.attempt, reason)


def _say_what_is_missing(ledger: StepLedger) -> None:
    waiting = ledger.in_flight
    acting = [attempt.rollout_id for attempt in waiting if attempt.record is None]
    log.warning(
        "still waiting for rollouts",
        extra={
            "acting": len(acting),
            "being_graded": len(waiting) - len(acting),
            "first": acting[0] if acting else "",
        },
    )
