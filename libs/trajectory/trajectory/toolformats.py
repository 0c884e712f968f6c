"""How assistant tool calls are written, per format: the inverse of the rollout service's parsers.

Each format has a writer for the calls of one assistant message and the instruction for chat
templates that know no tools. What this does not do: parse.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trajectory.types import ToolCall, ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write tool calls."""

    name: str
    write: Callable[[Sequence[ToolCall]], str]
    """Text of the calls of one assistant message."""
    usage: str
    """How the model is told to write a call; one line."""


def compact_json(value: Any) -> str:
    """Writes JSON in the fewest characters; non-ASCII characters stay as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """Decodes the arguments of a call.

    Raises:
        ValueError: they are not a JSON object; names the call.
    """
    try:
        arguments = json.loads(call.arguments_json) if call.arguments_json.strip() else {}
    except json.JSONDecodeError as err:
        raise ValueError(
            f"tool call {call.tool_call_id or call.name!r}: arguments {call.arguments_json!r} "
            f"are not JSON: {err}"
        ) from err
    if not isinstance(arguments, dict):
        raise ValueError(
            f"tool call {call.tool_call_id or call.name!r}: arguments must be a JSON object, "
            f"found {type(arguments).__name__}"
        )
    return arguments


def describe_tool(tool: ToolDefinition) -> str:
    """Describes a tool in one JSON line, its flat schema folded to name: type pairs.

    A property becomes `"name":"type, description"`, an optional one `"name?"`; bounds on a text's
    length are left out; a schema that says more than that (nested objects, enums) is kept whole.
    Prompt tokens cost time in every rollout.
    """
    schema = json.loads(tool.parameters_json) if tool.parameters_json.strip() else {}
    folded = _fold(schema)
    line: dict[str, Any] = {"name": tool.name}
    if tool.description:
        line["description"] = tool.description
    line["parameters"] = schema if folded is None else folded
    return compact_json(line)


def tools_text(tools: Sequence[ToolDefinition], tool_format: ToolFormat) -> str:
    """Text for the system message of a chat template that knows no tools."""
    lines = "\n".join(describe_tool(tool) for tool in tools)
    return f"Tools:\n<tools>\n{lines}\n</tools>\nTo call one write {tool_format.usage}"


_TOLD = {"type", "description", "title"}
_BOUNDS = {"minLength", "maxLength"}
"""Limits that a model learns from an error if it ever meets them; not worth tokens in every prompt."""


def _fold(schema: Mapping[str, Any]) -> dict[str, str] | None:
    """Folds a flat object schema; None if it says more than types and descriptions."""
    if set(schema) - {"type", "properties", "required", "additionalProperties", "title"}:
        return None
    required = set(schema.get("required", ()))
    folded = {}
    for name, prop in schema.get("properties", {}).items():
        if not isinstance(prop, dict) or set(prop) - _TOLD - _BOUNDS:
            return None
        if not isinstance(prop.get("type"), str) or prop["type"] in {"object", "array"}:
            return None
        text = prop["type"]
        if prop.get("description"):
            text += f", {prop['description']}"
        folded[name if name in required else f"{name}?"] = text
    return folded


def _write_hermes(calls: Sequence[ToolCall]) -> str:
    return "\n".join(
        "<tool_call>"
        + compact_json({"name": call.name, "arguments": call_arguments(call)})
        + "</tool_call>"
        for call in calls
    )


def _write_qwen25(calls: Sequence[ToolCall]) -> str:
    return "\n".join(
        "<tool_call>\n"
        + json.dumps({"name": call.name, "arguments": call_arguments(call)}, ensure_ascii=False)
        + "\n</tool_call>"
        for call in calls
    )


def _write_llama3(calls: Sequence[ToolCall]) -> str:
    return "\n".join(
        json.dumps({"name": call.name, "parameters": call_arguments(call)}, ensure_ascii=False)
        for call in calls
    )


def _write_pythonic(calls: Sequence[ToolCall]) -> str:
    written = (
        f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call_arguments(call).items())})"
        for call in calls
    )
    return f"[{', '.join(written)}]"


def _write_openai(calls: Sequence[ToolCall]) -> str:
    return compact_json(
        {
            "tool_calls": [
                {"function": {"name": c.name, "arguments": compact_json(call_arguments(c))}}
                for c in calls
            ]
        }
    )


def _write_qwen3_xml(calls: Sequence[ToolCall]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={call.name}>\n"
        + "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else compact_json(value)}\n"
            "</parameter>\n"
            for name, value in call_arguments(call).items()
        )
        + "</function>\n</tool_call>"
        for call in calls
    )


TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(
        name="hermes",
        write=_write_hermes,
        usage='<tool_call>{"name":...,"arguments":{...}}</tool_call>',
    ),
    "qwen2.5": ToolFormat(
        name="qwen2.5",
        write=_write_qwen25,
        usage='<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>',
    ),
    "llama3_json": ToolFormat(
        name="llama3_json", write=_write_llama3, usage='{"name": ..., "parameters": {...}}'
    ),
    "pythonic": ToolFormat(
        name="pythonic", write=_write_pythonic, usage="[name(argument=value, ...)]"
    ),
    "openai_json": ToolFormat(
        name="openai_json",
        write=_write_openai,
        usage='{"tool_calls":[{"function":{"name":...,"arguments":"{...}"}}]}',
    ),
    "qwen3_xml": ToolFormat(
        name="qwen3_xml",
        write=_write_qwen3_xml,
        usage="<tool_call><function=...><parameter=...>...</parameter></function></tool_call>",
    ),
}
"""Formats by the name that `rollout.tool_format` of run.yaml uses."""
