"""Learned reward models, which the rollout service holds."""

from collections.abc import Sequence
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import ChatMessage, GraderErrorKind


class RewardModels(Protocol):
    """Scores conversations by a reward model."""

    async def score(self, model: str, messages: Sequence[ChatMessage]) -> float:
        """Return the model's scalar for a conversation.

        Raises:
            GradingFaultError: kind timeout or server; kind definition if there is no such model.
        """
        ...


class NoRewardModels:
    """For graders that run without a rollout service."""

    async def score(self, model: str, messages: Sequence[ChatMessage]) -> float:
        """Raise GradingFaultError: there is no rollout service."""
        raise GradingFaultError(
            f"the grader asks reward model {model!r}, and no rollout service is set up; "
            "set HONE_ROLLOUT_ADDRESS, or use hone up",
            kind=GraderErrorKind.SERVER,
            retryable=False,
            client=False,
        )
