"""OpenAI format: the whole text is an assistant message as JSON with a `tool_calls` list."""

from functools import partial
from typing import Any

from rollout.toolcalls.base import (
    CallError,
    CallErrorKind,
    CallProblem,
    ParsedCall,
    ParsedTurn,
    ToolTypes,
    attempt,
    checked_call,
    decode_prefix,
    escaped,
    split_reasoning,
)


class OpenAIJsonParser:
    """Reads arguments from their JSON string; an empty string stands for no arguments."""

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart; text that is no message with `tool_calls` is content."""
        reasoning, rest = split_reasoning(text)
        source = rest.strip()
        decoded = decode_prefix(source, 0)
        if decoded is None or decoded[1] != len(source) or not isinstance(decoded[0], dict):
            return ParsedTurn(
                content=source, reasoning=reasoning, calls=_broken(source, decoded is None)
            )
        message = decoded[0]
        said = message.get("content")
        said = escaped(said) if isinstance(said, str) else None
        items = message.get("tool_calls")
        if not isinstance(items, list):
            content = said if said is not None and "role" in message else source
            return ParsedTurn(content=content, reasoning=reasoning)
        calls = tuple(attempt(partial(_read, item, tools), repr(item)) for item in items)
        return ParsedTurn(content=said or "", reasoning=reasoning, calls=calls)


def _broken(source: str, cut: bool) -> tuple[CallError, ...]:
    if not source.startswith("{") or '"tool_calls"' not in source:
        return ()
    if cut and not source.endswith("}"):
        kind, detail = CallErrorKind.INCOMPLETE, "the message is cut off"
    else:
        kind, detail = CallErrorKind.INVALID_JSON, "the message is not JSON"
    return (CallError(kind=kind, detail=detail, raw=source),)


def _read(item: Any, tools: ToolTypes | None) -> ParsedCall:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict):
        raise CallProblem(CallErrorKind.MISSING_NAME, 'a call needs a "function" object')
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        text = arguments.strip()
        decoded = decode_prefix(text, 0) if text else ({}, 0)
        if decoded is None or decoded[1] != len(text):
            raise CallProblem(
                CallErrorKind.INVALID_JSON,
                "the arguments string is not JSON",
                name if isinstance(name, str) else "",
            )
        arguments = decoded[0]
    return checked_call(name, arguments, tools)
