"""Fills the slots of one step: requests, listens, retries, and closes what waits too long."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from learner.facts import Ended, Fact, Finished, Policy, Requested, RunLog
from learner.ledger import SlotState, StepLedger, Wanted
from learner.plan import seed_of
from learner.ports import LogGone, Stopped
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


class Collector:
    """Turns wanted slots into outcomes, over the run's log."""

    def __init__(
        self,
        run_log: RunLog,
        *,
        tasks: Mapping[str, Task],
        run_seed: int,
        limits: Limits,
        monotonic: Callable[[], float],
        stop: asyncio.Event,
    ) -> None:
        """Works on one run until `stop` is set; see `fill`."""
        self._stop = stop
        self._log = run_log
        self._tasks = tasks
        self._seed = run_seed
        self._limits = limits
        self._monotonic = monotonic
        self._abandoned: set[str] = set()
        self._due: dict[tuple[Slot, int], float] = {}
        """When a retry may be requested: an outage must not burn every attempt within seconds."""

    async def fill(
        self, ledger: StepLedger, policy: Policy, *, after_sequence: int, progress: Progress
    ) -> int:
        """Returns when every slot is final; the result is the log position up to which facts were folded.

        What the log already tells (after a restart) is folded first, so that no slot is requested twice.

        Raises:
            Stopped: someone asked for it; what was requested goes on, and the log keeps it for the next start.
        """
        try:
            position = await self._fold_history(ledger, after_sequence)
        except LogGone as gone:
            log.error(
                "the log no longer reaches back to the checkpoint; what it does not tell is rolled out again",
                extra={"cursor": after_sequence, "readable_after": gone.restart_after},
            )
            position = await self._fold_history(ledger, gone.restart_after)
        progress(ledger.closed_count, len(ledger.slots))
        queue: asyncio.Queue[Fact | Exception] = asyncio.Queue()
        feeders = [
            asyncio.create_task(self._pump(position, queue), name="learner.facts"),
            asyncio.create_task(self._watch_stop(queue), name="learner.stop"),
        ]
        try:
            return await self._fill(ledger, policy, position, queue, progress)
        finally:
            for feeder in feeders:
                feeder.cancel()
            await asyncio.gather(*feeders, return_exceptions=True)

    async def _fold_history(self, ledger: StepLedger, after_sequence: int) -> int:
        position = after_sequence
        async with aclosing(self._log.facts(after_sequence, follow=False)) as history:
            async for fact in history:
                position = fold(ledger, fact)
        return position

    async def _watch_stop(self, queue: "asyncio.Queue[Fact | Exception]") -> None:
        await self._stop.wait()
        queue.put_nowait(Stopped())

    async def _pump(self, position: int, queue: "asyncio.Queue[Fact | Exception]") -> None:
        try:
            async with aclosing(self._log.facts(position, follow=True)) as facts:
                async for fact in facts:
                    queue.put_nowait(fact)
        except Exception as error:  # handed to the waiting side, which raises it
            queue.put_nowait(error)

    async def _fill(
        self,
        ledger: StepLedger,
        policy: Policy,
        position: int,
        queue: "asyncio.Queue[Fact | Exception]",
        progress: Progress,
    ) -> int:
        deadline = self._monotonic() + self._limits.group_timeout_seconds
        while True:
            next_retry = await self._request(ledger, policy)
            if ledger.closed:
                return position
            overdue = self._monotonic() >= deadline
            if overdue:
                await self._close_overdue(ledger)
            try:
                wait = min(QUIET_SECONDS, self._until(next_retry))
                wait = wait if overdue else min(wait, self._until(deadline))
                async with asyncio.timeout(wait):
                    got = await queue.get()
            except TimeoutError:
                if wait >= QUIET_SECONDS:
                    _say_what_is_missing(ledger)
                continue
            while True:
                if isinstance(got, Exception):
                    raise got
                position = max(position, fold(ledger, got))
                if queue.empty():
                    break
                got = queue.get_nowait()
            progress(ledger.closed_count, len(ledger.slots))

    def _until(self, deadline: float) -> float:
        return max(0.01, deadline - self._monotonic())

    async def _request(self, ledger: StepLedger, policy: Policy) -> float:
        """Requests what is wanted and due; returns when the next retry will be."""
        now, next_retry, due = self._monotonic(), math.inf, []
        for wanted in ledger.wanted():
            at = self._due_time(ledger, wanted, now)
            if at <= now:
                due.append(wanted)
            else:
                next_retry = min(next_retry, at)
        room = max(0, MAX_IN_FLIGHT - len(ledger.in_flight))
        if due and room and not await self._log.has_room():
            log.warning(
                "the event log is nearly full; no rollouts are requested until there is room"
            )
            return now + FULL_LOG_SECONDS
        await asyncio.gather(*(self._request_one(ledger, policy, wanted) for wanted in due[:room]))
        return next_retry

    def _due_time(self, ledger: StepLedger, wanted: Wanted, now: float) -> float:
        last = ledger.slots[wanted.slot].outcome
        if not isinstance(last, Failure) or last.attributable is Attribution.CLIENT:
            return now
        wait = min(MAX_RETRY_SECONDS, self._limits.retry_seconds * 2.0 ** (wanted.attempt - 1))
        return self._due.setdefault((wanted.slot, wanted.attempt), now + wait)

    async def _request_one(self, ledger: StepLedger, policy: Policy, wanted: Wanted) -> None:
        task = self._tasks[wanted.task_id]
        seed = seed_of(self._seed, wanted.slot, wanted.attempt)
        rollout_id = await self._log.request(wanted, task, policy, seed)
        ledger.fold_requested(wanted.slot, rollout_id, wanted.attempt)

    async def _close_overdue(self, ledger: StepLedger) -> None:
        """Ends what is still running in groups that have enough scored members.

        An attempt that has finished acting is left to the grader, which always answers. A group with too few members
        waits on: each of its rollouts has a deadline of its own.
        """
        for group in ledger.groups():
            scored = sum(isinstance(state.outcome, Scored) for state in group)
            if scored < min(self._limits.min_group_size, len(group)):
                continue
            for state in group:
                await self._abandon(state)

    async def _abandon(self, state: SlotState) -> None:
        current = state.current
        if current is None or state.outcome is not None or current.record is not None:
            return
        if current.rollout_id in self._abandoned:
            return
        self._abandoned.add(current.rollout_id)
        reason = f"the group closed after {self._limits.group_timeout_seconds:g} s"
        await self._log.abandon(state.slot, current.rollout_id, current.attempt, reason)


def fold(ledger: StepLedger, fact: Fact) -> int:
    """Adds one fact to the ledger and returns its position."""
    match fact:
        case Requested():
            ledger.fold_requested(fact.slot, fact.rollout_id, fact.attempt)
        case Finished():
            ledger.fold_finished(fact.rollout_id, fact.record)
        case Ended():
            ledger.fold_outcome(fact.rollout_id, fact.outcome, fact.context)
    return fact.sequence


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
