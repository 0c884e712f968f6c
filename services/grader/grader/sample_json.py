"""A sample as JSON, for graders that are people's own: the shape that python graders know, and the whole conversation.

{"output_text": "...", "output_json": ..., "output_tools": [...],
 "choices": [{"message": {"role": "assistant", "content": "...", "tool_calls": [...]}}],
 "messages": [...], "prompt_message_count": 1, "stop_reason": "completed"}

A conversation that is longer than MAX_BYTES is left out: `choices` and `messages` are empty then.
"""

import json
from collections.abc import Sequence

from grader.sample import Sample
from trajectory.types import ChatMessage, ImagePart, Role

MAX_BYTES = 1 << 20
"""Of a text or a conversation, written as JSON: servers refuse what is much longer."""


def sample_json(sample: Sample) -> dict[str, object]:
    """Return a sample as JSON values."""
    messages = [message_json(message) for message in sample.record.messages]
    if not fits(messages):
        messages = []
    said = [message for message in messages if message["role"] == Role.ASSISTANT.value]
    return {
        "output_text": sample.output_text,
        "output_json": sample.output_json,
        "output_tools": sample.output_tools,
        "choices": [{"message": message} for message in said[-1:]],
        "messages": messages,
        "prompt_message_count": len(prompt_messages(sample)),
        "stop_reason": sample.stop_reason.value,
    }


def fits(value: object) -> bool:
    """Whether a value is at most MAX_BYTES long as JSON."""
    return len(json.dumps(value)) <= MAX_BYTES


def prompt_messages(sample: Sample) -> Sequence[ChatMessage]:
    """Return the task's messages as the policy saw them: after the run's system prompt, if it has one."""
    asked, messages = sample.record.task.messages, sample.record.messages
    has_own = bool(asked) and asked[0].role is Role.SYSTEM
    added = bool(messages) and messages[0].role is Role.SYSTEM and not has_own
    return messages[: len(asked) + added]


def message_json(message: ChatMessage) -> dict[str, object]:
    """Return a message in the OpenAI chat shape; images become their address or their kind."""
    shown: dict[str, object] = {"role": message.role.value, "content": _content(message)}
    if message.reasoning_content:
        shown["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        shown |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return shown


def _content(message: ChatMessage) -> object:
    if not any(isinstance(part, ImagePart) for part in message.content):
        return message.text
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part.uri or f"inline {part.media_type}"}}
        for part in message.content
    ]
