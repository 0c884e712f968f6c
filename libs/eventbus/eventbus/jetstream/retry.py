"""Tries a JetStream request again while NATS is away, within one deadline.

For requests that may be repeated only: reads, idempotent creations, and writes that carry an id or a revision.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats.errors
import nats.js.errors
from servicekit.errors import HoneError, ResourceExhausted, Unavailable

from eventbus.backoff import Backoff
from eventbus.jetstream.connection import NatsConnection

_LOG = logging.getLogger("hone.eventbus")

T = TypeVar("T")

BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)

STORE_FAILED = 10077
"""Server error code for a stream that cannot store: full, or the disk is."""

NO_ROOM = frozenset({STORE_FAILED, 10023, 10047, 10028})
"""Server error codes that mean: no room."""

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
    request: Callable[[], Awaitable[T]],
    *,
    rng: random.Random,
    deadline_seconds: float | None = None,
) -> T:
    """Makes a request until it is answered.

    Args:
        connection: To wait on while NATS is away.
        what: What is being done, for messages.
        request: Makes one try.
        rng: For jitter.
        deadline_seconds: For all tries together; by default the publish deadline of the options.

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
            return await request()
        except AWAY as err:
            last = err
            delay = BACKOFF.delay_seconds(tries, rng)
            _LOG.debug("try again", extra={"what": what, "tries": tries, "error": repr(err)})
            await asyncio.sleep(min(delay, max(0.0, deadline - time.monotonic())))
    raise final_error(what, limit, last)
