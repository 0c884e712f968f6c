"""rollout_id: a UUIDv7 whose 128 bits are the OpenTelemetry trace id.

Whoever holds a rollout_id holds the trace. Ids of runs and other things are opaque strings with a prefix.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FORCED_TRACE_ID: ContextVar[int | None] = ContextVar("hone_forced_trace_id", default=None)


def new_rollout_id(clock: Callable[[], float], rng: random.Random) -> str:
    """Returns a new UUIDv7 (RFC 9562, section 5.7) as text with dashes.

    Args:
        clock: Seconds since the epoch.
        rng: Source of the 74 random bits.
    """
    milliseconds = int(clock() * 1000) & ((1 << 48) - 1)
    value = (
        milliseconds << 80
        | 0x7 << 76
        | rng.getrandbits(12) << 64
        | 0b10 << 62
        | rng.getrandbits(62)
    )
    return str(uuid.UUID(int=value))


def trace_id_of(rollout_id: str) -> int:
    """Returns the trace id that a rollout_id is.

    Raises:
        ValueError: it is not a UUID.
    """
    return uuid.UUID(rollout_id).int


def rollout_id_of(trace_id: int) -> str:
    """Returns the rollout_id that a trace id is."""
    return str(uuid.UUID(int=trace_id))


@contextmanager
def rollout_scope(rollout_id: str) -> Iterator[None]:
    """Root spans that start inside get the rollout's trace id.

    Only the learner's `request rollout` span is such a root; everything else continues a context that arrived.
    """
    mark = _FORCED_TRACE_ID.set(trace_id_of(rollout_id))
    try:
        yield
    finally:
        _FORCED_TRACE_ID.reset(mark)


def forced_trace_id() -> int | None:
    """Returns the trace id that the current scope asks for, if any."""
    return _FORCED_TRACE_ID.get()
