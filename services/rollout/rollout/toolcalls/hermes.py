"""Hermes format: JSON objects in <tool_call> tags. Qwen 2.5 writes the same with line breaks."""

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


class HermesParser:
    """Reads calls by decoding the JSON after each opening tag, so that strings may hold tags."""

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart."""
        reasoning, rest = split_reasoning(text)
        calls: list[ParsedCall | CallError] = []
        content: list[str] = []
        position = 0
        while found := next_of(rest, position, OPEN, THINK_OPEN, FENCE):
            start, marker = found
            if marker != OPEN:
                end = skip_block(rest, start)
                kept = start if marker == THINK_OPEN else end
                content.append(rest[position:kept])
            else:
                call, end = self._read(rest, start, tools)
                kept = start if isinstance(call, ParsedCall) else end
                content.append(rest[position:kept])
                if call is not None:
                    calls.append(call)
            position = end
        content.append(rest[position:])
        return ParsedTurn(content="".join(content).strip(), reasoning=reasoning, calls=tuple(calls))

    def _read(
        self, text: str, start: int, tools: ToolTypes | None
    ) -> tuple[ParsedCall | CallError | None, int]:
        """Reads the call whose tag opens at `start`; None where the tag is only mentioned."""
        body = start + len(OPEN)
        while body < len(text) and text[body].isspace():
            body += 1
        decoded = decode_prefix(text, body)
        if decoded is not None:
            value, end = decoded
            after = end
            while after < len(text) and text[after].isspace():
                after += 1
            if text.startswith(CLOSE, after):
                end = after + len(CLOSE)
                return attempt(lambda: self._check(value, tools), text[start:end]), end
            if after == len(text):
                return self._incomplete(text[start:]), after
        stop = next_of(text, body, CLOSE, OPEN)
        if stop is None:
            if body == len(text) or text[body] == "{":
                return self._incomplete(text[start:]), len(text)
            return None, body
        end = stop[0] + (len(CLOSE) if stop[1] == CLOSE else 0)
        return (
            CallError(
                kind=CallErrorKind.INVALID_JSON,
                detail=f"the text between {OPEN} and {CLOSE} is not one JSON object",
                raw=text[start:end],
            ),
            end,
        )

    @staticmethod
    def _check(value: object, tools: ToolTypes | None) -> ParsedCall:
        if not isinstance(value, dict):
            raise CallProblem(
                CallErrorKind.MISSING_NAME,
                f'a call is an object with "name" and "arguments", found {type(value).__name__}',
            )
        return checked_call(value.get("name"), value.get("arguments"), tools)

    @staticmethod
    def _incomplete(raw: str) -> CallError:
        return CallError(
            kind=CallErrorKind.INCOMPLETE, detail=f"the call has no closing {CLOSE}", raw=raw
        )
