"""Domain types to protobuf and back: pure, total, one pair per type.

`x_from_proto` refuses what a sender must not leave out; the error names the field.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import (
    identity_pb2,
    message_pb2,
    sampling_pb2,
    task_pb2,
    token_record_pb2,
)
from hone.events.v1 import events_pb2

from trajectory import types as t

E = TypeVar("E", bound=StrEnum)


def enum_to_proto(value: StrEnum, descriptor: Any, prefix: str) -> Any:
    """Converts a word to its number."""
    return descriptor.Value(f"{prefix}_{value.name}")


def enum_from_proto(number: int, descriptor: Any, prefix: str, kind: type[E], field: str) -> E:
    """Converts a number to its word.

    Raises:
        ValueError: names the field and the words that are right.
    """
    name = descriptor.Name(number) if number in descriptor.values() else str(number)
    try:
        return kind[name.removeprefix(f"{prefix}_")]
    except KeyError:
        choices = ", ".join(member.name for member in kind)
        raise ValueError(f"{field}: found {name}; one of {choices} is right") from None


def duration_to_proto(seconds: float) -> Duration:
    """Converts seconds."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def duration_from_proto(message: Duration) -> float:
    """Converts to seconds."""
    return message.ToNanoseconds() / 1e9


def time_to_proto(moment: datetime) -> Timestamp:
    """Converts a moment with time zone."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def time_from_proto(message: Timestamp) -> datetime:
    """Converts to a moment in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def json_object(text: str, field: str) -> Mapping[str, object]:
    """Reads a JSON object; empty text is the empty object.

    Raises:
        ValueError: the text is no JSON object; the message names `field`.
    """
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{field}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{field}: found {type(value).__name__}; a JSON object is right")
    return value


def slot_to_proto(slot: t.Slot) -> identity_pb2.Slot:
    """Converts a slot."""
    return identity_pb2.Slot(
        run_id=slot.run_id,
        phase=enum_to_proto(slot.phase, identity_pb2.Phase, "PHASE"),
        step=slot.step,
        group_index=slot.group_index,
        sample_index=slot.sample_index,
    )


def slot_from_proto(message: identity_pb2.Slot) -> t.Slot:
    """Converts a slot."""
    phase = enum_from_proto(message.phase, identity_pb2.Phase, "PHASE", t.Phase, "slot.phase")
    return t.Slot(
        run_id=message.run_id,
        phase=phase,
        step=message.step,
        group_index=message.group_index,
        sample_index=message.sample_index,
    )


def tool_call_to_proto(call: t.ToolCall) -> message_pb2.ToolCall:
    """Converts a tool call."""
    return message_pb2.ToolCall(
        tool_call_id=call.tool_call_id, name=call.name, arguments_json=call.arguments_json
    )


def tool_call_from_proto(message: message_pb2.ToolCall) -> t.ToolCall:
    """Converts a tool call."""
    return t.ToolCall(
        tool_call_id=message.tool_call_id,
        name=message.name,
        arguments_json=message.arguments_json,
    )


def tool_definition_to_proto(tool: t.ToolDefinition) -> message_pb2.ToolDefinition:
    """Converts a tool definition."""
    return message_pb2.ToolDefinition(
        name=tool.name, description=tool.description, parameters_json=tool.parameters_json
    )


def tool_definition_from_proto(message: message_pb2.ToolDefinition) -> t.ToolDefinition:
    """Converts a tool definition."""
    return t.ToolDefinition(
        name=message.name,
        description=message.description,
        parameters_json=message.parameters_json,
    )


def chat_message_to_proto(message: t.ChatMessage) -> message_pb2.ChatMessage:
    """Converts a message."""
    return message_pb2.ChatMessage(
        role=enum_to_proto(message.role, message_pb2.Role, "ROLE"),
        parts=[_part_to_proto(part) for part in message.content],
        tool_calls=[tool_call_to_proto(call) for call in message.tool_calls],
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
        name=message.name,
    )


def chat_message_from_proto(message: message_pb2.ChatMessage) -> t.ChatMessage:
    """Converts a message."""
    return t.ChatMessage(
        role=enum_from_proto(message.role, message_pb2.Role, "ROLE", t.Role, "message.role"),
        content=tuple(_part_from_proto(part) for part in message.parts),
        tool_calls=tuple(tool_call_from_proto(call) for call in message.tool_calls),
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
        name=message.name,
    )


def _part_to_proto(part: str | t.ImagePart) -> message_pb2.ContentPart:
    if isinstance(part, str):
        return message_pb2.ContentPart(text=part)
    image = message_pb2.ImagePart(media_type=part.media_type)
    if part.uri:
        image.uri = part.uri
    else:
        image.data = part.data
    return message_pb2.ContentPart(image=image)


def _part_from_proto(message: message_pb2.ContentPart) -> str | t.ImagePart:
    if message.WhichOneof("part") == "image":
        image = message.image
        return t.ImagePart(uri=image.uri, data=image.data, media_type=image.media_type)
    return message.text


def task_to_proto(task: t.Task) -> task_pb2.Task:
    """Converts a task."""
    return task_pb2.Task(
        task_id=task.task_id,
        messages=[chat_message_to_proto(message) for message in task.messages],
        reference_json=json.dumps(task.reference, ensure_ascii=False),
    )


def task_from_proto(message: task_pb2.Task) -> t.Task:
    """Converts a task."""
    return t.Task(
        task_id=message.task_id,
        messages=tuple(chat_message_from_proto(m) for m in message.messages),
        reference=json_object(message.reference_json, "task.reference_json"),
    )


def sampling_params_to_proto(sampling: t.SamplingParams) -> sampling_pb2.SamplingParams:
    """Converts sampling parameters."""
    return sampling_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_new_tokens=sampling.max_new_tokens,
        seed=sampling.seed,
    )


def sampling_params_from_proto(message: sampling_pb2.SamplingParams) -> t.SamplingParams:
    """Converts sampling parameters; what was not said takes its default."""
    return t.SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        max_new_tokens=message.max_new_tokens or 256,
        seed=message.seed if message.HasField("seed") else None,
    )


def token_record_to_proto(record: t.TokenRecord) -> token_record_pb2.TokenRecord:
    """Converts a token record."""
    return token_record_pb2.TokenRecord(
        rows=[_row_to_proto(row) for row in record.rows],
        sampling=sampling_params_to_proto(record.sampling),
        nan_logprob_count=record.nan_logprob_count,
    )


def token_record_from_proto(message: token_record_pb2.TokenRecord) -> t.TokenRecord:
    """Converts a token record.

    Raises:
        ValueError: the lists of a row have unequal lengths, or its spans do not fit.
    """
    return t.TokenRecord(
        rows=tuple(_row_from_proto(row) for row in message.rows),
        sampling=sampling_params_from_proto(message.sampling),
        nan_logprob_count=message.nan_logprob_count,
    )


def _row_to_proto(row: t.TokenRow) -> token_record_pb2.TokenRow:
    spans = [
        token_record_pb2.TokenSpan(
            start=span.start, end=span.end, turn=span.turn, policy_version=span.policy_version
        )
        for span in row.spans
    ]
    return token_record_pb2.TokenRow(
        token_ids=row.token_ids, loss_mask=row.loss_mask, logprobs=row.logprobs, spans=spans
    )


def _row_from_proto(message: token_record_pb2.TokenRow) -> t.TokenRow:
    spans = tuple(
        t.TokenSpan(
            start=span.start, end=span.end, turn=span.turn, policy_version=span.policy_version
        )
        for span in message.spans
    )
    return t.TokenRow(
        token_ids=tuple(message.token_ids),
        loss_mask=tuple(message.loss_mask),
        logprobs=tuple(message.logprobs),
        spans=spans,
    )


def turn_record_to_proto(turn: t.TurnRecord) -> events_pb2.TurnRecord:
    """Converts what a turn cost."""
    return events_pb2.TurnRecord(
        turn=turn.turn,
        policy_version=turn.policy_version,
        prompt_token_count=turn.prompt_token_count,
        sampled_token_count=turn.sampled_token_count,
        generate_duration=duration_to_proto(turn.generate_seconds),
        tools_duration=duration_to_proto(turn.tools_seconds),
        tool_calls=[
            events_pb2.ToolCallRecord(
                call=tool_call_to_proto(record.call),
                result=record.result,
                error_kind=record.error_kind,
            )
            for record in turn.tool_calls
        ],
    )


def turn_record_from_proto(message: events_pb2.TurnRecord) -> t.TurnRecord:
    """Converts what a turn cost."""
    return t.TurnRecord(
        turn=message.turn,
        policy_version=message.policy_version,
        prompt_token_count=message.prompt_token_count,
        sampled_token_count=message.sampled_token_count,
        generate_seconds=duration_from_proto(message.generate_duration),
        tools_seconds=duration_from_proto(message.tools_duration),
        tool_calls=tuple(
            t.ToolCallRecord(
                call=tool_call_from_proto(record.call),
                result=record.result,
                error_kind=record.error_kind,
            )
            for record in message.tool_calls
        ),
    )


def rollout_record_to_proto(record: t.RolloutRecord) -> events_pb2.RolloutRecord:
    """Converts the record of an attempt."""
    return events_pb2.RolloutRecord(
        task=task_to_proto(record.task),
        messages=[chat_message_to_proto(message) for message in record.messages],
        tokens=token_record_to_proto(record.tokens),
        stop_reason=enum_to_proto(record.stop_reason, events_pb2.StopReason, "STOP_REASON"),
        sandbox_id=record.sandbox_id,
        sandbox_isolation=record.sandbox_isolation,
        turns=[turn_record_to_proto(turn) for turn in record.turns],
        grader_json=record.grader_json,
        start_time=time_to_proto(record.start_time),
        end_time=time_to_proto(record.end_time),
    )


def rollout_record_from_proto(message: events_pb2.RolloutRecord) -> t.RolloutRecord:
    """Converts the record of an attempt.

    Raises:
        ValueError: the token record is not consistent, or an enum was not said.
    """
    return t.RolloutRecord(
        task=task_from_proto(message.task),
        messages=tuple(chat_message_from_proto(m) for m in message.messages),
        tokens=token_record_from_proto(message.tokens),
        stop_reason=enum_from_proto(
            message.stop_reason,
            events_pb2.StopReason,
            "STOP_REASON",
            t.StopReason,
            "record.stop_reason",
        ),
        sandbox_id=message.sandbox_id,
        sandbox_isolation=message.sandbox_isolation,
        turns=tuple(turn_record_from_proto(turn) for turn in message.turns),
        grader_json=message.grader_json,
        start_time=time_from_proto(message.start_time),
        end_time=time_from_proto(message.end_time),
    )
