"""Qwen 3 coder format: <function=name> with <parameter=name> blocks, typed by the tool's schema."""

import re
from typing import Any

from rollout.toolcalls.base import (
    FENCE,
    THINK_OPEN,
    CallError,
    CallErrorKind,
    CallProblem,
    ParsedCall,
    ParsedTurn,
    ToolTypes,
    attempt,
    checked_call,
    decode_prefix,
    next_of,
    skip_block,
    split_reasoning,
)

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
FUNCTION_CLOSE = "</function>"


class Qwen3XmlParser:
    """Reads values as text and gives them the type that the schema names."""

    def __init__(self) -> None:
        """Compiles the patterns of the two inner tags."""
        self._function = re.compile(r"\s*<function=([^>\n]*)>")
        self._parameter = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart."""
        reasoning, rest = split_reasoning(text)
        calls: list[ParsedCall | CallError] = []
        content: list[str] = []
        position = 0
        while found := next_of(rest, position, OPEN, THINK_OPEN, FENCE):
            start, marker = found
            call: ParsedCall | CallError | None = None
            if marker == OPEN:
                call, end = self._read(rest, start, tools)
            else:
                end = skip_block(rest, start)
            hidden = marker == THINK_OPEN or isinstance(call, ParsedCall)
            content.append(rest[position : start if hidden else end])
            if call is not None:
                calls.append(call)
            position = end
        content.append(rest[position:])
        return ParsedTurn(content="".join(content).strip(), reasoning=reasoning, calls=tuple(calls))

    def _read(
        self, text: str, start: int, tools: ToolTypes | None
    ) -> tuple[ParsedCall | CallError | None, int]:
        function = self._function.match(text, start + len(OPEN))
        if function is None:
            return self._no_function(text, start)
        name, position = function[1].strip(), function.end()
        values: dict[str, str] = {}
        while parameter := self._parameter.match(text, position):
            values[parameter[1].strip()] = parameter[2].removeprefix("\n").removesuffix("\n")
            position = parameter.end()
        closed = re.compile(rf"\s*{FUNCTION_CLOSE}\s*{CLOSE}").match(text, position)
        if closed is None:
            stop = text.find(CLOSE, position)
            end = len(text) if stop < 0 else stop + len(CLOSE)
            kind = CallErrorKind.INCOMPLETE if stop < 0 else CallErrorKind.INVALID_SYNTAX
            detail = f"expected <parameter=...> or {FUNCTION_CLOSE}{CLOSE}"
            return CallError(kind=kind, detail=detail, raw=text[start:end], name=name), end
        raw = text[start : closed.end()]
        return attempt(lambda: _typed(name, values, tools), raw), closed.end()

    @staticmethod
    def _no_function(text: str, start: int) -> tuple[CallError | None, int]:
        after = start + len(OPEN)
        stop = text.find(CLOSE, after)
        if stop >= 0:
            end = stop + len(CLOSE)
            detail = f"expected <function=...> after {OPEN}"
            kind = CallErrorKind.INVALID_SYNTAX
            return CallError(kind=kind, detail=detail, raw=text[start:end]), end
        if not text[after:].strip() or text[after:].lstrip().startswith("<f"):
            kind = CallErrorKind.INCOMPLETE
            return CallError(kind=kind, detail="the call is cut off", raw=text[start:]), len(text)
        return None, after


def _typed(name: str, values: dict[str, str], tools: ToolTypes | None) -> ParsedCall:
    types = (tools or {}).get(name, {})
    arguments = {key: _value(key, text, types.get(key, ""), name) for key, text in values.items()}
    return checked_call(name, arguments, tools)


def _value(key: str, text: str, kind: str, name: str) -> Any:
    """Converts a value; a scalar that does not fit stays text, and the schema check says so."""
    if kind in {"", "string"}:
        return text
    decoded = decode_prefix(text.strip(), 0)
    if decoded is not None and decoded[1] == len(text.strip()):
        return decoded[0]
    if kind in {"object", "array"}:
        raise CallProblem(
            CallErrorKind.INVALID_JSON, f"parameter {key!r} is not JSON of type {kind}", name
        )
    return {"true": True, "false": False}.get(text.strip().lower(), text)
