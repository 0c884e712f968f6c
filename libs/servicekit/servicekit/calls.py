"""What of a call travels with it: its deadline and its trace context."""

import time
from collections.abc import Iterable
from contextvars import ContextVar

from opentelemetry import propagate, trace
from opentelemetry.context import Context

_DEADLINE: ContextVar[float | None] = ContextVar("hone_deadline", default=None)

MARGIN_SECONDS = 0.05
"""Kept back from a forwarded deadline, so that the inner service says which call ran out of time."""


def set_deadline(seconds_from_now: float | None) -> None:
    """Remembers when the call that is being handled must have ended; None means never."""
    _DEADLINE.set(None if seconds_from_now is None else time.monotonic() + seconds_from_now)


def trimmed_timeout(own_seconds: float | None) -> float | None:
    """Returns the smaller of the caller's own timeout and what is left of the call being handled."""
    deadline = _DEADLINE.get()
    if deadline is None:
        return own_seconds
    left = max(0.001, deadline - time.monotonic() - MARGIN_SECONDS)
    return left if own_seconds is None else min(own_seconds, left)


def parent_from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """Returns the trace context that gRPC metadata carries."""
    return propagate.extract({k: v for k, v in metadata or () if isinstance(v, str)}, Context())


def has_parent(context: Context) -> bool:
    """Says whether the context continues a trace."""
    return trace.get_current_span(context).get_span_context().is_valid


def split_method(path: str) -> tuple[str, str]:
    """Splits "/hone.grader.v1.GraderService/GradeRollout" into service and method."""
    service, _, method = path.lstrip("/").partition("/")
    return service, method
