"""Waiting times between tries: doubling, bounded, with jitter."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubling delays between a first and a longest one."""

    first_seconds: float
    longest_seconds: float

    def delay_seconds(self, tries: int, rng: random.Random) -> float:
        """Returns how long to wait after so many tries (from 1): between half the delay and all of it."""
        full: float = min(self.longest_seconds, self.first_seconds * 2.0 ** min(tries - 1, 30))
        return full * (0.5 + 0.5 * rng.random())
