"""Tool-call parsers: the shared cases, and properties that hold for any text."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.toolcalls.base import CallError, ParsedCall, tool_types
from rollout.toolcalls.table import PARSERS, make_parser
from trajectory.toolformats import TOOL_FORMATS
from trajectory.types import ToolCall, ToolDefinition


def shared_cases() -> list[dict[str, Any]]:
    root = os.environ.get("HONE_SHARED") or str(Path(__file__).parents[4] / "shared")
    path = Path(root) / "cases" / "toolcalls.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def known_tools(tools: Any) -> Mapping[str, Mapping[str, str]] | None:
    if tools is None:
        return None
    return tools if isinstance(tools, dict) else {name: {} for name in tools}


@pytest.mark.skipif(not shared_cases(), reason="the shared cases are not there")
@pytest.mark.parametrize("case", shared_cases(), ids=lambda case: case["id"])
def test_shared_case(case: dict[str, Any]) -> None:
    if case["role"] != "assistant":
        pytest.skip("only what the policy said is parsed; the loop never parses another role")
    turn = make_parser(case["format"]).parse(case["text"], known_tools(case["tools"]))
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments_json)}
        for call in turn.calls
        if isinstance(call, ParsedCall)
    ]
    errors = [call.kind.value for call in turn.calls if isinstance(call, CallError)]
    assert calls == case["expected_calls"]
    assert (errors or [None])[0] in (case["expected_error"], *case["alt_errors"])


@pytest.mark.parametrize("tool_format", sorted(PARSERS))
@given(text=st.text(), wrapped=st.booleans())
def test_any_text_is_parsed_without_a_crash(tool_format: str, text: str, wrapped: bool) -> None:
    said = f"<tool_call>{text}</tool_call>" if wrapped else text
    make_parser(tool_format).parse(said, None)


@pytest.mark.parametrize("tool_format", sorted(PARSERS))
@given(
    arguments=st.dictionaries(
        st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(
            lambda s: s not in {"if", "in", "is", "or", "as", "and", "not", "def", "del", "for",
                                "try", "from", "pass", "else", "elif", "with", "class", "while",
                                "yield", "async", "await", "break", "lambda", "raise", "return",
                                "assert", "except", "global", "import"}
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\r<\x00")),
        max_size=3,
    )
)  # fmt: skip
def test_what_is_written_is_read_back(tool_format: str, arguments: dict[str, str]) -> None:
    call = ToolCall(tool_call_id="c", name="search", arguments_json=json.dumps(arguments))
    written = TOOL_FORMATS[tool_format].write([call])
    (read,) = make_parser(tool_format).parse(written, None).calls
    assert isinstance(read, ParsedCall)
    assert read.name == "search"
    assert json.loads(read.arguments_json) == arguments


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_cannot_hold_are_refused(number: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": {number}}}}}</tool_call>'
    (call,) = make_parser("hermes").parse(text, None).calls
    assert isinstance(call, CallError)
    assert call.kind == "invalid_json"


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000 + "</tool_call>"
    (call,) = make_parser("hermes").parse(text, None).calls
    assert isinstance(call, CallError)


def test_missing_arguments_are_not_taken_for_an_empty_object() -> None:
    (call,) = make_parser("hermes").parse('<tool_call>{"name": "f"}</tool_call>', None).calls
    assert isinstance(call, CallError)
    assert call.kind == "arguments_not_object"


def test_reasoning_that_never_closes_holds_no_calls() -> None:
    text = '<think>perhaps <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert make_parser("hermes").parse(text, None).calls == ()


def test_content_is_the_text_around_the_calls() -> None:
    text = '<think>hm</think>Now.\n<tool_call>{"name": "f", "arguments": {}}</tool_call> Done.'
    turn = make_parser("hermes").parse(text, None)
    assert turn.content == "Now.\n Done."
    assert turn.reasoning == "hm"


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'herms' is unknown; one of hermes"):
        make_parser("herms")


def test_tool_types_come_from_the_schema() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}, "any": {}}}
    tool = ToolDefinition(name="f", description="", parameters_json=json.dumps(schema))
    assert tool_types((tool,)) == {"f": {"days": "integer", "any": ""}}


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            "hermes",
            '<tool_call>{"name":"calc","arguments":{"expression":"\\ud800"}}</tool_call>',
        ),
        ("hermes", '<tool_call>{"name":"\\ud800","arguments":{}}</tool_call>'),
        ("llama3_json", '{"name":"calc","parameters":{"expression":"\\ud800"}}'),
        ("pythonic", '[calc(expression="\\ud800")]'),
        (
            "openai_json",
            '{"role":"assistant","content":"\\ud800","tool_calls":'
            '[{"function":{"name":"calc","arguments":{"expression":"\\udc00"}}}]}',
        ),
    ],
)
def test_half_a_surrogate_pair_is_a_malformed_call(tool_format: str, text: str) -> None:
    turn = make_parser(tool_format).parse(text, None)
    (error,) = turn.calls
    assert isinstance(error, CallError)
    assert error.kind.value == "invalid_json"
    for said in (turn.content, error.name, error.detail, error.raw):
        said.encode()
