"""How fast we may ask for sandboxes: a token bucket whose waits are jittered, so that managers do not march in step."""

import asyncio
import random
from collections.abc import Awaitable, Callable


class TokenBucket:
    """Lets callers through one by one."""

    def __init__(
        self,
        per_second: float,
        *,
        burst: int,
        random_source: random.Random,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Starts full.

        Args:
            per_second: How many pass in the long run.
            burst: How many pass at once after a quiet time.
            random_source: Makes the jitter.
            clock: Seconds that only grow.
            sleep: Waits.
        """
        self._interval = 1.0 / per_second
        self._credit = (burst - 1) * self._interval
        self._random = random_source
        self._clock = clock
        self._sleep = sleep
        self._next = clock() - self._credit
        self._held_until = 0.0

    async def take(self) -> None:
        """Wait for a turn; turns are given in the order of the calls."""
        now = self._clock()
        turn = max(self._next, now - self._credit)
        self._next = turn + self._interval
        if turn > now:
            await self._sleep(turn - now + self._random.uniform(0.0, self._interval))
        while (wait := self._held_until - self._clock()) > 0:
            await self._sleep(wait + self._random.uniform(0.0, self._interval))

    def wait_seconds(self) -> float:
        """Return how long one who comes now would wait, without the jitter."""
        now = self._clock()
        return max(0.0, self._next - now, self._held_until - now)

    def hold(self, seconds: float) -> None:
        """Let nobody through for a while, because the service asked for it."""
        self._held_until = max(self._held_until, self._clock() + seconds)
