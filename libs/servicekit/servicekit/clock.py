"""A clock for leases and deadlines: wall time that never jumps."""

import time
from collections.abc import Callable


def steady_clock(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a clock that starts at the wall's time and then goes on evenly.

    Seconds since the epoch. When the wall clock is set, this one keeps going, and may differ from it by as much: a
    lease ends when its time has passed, not when somebody corrects the machine's clock.
    """
    offset = wall() - monotonic()
    return lambda: monotonic() + offset
