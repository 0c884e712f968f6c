"""How long a sandbox may live: an idle lease that every call renews, and an absolute lifetime that nothing does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.types import Cause


class Lease:
    """The lease of one sandbox. While a command runs it is not idle."""

    def __init__(
        self, *, idle_seconds: float, lifetime_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Begins now."""
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._active = 0
        self.deadline = clock() + lifetime_seconds
        self.idle_deadline = clock() + idle_seconds

    def renew(self) -> None:
        """Take note of a call: the end is no nearer than it was at first, and where it is further away it stays."""
        self.idle_deadline = max(self.idle_deadline, self._clock() + self._idle_seconds)

    def extend(self, idle_seconds: float) -> None:
        """Move the end of the idle lease to this long from now; 0 means as long as at first."""
        self.idle_deadline = self._clock() + (idle_seconds or self._idle_seconds)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the lease while inside, and renew it at the end."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self.renew()

    def expired(self) -> Cause | None:
        """Say why it is over, or None while it is not."""
        now = self._clock()
        if now >= self.deadline:
            return Cause.LIFETIME
        if now >= self.idle_deadline and not self._active:
            return Cause.IDLE
        return None
