import json

import pytest

from runspec.problems import RowErrors
from runspec.sft_rows import parse_sft_rows
from trajectory.types import Role

USER = {"role": "user", "content": "What is 2 + 3?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "calculator", "arguments": '{"expression": "2 + 3"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "name": "calculator", "content": "5"}
ANSWER = {"role": "assistant", "content": "5"}


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def sft_errors(data: bytes) -> list[str]:
    with pytest.raises(RowErrors) as caught:
        parse_sft_rows(data, source="sft.jsonl")
    return str(caught.value).splitlines()


def test_sft_row_with_a_tool_call() -> None:
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
    messages = [USER, CALL, RESULT, ANSWER]
    as_list, as_text = parse_sft_rows(
        jsonl(
            {"messages": messages, "tools": tools},
            {"messages": messages, "tools": json.dumps(tools)},
        ),
        source="f",
    )
    assert as_list == as_text
    assert as_list.messages[1].tool_calls[0].arguments_json == '{"expression": "2 + 3"}'
    assert as_list.tools[0].name == "calculator"


@pytest.mark.parametrize(
    ("row", "num_given"),
    [
        ({"prompt": "2 + 3?", "completion": "5"}, 1),
        ({"prompt": [USER], "completion": [ANSWER]}, 1),
        ({"messages": [USER, ANSWER, USER], "completion": "5"}, 3),
        ({"prompt": [USER, ANSWER, USER], "completion": [CALL, RESULT, ANSWER]}, 3),
        ({"messages": [USER, ANSWER]}, 0),
        ({"prompt": [USER, ANSWER]}, 0),
    ],
)
def test_prompt_of_a_completion_is_given_whoever_speaks_in_it(row: object, num_given: int) -> None:
    (read,) = parse_sft_rows(jsonl(row), source="f")
    assert read.num_given == num_given
    assert read.messages[num_given if num_given else -1].role is Role.ASSISTANT


def test_plain_text_is_kept_to_the_letter() -> None:
    (row,) = parse_sft_rows(jsonl({"text": " a\n", "source": "x"}), source="f")
    assert (row.text, row.messages, row.num_given) == (" a\n", (), 0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER]}, "messages[0].role: ends with user, expected the last message to be"),
        ({"messages": [USER, RESULT, ANSWER]}, "messages[1].tool_call_id: found 'c1', expected "
         "the id of a call made before it"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content: found nothing"),
        ({"messages": [USER, ANSWER], "tool": []}, "tool: unknown key; did you mean tools?"),
        ({"messages": [USER, ANSWER], "tools": "["}, "tools: found a text that is not JSON"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function":
         {"name": "f", "arguments": "{"}}]}]}, "messages[1].tool_calls[0].function.arguments: found"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f"}]}]},
         "messages[1].tool_calls[0]: found a mapping with name, expected"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}, ANSWER]},
         "messages[0].tool_calls: found calls by user"),
        ({"prompt": "x"}, "prompt: ends with user, expected the last message to be by assistant; or"),
        ({"txt": "x"}, "messages: missing, and so are prompt and text; the row has txt; did you "
         "mean text by txt?"),
        ({"messages": [USER, ANSWER], "text": "x"}, "text: found messages and text, expected one"),
        ({"prompt": "x", "messages": [USER, ANSWER]}, "prompt: found messages and prompt"),
        ({"text": ""}, "text: found an empty text, expected a text to imitate"),
        ({"text": ["x"]}, "text: found a list of 1"),
        ({"text": "x", "completion": "y"}, "completion: has no effect beside text"),
        ({"text": "x", "tools": []}, "tools: has no effect beside text"),
        ({"prompt": "x", "completion": ""}, "completion: found an empty text, expected a list"),
        ({"prompt": "x", "completion": None}, "prompt: ends with user, expected the last message"),
        ({"text": None}, "text: found nothing (null), expected what is to be imitated"),
        ({"messages": [USER, ANSWER], "tools": "[" * 100_000}, "tools: found a text that is nested "
         "too deeply"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function":
         {"name": "f", "arguments": '{"a": ' + "[" * 100_000}}]}]},
         "messages[1].tool_calls[0].function.arguments: found"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url":
         "data:image/png;base64,\u00e9"}]}, ANSWER]}, "messages[0].content[0].image_url: found a data "
         "URL that is not base64"),
        ({"prompt": "x", "completion": [USER, ANSWER]}, "completion[0].role: found user, expected "
         "the first message to be by assistant"),
        ({"prompt": "x", "completion": [CALL, RESULT]}, "completion[1].role: found tool, expected "
         "the last message to be by assistant"),
        ({"prompt": [USER, ANSWER], "completion": "y"}, "prompt[1].role: found assistant, expected "
         "the completion to be its next turn"),
        ({"messages": [ANSWER, {"role": "system", "content": "x"}, ANSWER]},
         "messages[1].role: found system, expected it only as the first message"),
    ],
)  # fmt: skip
def test_bad_sft_row_names_line_and_field(row: object, expected: str) -> None:
    assert sft_errors(jsonl(row))[0].startswith(f"sft.jsonl:1: {expected}")


def test_row_of_a_table_may_hold_nothing_in_the_columns_of_other_shapes() -> None:
    (row,) = parse_sft_rows(
        jsonl({"messages": [USER, ANSWER], "text": None, "prompt": None, "completion": None}),
        source="sft.jsonl",
    )
    assert len(row.messages) == 2
