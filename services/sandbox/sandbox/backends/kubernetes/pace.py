"""Paces requests: a token bucket, stopped as a whole when the API server asks for quiet."""

import asyncio
import random
from collections.abc import Callable

_JITTER = 0.25
_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 5.0


class Pace:
    """Lets so many requests through per second, and as many at once after a quiet time."""

    def __init__(self, per_second: float, rng: random.Random, clock: Callable[[], float]) -> None:
        """Starts full; `clock` is monotonic."""
        self._per_second = per_second
        self._rng = rng
        self._clock = clock
        self._tokens = max(1.0, per_second)
        self._filled = clock()
        self._quiet_until = 0.0
        self._turn = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for one's turn, first come first served."""
        async with self._turn:
            while (seconds := self._missing_seconds()) > 0:
                await asyncio.sleep(seconds)
            self._tokens -= 1.0

    def hush(self, seconds: float) -> None:
        """Let nothing through for a while; the wait of each who was refused differs a little."""
        self._quiet_until = max(self._quiet_until, self._clock() + self._spread(seconds))

    def backoff_seconds(self, attempt: int) -> float:
        """Return how long to wait before an attempt is repeated; the first is 0."""
        seconds = min(_FIRST_BACKOFF_SECONDS * 2.0**attempt, _LONGEST_BACKOFF_SECONDS)
        return self._spread(seconds)

    def _missing_seconds(self) -> float:
        now = self._clock()
        if now < self._quiet_until:
            return self._quiet_until - now
        full = max(1.0, self._per_second)
        self._tokens = min(full, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        return max(0.0, (1.0 - self._tokens) / self._per_second)

    def _spread(self, seconds: float) -> float:
        return seconds * (1.0 + self._rng.uniform(0.0, _JITTER))
