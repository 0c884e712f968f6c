"""Asks the rollout service for scores of reward models."""

import math
from collections.abc import Callable, Sequence

import grpc
from hone.common.v1 import run_spec_pb2
from hone.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from grader.instruments.reward_models import ModelScore
from grader.results import GradingFaultError
from servicekit.errors import DataLoss, DeadlineExceeded, HoneError, InvalidArgument
from trajectory.convert import chat_message_to_proto
from trajectory.types import ChatMessage, GraderErrorKind


class RolloutRewardModels:
    """Reward models behind the rollout service, which scores together what comes together."""

    def __init__(self, connect: Callable[[], grpc.aio.Channel]) -> None:
        """Connect on first use.

        Args:
            connect: makes the channel to the rollout service.
        """
        self._connect = connect
        self._channel: grpc.aio.Channel | None = None

    async def close(self) -> None:
        """Close the channel, if one was opened."""
        if self._channel is not None:
            await self._channel.close()

    async def score(
        self, model: str, messages: Sequence[ChatMessage], timeout_seconds: float
    ) -> ModelScore:
        """Return the model's scalar for a conversation.

        Raises:
            GradingFaultError: kind timeout or server; kind definition if there is no such model.
        """
        conversation = rollout_pb2.Conversation(
            messages=[chat_message_to_proto(message) for message in messages]
        )
        request = rollout_pb2.ScoreRewardsRequest(
            model=run_spec_pb2.ModelSpec(path=model), conversations=[conversation]
        )
        try:
            reply = await self._stub().ScoreRewards(request, timeout=timeout_seconds)
        except HoneError as err:
            raise _fault(model, err) from err
        if len(reply.scores) != 1 or not math.isfinite(reply.scores[0].score):
            raise GradingFaultError(
                f"reward model {model!r}: one finite score was asked for, "
                f"found {[score.score for score in reply.scores]}",
                kind=GraderErrorKind.PARSE,
                retryable=False,
                client=False,
            )
        (score,) = reply.scores
        return ModelScore(value=score.score, truncated=score.truncated)

    def _stub(self) -> "rollout_pb2_grpc.RolloutServiceAsyncStub":
        if self._channel is None:
            self._channel = self._connect()
        stub: rollout_pb2_grpc.RolloutServiceAsyncStub = rollout_pb2_grpc.RolloutServiceStub(
            self._channel
        )
        return stub


def _fault(model: str, err: HoneError) -> GradingFaultError:
    kind = GraderErrorKind.SERVER
    if isinstance(err, DeadlineExceeded):
        kind = GraderErrorKind.TIMEOUT
    elif isinstance(err, InvalidArgument):
        kind = GraderErrorKind.DEFINITION
    elif isinstance(err, DataLoss):
        kind = GraderErrorKind.PARSE
    return GradingFaultError(
        f"reward model {model!r}: {err.message}",
        kind=kind,
        retryable=err.retryable,
        # A model that gives no number is the model's fault, which the definition names.
        client=isinstance(err, InvalidArgument | DataLoss),
    )
