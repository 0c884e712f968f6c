"""A bounded number of questions at once; those that wait take turns by run, so that no run starves another."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from critic import faults


class Turns:
    """Lets `max_in_flight` in; the others wait, first come first served within a run, the runs in rotation."""

    def __init__(self, *, max_in_flight: int, max_waiting: int) -> None:
        """Start with nobody inside."""
        self._free = max_in_flight
        self._max_waiting = max_waiting
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._num_waiting = 0

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return self._num_waiting

    @asynccontextmanager
    async def turn(self, run_id: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it inside the block.

        Raises:
            ResourceExhausted: too many wait already.
        """
        await self._enter(run_id)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, run_id: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        if self._num_waiting >= self._max_waiting:
            raise faults.busy(self._num_waiting)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(run_id, deque()).append(turn)
        self._num_waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The turn came in the same moment: it goes to the next one.
                self._leave()
            else:
                self._forget(run_id, turn)
            raise

    def _leave(self) -> None:
        """Pass the turn on to the next line's first who still wants it."""
        while self._lines:
            run_id, line = self._lines.popitem(last=False)
            turn = line.popleft()
            self._num_waiting -= 1
            if line:
                self._lines[run_id] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, run_id: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(run_id, deque())
        if turn not in line:
            return
        line.remove(turn)
        self._num_waiting -= 1
        if not line:
            del self._lines[run_id]
