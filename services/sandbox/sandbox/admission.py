"""Whether there is room for one more sandbox, and whose turn it is to be made.

Memory is admitted by the sum of the sandboxes' limits against the machine's memory times an overcommit factor, and by
what is really free. Creation is bounded and first come, first served; who waits too long is told to come back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from servicekit.errors import ResourceExhausted

RETRY_SECONDS = 1.0
"""When to come back, at the earliest."""


class Admission:
    """Counts what is promised and lines up creations."""

    def __init__(
        self,
        *,
        parallel_creates: int,
        queue_seconds: float,
        max_sandboxes: int,
        memory_budget_bytes: int,
        reserve_bytes: int,
        available_bytes: Callable[[], int],
    ) -> None:
        """Starts with nothing promised.

        Args:
            parallel_creates: Creations under way at once.
            queue_seconds: How long a creation may wait for its turn.
            max_sandboxes: Most sandboxes at once.
            memory_budget_bytes: Most that the sandboxes' memory limits may sum up to.
            reserve_bytes: Really free memory that no sandbox may eat into.
            available_bytes: Tells how much memory is free.
        """
        self._turns = asyncio.Semaphore(parallel_creates)
        self._queue_seconds = queue_seconds
        self._max_sandboxes = max_sandboxes
        self._memory_budget_bytes = memory_budget_bytes
        self._reserve_bytes = reserve_bytes
        self._available_bytes = available_bytes
        self._promised_bytes = 0
        self._count = 0

    def reserve(self, memory_bytes: int) -> None:
        """Promise room for a sandbox; give it back with `release`.

        Raises:
            ResourceExhausted: there is none; says which kind is short and when to come back.
        """
        short = ""
        if self._count >= self._max_sandboxes:
            short = f"{self._count} sandboxes are alive, at most {self._max_sandboxes} may be"
        elif self._promised_bytes + memory_bytes > self._memory_budget_bytes:
            short = (
                f"memory limits of {self._promised_bytes + memory_bytes} bytes in all would exceed "
                f"the budget of {self._memory_budget_bytes}"
            )
        elif self._available_bytes() < self._reserve_bytes:
            short = f"less than {self._reserve_bytes} bytes of memory are free"
        if short:
            raise ResourceExhausted(
                f"no room for another sandbox: {short}",
                reason="NO_ROOM",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._promised_bytes += memory_bytes
        self._count += 1

    def release(self, memory_bytes: int) -> None:
        """Take a promise back: the sandbox is gone."""
        self._promised_bytes -= memory_bytes
        self._count -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn to create, in order of arrival.

        Raises:
            ResourceExhausted: it did not come in time (reason QUEUE_TIMEOUT).
        """
        try:
            async with asyncio.timeout(self._queue_seconds):
                await self._turns.acquire()
        except TimeoutError as error:
            raise ResourceExhausted(
                f"waited {self._queue_seconds:g} s for a turn to create a sandbox",
                reason="QUEUE_TIMEOUT",
                retry_after_seconds=RETRY_SECONDS,
            ) from error
        try:
            yield
        finally:
            self._turns.release()


def total_memory_bytes() -> int:
    """Return the machine's memory."""
    return _meminfo("MemTotal")


def available_memory_bytes() -> int:
    """Return the memory that could be had without swapping."""
    return _meminfo("MemAvailable")


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/meminfo: has no {name}")
