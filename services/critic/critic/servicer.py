"""The critic's RPC: thin, the critic does the work."""

from typing import Any

import grpc
from hone.critic.v1 import critic_pb2, critic_pb2_grpc

from critic.convert import judgement_to_proto, question_from_proto
from critic.judging import Critic
from servicekit.calls import trimmed_timeout


class CriticServicer(critic_pb2_grpc.CriticServiceServicer):
    """Judges on request; remembers nothing."""

    def __init__(self, critic: Critic, *, default_timeout_seconds: float) -> None:
        """Answer from the critic; the default is for calls without a deadline."""
        self._critic = critic
        self._default_timeout_seconds = default_timeout_seconds

    async def Judge(
        self,
        request: critic_pb2.JudgeRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> critic_pb2.JudgeResponse:
        """Ask one question."""
        question = question_from_proto(request)
        seconds = trimmed_timeout(None) or self._default_timeout_seconds
        return judgement_to_proto(await self._critic.judge(question, seconds=seconds))
