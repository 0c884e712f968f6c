"""Graders of people's own behind HTTP or gRPC."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What an endpoint is asked."""

    url: str
    """http:, https: or grpc: address."""
    payload: Mapping[str, object]
    """`sample` and `item`, as python graders get them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_name: str = ""
    """Of the key that signs the payload; empty for no signature."""
    timeout_seconds: float = 30.0
    max_tries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an endpoint answered."""

    value: float | None
    """None: no opinion."""
    explanation: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


class Endpoints(Protocol):
    """Calls endpoints."""

    async def call(self, call: Call) -> Reply:
        """Ask an endpoint, trying again where that may help.

        Raises:
            GradingFaultError: kind parse, timeout or server.
        """
        ...


class NoEndpoints:
    """For graders that may not call out."""

    async def call(self, call: Call) -> Reply:
        """Raise GradingFaultError: calling out is not set up."""
        raise GradingFaultError(
            f"the grader asks {call.url}, and this process does not call endpoints",
            kind=GraderErrorKind.SERVER,
            retryable=False,
            client=False,
        )
