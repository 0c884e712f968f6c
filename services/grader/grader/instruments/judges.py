"""Model judging: what graders ask of the critic service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import ChatMessage, GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a model is asked about a response."""

    messages: Sequence[ChatMessage]
    model: str
    """Empty means the critic's default model."""
    labels: Sequence[str] = ()
    """The label to choose one of; empty when a score is wanted."""
    low: float = 0.0
    high: float = 1.0
    """Range of the score."""
    temperature: float = 0.0
    max_tokens: int = 512
    seed: int | None = None
    timeout_seconds: float = 60.0
    run_id: str = ""
    """Whose question it is: when many wait, runs take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the model said."""

    score: float | None
    """Of a question without labels."""
    label: str
    """Of a question with labels."""
    reasoning: str
    model: str
    num_tokens: int = field(default=0)
    """Read and written."""


class Judges(Protocol):
    """Asks a model."""

    async def judge(self, question: Question) -> Judgement:
        """Ask, and read the verdict.

        Raises:
            GradingFaultError: kind parse, timeout, server or refusal.
        """
        ...


class NoJudges:
    """For graders that run without a critic service."""

    async def judge(self, question: Question) -> Judgement:
        """Raise GradingFaultError: there is no critic."""
        raise GradingFaultError(
            "this grader asks a model, and no critic service is set up; set HONE_CRITIC_ADDRESS, or use hone up",
            kind=GraderErrorKind.SERVER,
            retryable=False,
            client=False,
        )
