"""Whose turn it is to be made: so many at once, the runs one after the other, within a run first come, first served.

A run that asks for a thousand sandboxes delays another run's first one by a single creation. What is made ahead, for
the warm pool, has its turn when nobody else waits. A waiter that gives up leaves no hole.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandbox.figures.rates import Durations, bounded_wait
from servicekit.errors import ResourceExhausted

_UNKNOWN_SECONDS = 1.0
"""Told as the wait while no creation has ended yet."""

Line = dict["asyncio.Future[None]", None]
"""Waiters in order; a dict, so that one that gives up is found at once."""


class Turns:
    """Lines up creations."""

    def __init__(self, parallel: int, queue_seconds: float, clock: Callable[[], float]) -> None:
        """Starts with nobody waiting.

        Args:
            parallel: Turns at once.
            queue_seconds: Longest wait for a turn.
            clock: Measures how long turns take.
        """
        self.parallel = parallel
        self.queue_seconds = queue_seconds
        self._clock = clock
        self._free = parallel
        self._lines: OrderedDict[str, Line] = OrderedDict()
        """By run; the run whose turn is next stands first."""
        self._idle_line: Line = {}
        self._queued = 0
        self._durations = Durations()

    @property
    def queued_count(self) -> int:
        """How many wait for a creation that was asked for."""
        return self._queued

    def wait_estimate(self) -> float:
        """Return how long one who comes now would wait, by the measured rate of creations."""
        mean = self._durations.mean()
        seconds = _UNKNOWN_SECONDS if mean is None else (self._queued + 1) * mean / self.parallel
        return bounded_wait(seconds)

    @asynccontextmanager
    async def turn(self, run_id: str, wait_seconds: float | None) -> AsyncIterator[None]:
        """Wait for a turn to make what a run asked for, at most as long as its caller waits.

        Raises:
            ResourceExhausted: it did not come in time (reason QUEUE_TIMEOUT).
        """
        longest = min(self.queue_seconds, wait_seconds or self.queue_seconds)
        try:
            async with asyncio.timeout(longest):
                await self._asked_turn(run_id)
        except TimeoutError as error:
            raise ResourceExhausted(
                f"waited {longest:.3g} s for a turn to create a sandbox, {self._queued} others wait",
                reason="QUEUE_TIMEOUT",
                retry_after_seconds=self.wait_estimate(),
            ) from error
        async with self._held():
            yield

    @asynccontextmanager
    async def idle_turn(self) -> AsyncIterator[None]:
        """Wait until nobody else wants the turn."""
        if self._free and not self._lines:
            self._free -= 1
        else:
            await self._stand_in(self._idle_line, lambda waiter: self._idle_line.pop(waiter, None))
        async with self._held():
            yield

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        begun = self._clock()
        try:
            yield
        finally:
            self._durations.add(max(0.0, self._clock() - begun))
            self._pass_on()

    async def _asked_turn(self, run_id: str) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        self._queued += 1
        try:
            line = self._lines.setdefault(run_id, {})
            await self._stand_in(line, lambda waiter: self._leave(run_id, waiter))
        finally:
            self._queued -= 1

    async def _stand_in(
        self, line: Line, leave: Callable[["asyncio.Future[None]"], object]
    ) -> None:
        waiter = asyncio.get_running_loop().create_future()
        line[waiter] = None
        try:
            await waiter
        except BaseException:  # also when cancelled or out of time
            if waiter.done() and not waiter.cancelled():
                self._pass_on()  # the turn had come in the same moment: the next one gets it
            else:
                leave(waiter)
            raise

    def _leave(self, run_id: str, waiter: "asyncio.Future[None]") -> None:
        line = self._lines.get(run_id)
        if line is not None:
            line.pop(waiter, None)
            if not line:
                del self._lines[run_id]

    def _pass_on(self) -> None:
        while (waiter := self._next()) is not None:
            if not waiter.done():  # else it was cancelled and has not run since
                waiter.set_result(None)
                return
        self._free += 1

    def _next(self) -> "asyncio.Future[None] | None":
        """Take the waiter whose turn it is out of its line."""
        if self._lines:
            run_id, line = next(iter(self._lines.items()))
            waiter = next(iter(line))
            del line[waiter]
            if line:
                self._lines.move_to_end(run_id)
            else:
                del self._lines[run_id]
            return waiter
        if self._idle_line:
            waiter = next(iter(self._idle_line))
            del self._idle_line[waiter]
            return waiter
        return None
