"""How long two processes that ask and answer each other took, less what a busy machine kept them waiting.

Under load, code that takes a microsecond may wait for a processor for longer than a slow reference computes. Linux
says how long a thread was ready to run and was not let (`schedstat`, documented with the scheduler's statistics); that
time is nobody's work.
"""

from __future__ import annotations

import os
import time


class Stopwatch:
    """Runs from its making; times this process, which has one thread, and another one.

    The clock's time counts whole where the other process has more threads, or any is started in this PID namespace
    meanwhile: one could work while it keeps the first waiting. So it does where the system does not say (gVisor).
    """

    def __init__(self, pid: int) -> None:
        """Start; `pid` is the other process."""
        self._pids = (os.getpid(), pid)
        self._before = self._now()
        self._begun = time.perf_counter()

    def seconds(self) -> float:
        """Return the time from the start, and at least what the two have used of processors."""
        clock = time.perf_counter() - self._begun
        now = self._now()
        if self._before is None or now is None or now[0] != self._before[0]:
            return clock
        used, waited = now[1] - self._before[1], now[2] - self._before[2]
        return min(clock, max(clock - waited / 1e9, used / 1e9))

    def _now(self) -> tuple[int, int, int] | None:
        """Return the number given last to a thread, and what both used and waited in nanoseconds; None if unknown."""
        try:
            with open("/proc/loadavg", "rb") as file:
                last = int(file.read().split()[-1])
            used = waited = 0
            for pid in self._pids:
                (thread,) = os.listdir(f"/proc/{pid}/task")
                with open(f"/proc/{thread}/schedstat", "rb") as file:
                    one, other, _ = map(int, file.read().split())
                used, waited = used + one, waited + other
        except (OSError, ValueError, IndexError):
            return None
        return last, used, waited
