"""The clock of the service: fills the pool, ends what expired, removes what is nobody's, tells what was not told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sandbox.fleet.fleet import Fleet
from servicekit.errors import HoneError

log = logging.getLogger(__name__)

REAP_SECONDS = 10.0
SWEEP_SECONDS = 1.0


async def tend(
    fleet: Fleet,
    stop: asyncio.Event,
    *,
    sweep_seconds: float = SWEEP_SECONDS,
    reap_seconds: float = REAP_SECONDS,
) -> None:
    """Look after the fleet until `stop` is set."""
    await asyncio.gather(
        _every(sweep_seconds, fleet.expire, stop), _every(reap_seconds, fleet.reap, stop)
    )


async def _every(seconds: float, act: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            await _try(act)


async def _try(act: Callable[[], Awaitable[None]]) -> None:
    """Do it; where this process lacks the means, or what is behind a backend refuses, the next time tries again."""
    try:
        await act()
    except OSError:
        log.exception("the service lacks the means to look after its sandboxes")
    except HoneError as error:
        log.error("looking after the sandboxes failed", extra={"error": str(error)})
