"""How far the grading is: a line on stderr with rate and time left."""

import sys
import time
from collections.abc import Callable

from hone_cli.text import number, span

LIVE_SECONDS = 0.2
PLAIN_SECONDS = 10.0


def to_stderr(text: str) -> None:
    """Writes at once."""
    sys.stderr.write(text)
    sys.stderr.flush()


class Meter:
    """Counts what is done; a terminal sees one line that moves, a log a line every ten seconds."""

    def __init__(
        self,
        total: int,
        *,
        live: bool,
        write: Callable[[str], object] = to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock."""
        self._total = total
        self._live = live
        self._write = write
        self._clock = clock
        self._begun = self._told = clock()
        self._done = 0
        self._failed = 0

    def tick(self, *, failed: bool = False) -> None:
        """Notes one more."""
        self._done += 1
        self._failed += failed
        now = self._clock()
        if now - self._told >= (LIVE_SECONDS if self._live else PLAIN_SECONDS):
            self._told = now
            self._write(f"\r\x1b[K{self._text(now)}" if self._live else f"{self._text(now)}\n")

    def skip(self) -> None:
        """Notes one that an earlier command did; it says nothing about speed."""
        self._total -= 1

    def close(self) -> None:
        """Takes the moving line away."""
        if self._live:
            self._write("\r\x1b[K")

    def _text(self, now: float) -> str:
        took = now - self._begun
        text = f"graded {self._done}/{self._total}"
        if self._failed:
            text += f" ({self._failed} failed)"
        if took <= 0:
            return text
        rate = self._done / took
        left = max(0, self._total - self._done) / rate
        return f"{text}, {number(rate)}/s, about {span(left)} left"


class SilentMeter(Meter):
    """Says nothing, for programs."""

    def __init__(self) -> None:
        """Counts nothing."""
        super().__init__(0, live=False, write=lambda text: None)
