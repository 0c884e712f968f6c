"""Tries a JetStream request again while NATS is away, within one deadline.

For requests that may be repeated only: reads, idempotent creations, and writes that carry an id or a revision.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import nats.errors
import nats.js.errors

from eventbus.backoff import Backoff
from eventbus.jetstream.connection import NatsConnection
from servicekit.errors import HoneError, ResourceExhausted, Unavailable

_LOG = logging.getLogger("hone.eventbus")

T = TypeVar("T")

BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)

STORE_FAILED = 10077
"""Server error code for a stream that cannot store: full, or the disk is."""

NO_ROOM = frozenset({STORE_FAILED, 10023, 10047, 10028})
"""Server error codes that mean: no room."""


class ConnectionLost(ConnectionError):
    """The connection went while an answer was under way; the request may or may not have been carried out."""


class StreamMissing(ConnectionError):
    """The server has no such stream: it came back with an empty store, or another service is just making it."""


AWAY = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.StaleConnectionError,
    nats.errors.OutboundBufferLimitError,
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.ServerError,
    TimeoutError,
    ConnectionError,
)
"""What a request can end in while the server is away, starting or out of room."""


def is_no_room(err: BaseException | None) -> bool:
    """Tells whether a failure means that the stream is full rather than away."""
    return isinstance(err, nats.js.errors.APIError) and err.err_code in NO_ROOM


def final_error(what: str, deadline_seconds: float, last: BaseException | None) -> HoneError:
    """Returns what to raise once the deadline has passed."""
    if is_no_room(last):
        return ResourceExhausted(
            f"{what}: NATS had no room for {deadline_seconds:g} s ({last}); purge sealed runs or raise the limit",
            reason="STREAM_FULL",
            retry_after_seconds=5.0,
        )
    return Unavailable(
        f"{what}: NATS did not answer within {deadline_seconds:g} s (last: {last!r})",
        reason="NATS_UNREACHABLE",
        retry_after_seconds=1.0,
    )


async def persist(
    connection: NatsConnection,
    what: str,
    request: Callable[[], Coroutine[Any, Any, T]],
    *,
    rng: random.Random,
    deadline_seconds: float | None = None,
    notices_disconnection: bool = False,
) -> T:
    """Makes a request until it is answered. One that is under way when the connection goes is given up at once.

    Args:
        connection: To wait on while NATS is away.
        what: What is being done, for messages.
        request: Makes one try.
        rng: For jitter.
        deadline_seconds: For all tries together; by default the publish deadline of the options.
        notices_disconnection: The request itself ends when the connection goes, so nobody else need watch.

    Raises:
        Unavailable: NATS did not answer in time.
        ResourceExhausted: NATS had no room all that time.
    """
    limit = deadline_seconds or connection.options.publish_deadline_seconds
    deadline = time.monotonic() + limit
    tries = 0
    last: BaseException | None = None
    while (left := deadline - time.monotonic()) > 0:
        tries += 1
        try:
            await connection.wait_connected(left)
            if notices_disconnection:
                return await request()
            return await _unless_disconnected(connection, request())
        except AWAY as err:
            last = err
            if isinstance(err, StreamMissing | nats.js.errors.NoStreamResponseError):
                await _repair(connection)
            delay = BACKOFF.delay_seconds(tries, rng)
            _LOG.debug("try again", extra={"what": what, "tries": tries, "error": repr(err)})
            await asyncio.sleep(min(delay, max(0.0, deadline - time.monotonic())))
    raise final_error(what, limit, last)


async def unless_stopped(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, or gives it up once stopped: stopping must not wait for NATS to come back."""
    if stop is None:
        await work
        return
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,), timeout=1)


async def _unless_disconnected(connection: NatsConnection, request: Coroutine[Any, Any, T]) -> T:
    """Awaits an answer, but not past the end of the connection that it would come over."""
    lost = asyncio.Event()
    unwatch = connection.watch(lambda: None if connection.is_connected else lost.set())
    asking = asyncio.create_task(request)
    losing = asyncio.create_task(lost.wait())
    try:
        await asyncio.wait((asking, losing), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise ConnectionLost("the connection to NATS went while its answer was under way")
    finally:
        unwatch()
        losing.cancel()
        if not asking.done():
            asking.cancel()
            await asyncio.wait((asking,), timeout=1)


async def _repair(connection: NatsConnection) -> None:
    if connection.repair is None:
        return
    try:
        await connection.repair()
    except (*AWAY, nats.js.errors.APIError, HoneError) as err:
        # The request that found the stream missing goes on trying, and says so if it fails.
        _LOG.warning("streams could not be made again", extra={"error": repr(err)})
