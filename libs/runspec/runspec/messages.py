"""Reads chat messages and tool definitions in the OpenAI shape into domain types, noting what is wrong where."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import cast

from runspec.jsonl import read_json
from runspec.problems import described, nearest
from trajectory.types import ChatMessage, ImagePart, Role, ToolCall, ToolDefinition

Note = Callable[[str, str], None]
"""Records a problem: field, message."""

_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_MAX_INLINE_IMAGE_BYTES = 512 * 1024


def read_messages(value: object, field: str, note: Note) -> tuple[ChatMessage, ...]:
    """Reads a list of messages; problems go to `note`, and messages that have one are left out."""
    if not isinstance(value, list) or not value:
        note(field, f"found {described(value)}, expected a list of at least one message")
        return ()
    messages: list[ChatMessage] = []
    open_calls: set[str] = set()
    for index, item in enumerate(value):
        place = f"{field}[{index}]"
        message = _read_message(item, place, note)
        if message is None:
            continue
        if message.role is Role.SYSTEM and index > 0:
            note(f"{place}.role", "found system, expected it only as the first message")
        if message.role is Role.TOOL and message.tool_call_id not in open_calls:
            note(
                f"{place}.tool_call_id",
                f"found {message.tool_call_id!r}, expected the id of a call made before it"
                + (f": {', '.join(sorted(open_calls))}" if open_calls else ""),
            )
        open_calls |= {call.tool_call_id for call in message.tool_calls}
        messages.append(message)
    return tuple(messages)


def read_tools(value: object, field: str, note: Note) -> tuple[ToolDefinition, ...]:
    """Reads tool definitions: a list of functions, or the same as JSON text."""
    if isinstance(value, str):
        try:
            value = read_json(value)
        except json.JSONDecodeError as error:
            note(
                field, f"found a text that is not JSON ({error.msg}), expected a list of functions"
            )
            return ()
        except ValueError as error:
            note(field, f"found a text that {error}, expected a list of functions")
            return ()
    if not isinstance(value, list):
        note(field, f"found {described(value)}, expected a list of functions")
        return ()
    tools = [_read_tool(item, f"{field}[{i}]", note) for i, item in enumerate(value)]
    return tuple(tool for tool in tools if tool is not None)


def _read_message(value: object, place: str, note: Note) -> ChatMessage | None:
    if not isinstance(value, dict):
        note(place, f"found {described(value)}, expected a message with role and content")
        return None
    said = {key: item for key, item in value.items() if item is not None}
    for key in said.keys() - set(_MESSAGE_KEYS):
        meant = nearest(key, _MESSAGE_KEYS)
        hint = f"; did you mean {meant}?" if meant else f"; known are {', '.join(_MESSAGE_KEYS)}"
        note(f"{place}.{key}", f"unknown key{hint}")
    role_text = said.get("role")
    if role_text not in [role.value for role in Role]:
        found = described(role_text) if "role" in said else "no role"
        note(f"{place}.role", f"found {found}, expected system, user, assistant or tool")
        return None
    role = Role(cast(str, role_text))
    calls = _read_calls(said.get("tool_calls", []), role, place, note)
    content = _read_content(said.get("content", ""), f"{place}.content", note)
    if not any(content) and not calls and role is not Role.TOOL:
        note(f"{place}.content", "found nothing, expected text")
    tool_call_id = _text(said, "tool_call_id", place, note)
    if role is Role.TOOL and not tool_call_id:
        note(f"{place}.tool_call_id", "missing; a tool message names the call that it answers")
        return None
    return ChatMessage(
        role=role,
        content=content,
        tool_calls=calls,
        tool_call_id=tool_call_id,
        reasoning_content=_text(said, "reasoning_content", place, note),
        name=_text(said, "name", place, note),
    )


def _text(said: Mapping[str, object], key: str, place: str, note: Note) -> str:
    value = said.get(key, "")
    if isinstance(value, str):
        return value
    note(f"{place}.{key}", f"found {described(value)}, expected a text")
    return ""


def _read_content(value: object, place: str, note: Note) -> tuple[str | ImagePart, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list):
        note(place, f"found {described(value)}, expected a text or a list of parts")
        return ()
    parts = [_read_part(part, f"{place}[{i}]", note) for i, part in enumerate(value)]
    return tuple(part for part in parts if part)


def _read_part(value: object, place: str, note: Note) -> str | ImagePart | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "text" and isinstance(value.get("text"), str):
        return str(value["text"])
    if isinstance(value, dict) and kind == "image_url":
        image = value.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str) and url:
            return _read_image(url, f"{place}.image_url", note)
    note(
        place,
        f"found {described(value)}, expected {{type: text, text: ...}} "
        "or {type: image_url, image_url: {url: ...}}",
    )
    return None


def _read_image(url: str, place: str, note: Note) -> ImagePart | None:
    if not url.startswith("data:"):
        return ImagePart(uri=url)
    header, _, payload = url.removeprefix("data:").partition(",")
    try:
        data = base64.b64decode(payload, validate=True)
    except ValueError as error:  # also of characters that are not ASCII
        note(place, f"found a data URL that is not base64: {error}")
        return None
    if len(data) > _MAX_INLINE_IMAGE_BYTES:
        note(place, f"found {len(data)} bytes inline, expected at most 524288; give a URL")
        return None
    return ImagePart(data=data, media_type=header.partition(";")[0])


def _read_calls(value: object, role: Role, place: str, note: Note) -> tuple[ToolCall, ...]:
    place = f"{place}.tool_calls"
    if not isinstance(value, list):
        note(place, f"found {described(value)}, expected a list of calls")
        return ()
    if value and role is not Role.ASSISTANT:
        note(place, f"found calls by {role}, expected them only by assistant")
        return ()
    calls: list[ToolCall] = []
    for index, item in enumerate(value):
        call = _read_call(item, index, f"{place}[{index}]", note)
        if call is not None:
            calls.append(call)
    ids = [call.tool_call_id for call in calls]
    if len(set(ids)) != len(ids):
        note(place, "two calls have the same id")
    return tuple(calls)


def _read_call(value: object, index: int, place: str, note: Note) -> ToolCall | None:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(function, dict):
        note(
            place,
            f"found {described(value)}, expected "
            "{id: ..., type: function, function: {name: ..., arguments: ...}}",
        )
        return None
    name = function.get("name")
    if not isinstance(name, str) or not name:
        note(f"{place}.function.name", f"found {described(name)}, expected the name of a tool")
        return None
    arguments = function.get("arguments", {})
    if isinstance(arguments, dict):
        arguments_json = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str) and _is_json_object(arguments):
        arguments_json = arguments
    else:
        note(
            f"{place}.function.arguments",
            f"found {described(arguments)}, expected a JSON object or its text",
        )
        return None
    call_id = value.get("id")
    if call_id is not None and not isinstance(call_id, str):
        note(f"{place}.id", f"found {described(call_id)}, expected a text")
        return None
    return ToolCall(
        tool_call_id=call_id or f"call_{index}", name=name, arguments_json=arguments_json
    )


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False


def _read_tool(value: object, place: str, note: Note) -> ToolDefinition | None:
    function = value.get("function") if isinstance(value, dict) else None
    function = function if isinstance(function, dict) else value
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        note(
            place,
            f"found {described(value)}, expected "
            "{type: function, function: {name: ..., description: ..., parameters: {...}}}",
        )
        return None
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        note(f"{place}.function.parameters", f"found {described(parameters)}, expected a schema")
        return None
    return ToolDefinition(
        name=str(function["name"]),
        description=str(function.get("description") or ""),
        parameters_json=json.dumps(parameters, ensure_ascii=False),
    )
