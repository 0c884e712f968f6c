"""Whether there is room for one more sandbox.

Memory is admitted by the sum of the sandboxes' limits against the machine's memory times an overcommit factor, and by
what is really free. Sandboxes of the warm pool count like others.
"""

from collections.abc import Callable

from sandbox.figures.rates import Gaps, bounded_wait
from servicekit.errors import ResourceExhausted

_UNKNOWN_SECONDS = 1.0
"""Told as the wait for room while no sandbox has ended yet."""


class Admission:
    """Counts what is promised."""

    def __init__(
        self,
        *,
        max_sandboxes: int,
        memory_budget_bytes: int,
        reserve_bytes: int,
        available_bytes: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """Starts with nothing promised.

        Args:
            max_sandboxes: Most sandboxes at once.
            memory_budget_bytes: Most that the sandboxes' memory limits may sum up to.
            reserve_bytes: Really free memory that no sandbox may eat into.
            available_bytes: Tells how much memory is free.
            clock: Measures how often sandboxes end.
        """
        self._max_sandboxes = max_sandboxes
        self._memory_budget_bytes = memory_budget_bytes
        self._reserve_bytes = reserve_bytes
        self._available_bytes = available_bytes
        self._promised_bytes = 0
        self._count = 0
        self._turned_away = 0
        self._ends = Gaps(clock)

    def shortage(self, memory_bytes: int) -> str:
        """Say what is short for one more sandbox; empty where there is room."""
        if self._count >= self._max_sandboxes:
            return f"{self._count} sandboxes are alive, at most {self._max_sandboxes} may be"
        if self._promised_bytes + memory_bytes > self._memory_budget_bytes:
            return (
                f"memory limits of {self._promised_bytes + memory_bytes} bytes in all would exceed "
                f"the budget of {self._memory_budget_bytes}"
            )
        return self.free_shortage()

    def free_shortage(self) -> str:
        """Say if too little memory is really free; empty where there is enough."""
        available = self._available_bytes()
        if available < self._reserve_bytes:
            return f"{available} bytes of memory are free, {self._reserve_bytes} must stay so"
        return ""

    def reserve(self, memory_bytes: int) -> None:
        """Promise room for a sandbox; give it back with `release`.

        Raises:
            ResourceExhausted: there is none; says which kind is short and when to come back.
        """
        if short := self.shortage(memory_bytes):
            raise self.no_room(short)
        self._promised_bytes += memory_bytes
        self._count += 1

    def no_room(self, short: str) -> ResourceExhausted:
        """Return the refusal; whoever is refused later is told to come back later."""
        self._turned_away += 1
        gap = self._ends.mean()
        wait = _UNKNOWN_SECONDS if gap is None else gap * self._turned_away
        return ResourceExhausted(
            f"no room for another sandbox: {short}",
            reason="NO_ROOM",
            retry_after_seconds=bounded_wait(wait),
        )

    def release(self, memory_bytes: int) -> None:
        """Take a promise back: the sandbox is gone."""
        self._promised_bytes -= memory_bytes
        self._count -= 1
        self._turned_away = max(0, self._turned_away - 1)
        self._ends.add()
