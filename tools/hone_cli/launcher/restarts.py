"""When to start a crashed process again, and when to give up."""

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 60.0
MAX_CRASHES = 5
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0


@dataclass(slots=True)
class RestartPolicy:
    """Remembers the crashes of one process."""

    crashes: deque[float] = field(default_factory=deque)

    def next_delay(self, now: float) -> float | None:
        """Notes a crash; returns how long to wait before the next start, or None to give up."""
        self.crashes.append(now)
        while self.crashes and now - self.crashes[0] > WINDOW_SECONDS:
            self.crashes.popleft()
        if len(self.crashes) >= MAX_CRASHES:
            return None
        return min(FIRST_DELAY_SECONDS * 2.0 ** (len(self.crashes) - 1), MAX_DELAY_SECONDS)
