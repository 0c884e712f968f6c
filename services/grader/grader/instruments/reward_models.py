"""Learned reward models, which the rollout service holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import ChatMessage, GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """What a reward model says of a conversation."""

    value: float
    """As the model gives it: any finite number."""
    truncated: bool = False
    """The conversation did not fit the model's context, and its beginning was left out."""


class RewardModels(Protocol):
    """Scores conversations by a reward model."""

    async def score(
        self, model: str, messages: Sequence[ChatMessage], timeout_seconds: float
    ) -> ModelScore:
        """Return the model's scalar for a conversation.

        Raises:
            GradingFaultError: kind timeout or server; kind definition if there is no such model.
        """
        ...


class NoRewardModels:
    """For graders that run without a rollout service."""

    async def score(
        self, model: str, messages: Sequence[ChatMessage], timeout_seconds: float
    ) -> ModelScore:
        """Raise GradingFaultError: there is no rollout service."""
        raise GradingFaultError(
            f"the grader asks reward model {model!r}, and no rollout service is set up; "
            "set HONE_ROLLOUT_ADDRESS, or use hone up",
            kind=GraderErrorKind.SERVER,
            retryable=False,
            client=False,
        )
