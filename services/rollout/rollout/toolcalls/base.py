"""What all tool-call parsers share: their result, the errors, strict JSON, and reasoning blocks.

A parser reads only what the policy said. It never repairs: a malformed call becomes a `CallError`
that the agent loop sends back to the model, so nothing runs that the model did not write.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, Protocol

from trajectory.types import ToolDefinition

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
FENCE = "```"

ToolTypes = Mapping[str, Mapping[str, str]]
"""Known tools: name -> parameter -> JSON type; the types may be empty."""


class CallErrorKind(StrEnum):
    """What is wrong with a call."""

    INVALID_JSON = "invalid_json"
    INVALID_SYNTAX = "invalid_syntax"
    INCOMPLETE = "incomplete"
    MISSING_NAME = "missing_name"
    UNKNOWN_TOOL = "unknown_tool"
    ARGUMENTS_NOT_OBJECT = "arguments_not_object"
    NON_LITERAL_ARGUMENT = "non_literal_argument"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A well-formed call."""

    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A malformed call; `raw` is what the model wrote."""

    kind: CallErrorKind
    detail: str
    raw: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A sampled turn taken apart; calls and errors in the order of the text."""

    content: str
    """Text outside well-formed calls and reasoning."""
    reasoning: str = ""
    calls: tuple[ParsedCall | CallError, ...] = ()


class ToolCallParser(Protocol):
    """Finds the calls in what the policy said."""

    def parse(self, text: str, tools: ToolTypes | None) -> ParsedTurn:
        """Takes a turn apart; with `tools` None any name is accepted."""


class CallProblem(Exception):
    """Raised inside parsers; becomes a `CallError`."""

    def __init__(self, kind: CallErrorKind, detail: str, name: str = "") -> None:
        """Takes the kind of error, a line for the model, and the tool if it is known."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.name = name


def tool_types(tools: tuple[ToolDefinition, ...]) -> dict[str, dict[str, str]]:
    """Reads the parameter types of tools from their JSON schemas."""
    return {tool.name: _parameter_types(tool.parameters_json) for tool in tools}


def strict_json() -> json.JSONDecoder:
    """Makes a decoder that refuses what JSON cannot hold: NaN, infinities, overflowing numbers."""
    return json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)


def decode_prefix(text: str, start: int) -> tuple[Any, int] | None:
    """Decodes the JSON value at `start`; returns it with its end, or None if there is none."""
    try:
        value, end = strict_json().raw_decode(text, start)
    except (ValueError, RecursionError):  # Deep nesting overflows the decoder's stack.
        return None
    return value, end


def checked_call(name: Any, arguments: Any, tools: ToolTypes | None) -> ParsedCall:
    """Checks a decoded call.

    Raises:
        CallProblem: no name, an unknown tool, arguments that are no object, or text that is not Unicode.
    """
    if not isinstance(name, str) or not name:
        raise CallProblem(CallErrorKind.MISSING_NAME, 'a call needs a non-empty "name"')
    _check_text(name)
    if tools is not None and name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        raise CallProblem(
            CallErrorKind.UNKNOWN_TOOL, f"no tool named {name!r}; tools: {known}", name
        )
    if not isinstance(arguments, dict):
        found = "nothing" if arguments is None else type(arguments).__name__
        raise CallProblem(
            CallErrorKind.ARGUMENTS_NOT_OBJECT,
            f"arguments must be a JSON object, found {found}",
            name,
        )
    try:
        arguments_json = json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError) as error:  # Too many digits or levels.
        raise CallProblem(CallErrorKind.INVALID_JSON, f"arguments: {error}", name) from error
    _check_text(arguments_json, name)
    return ParsedCall(name=name, arguments_json=arguments_json)


def attempt(make: Callable[[], ParsedCall], raw: str) -> ParsedCall | CallError:
    """Runs one call's checks and turns a problem into an error with its text."""
    try:
        return make()
    except CallProblem as problem:
        return CallError(
            kind=problem.kind,
            detail=escaped(problem.detail),
            raw=raw,
            name=escaped(problem.name),
        )


def escaped(text: str) -> str:
    """Returns text that has UTF-8: half a surrogate pair is written out as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def split_reasoning(text: str) -> tuple[str, str]:
    """Splits leading reasoning off; returns (reasoning, rest).

    A chat template may open the block in the prompt, so a closing tag before anything else of note
    ends reasoning too. A block that never closes leaves no rest: its calls are drafts.
    """
    stripped = text.lstrip()
    if stripped.startswith(THINK_OPEN):
        reasoning, closed, rest = stripped[len(THINK_OPEN) :].partition(THINK_CLOSE)
        return reasoning.strip(), rest if closed else ""
    return "", text


def skip_block(text: str, start: int) -> int:
    """Returns the end of the reasoning block or closed code fence at `start`; `start` if none."""
    if text.startswith(THINK_OPEN, start):
        end = text.find(THINK_CLOSE, start)
        return len(text) if end < 0 else end + len(THINK_CLOSE)
    if text.startswith(FENCE, start):
        end = text.find(FENCE, start + len(FENCE))
        return start + len(FENCE) if end < 0 else end + len(FENCE)
    return start


def next_of(text: str, start: int, *markers: str) -> tuple[int, str] | None:
    """Finds the first of several markers at or after `start`."""
    found = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(found) if found else None


def _check_text(text: str, name: str = "") -> None:
    """Refuses half a surrogate pair: JSON can escape it, but it is no character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"\\u{ord(text[error.start]):04x}"
        raise CallProblem(
            CallErrorKind.INVALID_JSON, f"{found} is half a surrogate pair, no character", name
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} does not fit a JSON number")
    return value


def _parameter_types(parameters_json: str) -> dict[str, str]:
    schema = json.loads(parameters_json) if parameters_json.strip() else {}
    types = {}
    for name, prop in schema.get("properties", {}).items():
        kind = prop.get("type") if isinstance(prop, dict) else None
        types[name] = kind if isinstance(kind, str) else ""
    return types
