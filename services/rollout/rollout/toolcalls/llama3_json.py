"""Llama 3 format: bare JSON objects with "name" and "parameters", anywhere in the text."""

import re

from rollout.toolcalls.base import (
    FENCE,
    THINK_OPEN,
    CallError,
    CallErrorKind,
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

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser:
    """Takes an object for a call only if it has both a name and parameters (or arguments)."""

    def __init__(self) -> None:
        """Compiles the pattern of a call that was begun but is not JSON."""
        self._begun = re.compile(
            r'\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:parameters|arguments)"\s*:'
        )

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart."""
        reasoning, rest = split_reasoning(text)
        tagged = rest.lstrip().startswith(PYTHON_TAG)
        if tagged:
            rest = rest.lstrip()[len(PYTHON_TAG) :]
            if not rest.strip():
                empty = CallError(
                    kind=CallErrorKind.INCOMPLETE,
                    detail=f"nothing follows {PYTHON_TAG}",
                    raw=PYTHON_TAG,
                )
                return ParsedTurn(content="", reasoning=reasoning, calls=(empty,))
        calls: list[ParsedCall | CallError] = []
        content: list[str] = []
        position = 0
        while found := next_of(rest, position, "{", THINK_OPEN, FENCE):
            start, marker = found
            call: ParsedCall | CallError | None = None
            if marker == "{":
                call, end = self._read(rest, start, tools)
            else:
                end = skip_block(rest, start)
            hidden = marker == THINK_OPEN or isinstance(call, ParsedCall)
            content.append(rest[position : start if hidden else end])
            if call is not None:
                calls.append(call)
            position = end
        content.append(rest[position:])
        said = "".join(content).strip().strip(";").strip()
        return ParsedTurn(content=said, reasoning=reasoning, calls=tuple(calls))

    def _read(
        self, text: str, start: int, tools: ToolTypes | None
    ) -> tuple[ParsedCall | CallError | None, int]:
        decoded = decode_prefix(text, start)
        if decoded is None:
            return self._broken(text, start)
        value, end = decoded
        if "name" not in value or not ({"parameters", "arguments"} & set(value)):
            return None, end
        arguments = value.get("parameters", value.get("arguments"))
        return attempt(lambda: checked_call(value["name"], arguments, tools), text[start:end]), end

    def _broken(self, text: str, start: int) -> tuple[CallError | None, int]:
        begun = self._begun.match(text, start)
        if begun is None:
            return None, start + 1
        closed = text.find("}", begun.end())
        if closed < 0:
            kind, detail, end = CallErrorKind.INCOMPLETE, "the call is cut off", len(text)
        else:
            kind, detail, end = CallErrorKind.INVALID_JSON, "the call is not JSON", closed + 1
        return CallError(kind=kind, detail=detail, raw=text[start:end], name=begun[1]), end
