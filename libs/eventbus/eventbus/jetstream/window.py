"""A bound on what may be under way at once, first come first served.

`asyncio.Semaphore` looks through all waiters that were woken and have not run yet at each release; with thousands
waiting that is a fifth of the whole cost of publishing.
"""

import asyncio
import contextlib
from collections import deque
from types import TracebackType


class Window:
    """An async context manager that so many may be inside of at once."""

    def __init__(self, size: int) -> None:
        """Starts with all places free."""
        self._free = size
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        """Takes a place, waiting for one."""
        if self._free > 0 and not self._waiters:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                # A release that came first has taken it out already.
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            else:
                # The place was handed over in the moment of cancelling: it goes on to the next.
                self._release()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the place to whoever waits longest."""
        self._release()

    def _release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
