"""Asks the critic service for judgements of models, and turns what kept a judge from one into a grader's fault."""

from collections.abc import Callable
from typing import NoReturn

import grpc
from hone.critic.v1 import critic_pb2, critic_pb2_grpc

from grader.instruments.judges import Judgement, Question
from grader.results import GradingFaultError
from servicekit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
)
from trajectory.convert import chat_message_to_proto
from trajectory.types import GraderErrorKind

_KINDS = {
    "JUDGE_UNPARSABLE": GraderErrorKind.PARSE,
    "JUDGE_REFUSED": GraderErrorKind.REFUSAL,
    "JUDGE_TIMEOUT": GraderErrorKind.TIMEOUT,
}
"""By the reason of the critic's error; any other is the server's."""
_LASTING = (InvalidArgument, FailedPrecondition)
"""Asking again does not mend these, whatever the patience."""


class CriticJudges:
    """Judges behind the critic service."""

    def __init__(self, connect: Callable[[], grpc.aio.Channel]) -> None:
        """Connect on first use.

        Args:
            connect: makes the channel to the critic service.
        """
        self._connect = connect
        self._channel: grpc.aio.Channel | None = None

    async def judge(self, question: Question) -> Judgement:
        """Ask, and read the verdict.

        Raises:
            GradingFaultError: kind parse, timeout, server or refusal.
        """
        try:
            reply = await self._stub().Judge(
                judge_request(question), timeout=question.timeout_seconds
            )
        except HoneError as err:
            _raise_fault(err, question)
        return Judgement(
            score=reply.score if reply.HasField("score") else None,
            label=reply.label,
            reasoning=reply.reasoning,
            model=reply.model,
            num_tokens=reply.usage.input_token_count + reply.usage.output_token_count,
        )

    async def close(self) -> None:
        """Close the channel, if one was opened."""
        if self._channel is not None:
            await self._channel.close()

    def _stub(self) -> "critic_pb2_grpc.CriticServiceAsyncStub":
        if self._channel is None:
            self._channel = self._connect()
        stub: critic_pb2_grpc.CriticServiceAsyncStub = critic_pb2_grpc.CriticServiceStub(
            self._channel
        )
        return stub


def judge_request(question: Question) -> critic_pb2.JudgeRequest:
    """Convert a question: by labels if it has any, else for a score."""
    request = critic_pb2.JudgeRequest(
        messages=[chat_message_to_proto(message) for message in question.messages],
        model=question.model,
        run_id=question.run_id,
        sampling=critic_pb2.JudgeSampling(
            temperature=question.temperature, max_tokens=question.max_tokens, seed=question.seed
        ),
    )
    if question.labels:
        request.label.labels.extend(question.labels)
    else:
        request.score.CopyFrom(critic_pb2.ScoreKind(low=question.low, high=question.high))
    return request


def _raise_fault(err: HoneError, question: Question) -> NoReturn:
    kind = _KINDS.get(err.reason, GraderErrorKind.SERVER)
    if isinstance(err, DeadlineExceeded):
        kind = GraderErrorKind.TIMEOUT
    refused = kind is GraderErrorKind.REFUSAL
    model = question.model or "of the critic's default model"
    raise GradingFaultError(
        f"judge {model}: {err.message}",
        kind=kind,
        retryable=not refused and not isinstance(err, _LASTING),
        client=refused or isinstance(err, InvalidArgument),
    ) from err
