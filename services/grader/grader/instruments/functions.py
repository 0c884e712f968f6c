"""Reward functions of installed packages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """What a function is asked."""

    function: str
    """Name of its entry point."""
    style: str
    """One of `grader.functions.styles.STYLES`."""
    arguments: Mapping[str, object]
    """By keyword; JSON values."""
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionScore:
    """What a function returned."""

    value: float | None
    """None: no opinion."""
    parts: Mapping[str, float] = field(default_factory=dict)


class Functions(Protocol):
    """Runs reward functions."""

    async def call(self, call: FunctionCall) -> FunctionScore:
        """Run a function, off the event loop and no longer than it may.

        Raises:
            GradingFaultError: kind code or timeout.
        """
        ...


class NoFunctions:
    """For graders that run no foreign code."""

    async def call(self, call: FunctionCall) -> FunctionScore:
        """Raise GradingFaultError: there are no worker processes."""
        raise GradingFaultError(
            f"the grader runs reward function {call.function!r}, and this process runs none",
            kind=GraderErrorKind.CODE,
            retryable=False,
            client=False,
        )
