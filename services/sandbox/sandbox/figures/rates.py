"""Rates that are measured: shares over a sliding window, and how long whoever waits has yet to wait."""

from collections import deque
from collections.abc import Callable

_SLICES = 60
"""Into so many parts a window is cut; the oldest part falls out as a whole."""

_REMEMBERED = 64
_LEAST_SECONDS = 0.1
_MOST_SECONDS = 60.0


class Window:
    """How many of the things of the last while were of a kind."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """Starts empty."""
        self._slice_seconds = seconds / _SLICES
        self._clock = clock
        self._slices: deque[tuple[int, int, int]] = deque()
        """Number of the slice, of that kind, in all; oldest first."""

    def add(self, *, counted: bool) -> None:
        """Note one thing, and whether it was of the kind."""
        now = int(self._clock() / self._slice_seconds)
        number, hits, total = self._slices.pop() if self._slices else (now, 0, 0)
        if number != now:
            self._slices.append((number, hits, total))
            number, hits, total = now, 0, 0
        self._slices.append((number, hits + counted, total + 1))

    def counts(self) -> tuple[int, int]:
        """Return how many were of the kind, and how many there were in all."""
        oldest = int(self._clock() / self._slice_seconds) - _SLICES + 1
        while self._slices and self._slices[0][0] < oldest:
            self._slices.popleft()
        return sum(hits for _, hits, _ in self._slices), sum(total for _, _, total in self._slices)

    def share(self) -> float:
        """Return the share of the kind, 0 to 1; 0 where there was nothing."""
        hits, total = self.counts()
        return hits / total if total else 0.0


class Durations:
    """How long the last few things of one sort took, on average."""

    def __init__(self) -> None:
        """Starts without knowledge."""
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Note one."""
        self._last.append(seconds)

    def mean(self) -> float | None:
        """Return the mean, or None where nothing was measured."""
        return sum(self._last) / len(self._last) if self._last else None


class Gaps:
    """How far apart the last few things of one sort came, counting the time since the last one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts without knowledge."""
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self) -> None:
        """Note that one came."""
        self._times.append(self._clock())

    def mean(self) -> float | None:
        """Return the mean gap, or None where nothing was measured."""
        if not self._times:
            return None
        return (self._clock() - self._times[0]) / len(self._times)


def bounded_wait(seconds: float) -> float:
    """Return an estimate of a wait as it is told: never nothing, never more than a minute."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds))
