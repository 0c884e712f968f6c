"""The gRPC face: plain generation, loading of policies, state."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from hone.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from rollout.convert import (
    adapter_from_proto,
    conversation_from_proto,
    generation_to_proto,
    model_from_proto,
    policy_to_proto,
    reward_score_to_proto,
)
from rollout.engines.base import EngineError, GenerationRequest, PolicyKey
from rollout.executor import Executor
from rollout.policies import Policies
from rollout.reward_models import RewardModels
from servicekit.errors import InvalidArgument, Unavailable
from trajectory import convert
from trajectory.rendering import ChatRenderer, RenderError

M = TypeVar("M")
T = TypeVar("T")

MAX_CONVERSATIONS = 256
"""In one ScoreRewards."""


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """Answers RolloutService."""

    def __init__(
        self, policies: Policies, rewards: RewardModels, executor: Executor, engine: str
    ) -> None:
        """Takes what serves; `engine` is the chosen engine's name."""
        self._policies = policies
        self._rewards = rewards
        self._executor = executor
        self._engine = engine

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.GenerateResponse:
        """Generates one completion."""
        model = _valid(model_from_proto, request.model)
        policy = PolicyKey(request.run_id, request.policy_version)
        alone = policy == PolicyKey("", 0)
        held = (
            self._policies.use(model, policy, None)
            if alone
            else self._policies.use_loaded(model, policy)
        )
        try:
            async with held as engine:
                renderer = ChatRenderer(engine.tokenizer)
                prompt = renderer.initial(
                    [convert.chat_message_from_proto(m) for m in request.messages],
                    [convert.tool_definition_from_proto(t) for t in request.tools],
                )
                if len(prompt.token_ids) >= engine.max_context_tokens:
                    raise InvalidArgument(
                        f"messages: {len(prompt.token_ids)} tokens, the model's context holds "
                        f"{engine.max_context_tokens}"
                    )
                generation = await engine.generate(
                    GenerationRequest(
                        policy=policy,
                        prompt_ids=prompt.token_ids,
                        sampling=convert.sampling_params_from_proto(request.sampling),
                        stop_ids=renderer.stop_ids,
                    )
                )
        except EngineError as error:
            raise Unavailable(str(error)) from error
        except RenderError as error:
            raise InvalidArgument(str(error)) from error
        text = renderer.assistant_text(generation.token_ids)
        return generation_to_proto(generation, prompt.token_ids, text)

    async def LoadPolicy(
        self, request: rollout_pb2.LoadPolicyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.LoadPolicyResponse:
        """Loads the weights of a version."""
        adapter = (
            _valid(adapter_from_proto, request.adapter) if request.HasField("adapter") else None
        )
        try:
            await self._policies.load(
                _valid(model_from_proto, request.model),
                PolicyKey(request.run_id, request.policy_version),
                adapter,
            )
        except EngineError as error:
            raise Unavailable(str(error)) from error
        return rollout_pb2.LoadPolicyResponse(policy_version=request.policy_version)

    async def ScoreRewards(
        self, request: rollout_pb2.ScoreRewardsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.ScoreRewardsResponse:
        """Scores conversations by a reward model."""
        model = _valid(model_from_proto, request.model)
        count = len(request.conversations)
        if not 1 <= count <= MAX_CONVERSATIONS:
            raise InvalidArgument(f"conversations: found {count}, must be 1 to {MAX_CONVERSATIONS}")
        conversations = [_valid(conversation_from_proto, c) for c in request.conversations]
        scores = await self._rewards.score(model, conversations)
        return rollout_pb2.ScoreRewardsResponse(
            scores=[reward_score_to_proto(score) for score in scores]
        )

    async def GetEngine(
        self, request: rollout_pb2.GetEngineRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.GetEngineResponse:
        """Says which policies this replica serves and what it does."""
        return rollout_pb2.GetEngineResponse(
            engine=self._engine,
            policies=[policy_to_proto(status) for status in self._policies.status()],
            rollouts_in_flight_count=self._executor.in_flight,
        )


def _valid(convert_field: Callable[[M], T], message: M) -> T:
    """Converts a field; what is wrong with it is the caller's fault."""
    try:
        return convert_field(message)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
