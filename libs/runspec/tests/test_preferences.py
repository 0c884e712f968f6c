import json

import pytest

from runspec.preferences import PreferenceRow, parse_preferences
from runspec.problems import RowErrors
from trajectory.types import Role

USER = {"role": "user", "content": "What is 2 + 3?"}
GOOD = {"role": "assistant", "content": "5"}
BAD = {"role": "assistant", "content": "6"}
HEAD = "\n\nHuman: What is 2 + 3?\n\nAssistant:"


def one(row: object) -> PreferenceRow:
    (found,) = parse_preferences(json.dumps(row).encode(), source="f")
    return found


def errors(*rows: object) -> list[str]:
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    with pytest.raises(RowErrors) as caught:
        parse_preferences(data, source="pairs.jsonl")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is 2 + 3?", "chosen": "5", "rejected": "6"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"messages": [USER], "chosen": "5", "rejected": [BAD]},
        {"prompt": "What is 2 + 3?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": f"{HEAD} 5", "rejected": f"{HEAD} 6"},
        {"prompt": HEAD, "chosen": "5", "rejected": "6", "score_chosen": 3},
    ],
)
def test_every_shape_that_users_know_is_the_same_comparison(row: object) -> None:
    found = one(row)
    assert [(m.role, m.text) for m in found.prompt] == [(Role.USER, "What is 2 + 3?")]
    assert [m.text for m in (*found.chosen, *found.rejected)] == ["5", "6"]
    assert found.margin == 0.0


def test_dialogue_parts_where_the_responses_begin_to_differ() -> None:
    start = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nwith an empty line\n\nAssistant: "
    found = one({"chosen": start + "Human: no turn\n\nd", "rejected": start})
    assert [m.text for m in found.prompt] == ["a", "b", "c\n\nwith an empty line"]
    assert [m.text for m in found.chosen] == ["Human: no turn\n\nd"]
    assert [m.text for m in found.rejected] == [""]


def test_responses_of_several_turns_with_tools_and_a_margin() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    acts = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c", "content": "5"}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    row = {"prompt": [USER], "chosen": [acts, told, GOOD], "rejected": "6", "tools": [tool]}
    found = one({**row, "margin": 2})
    assert [m.role for m in found.chosen] == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [tool.name for tool in found.tools] == ["add"]
    assert found.margin == 2.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x", "chosen": "a"}, "rejected: missing; the row has prompt, chosen"),
        ({"prompt": "x", "chosen": "a", "rejectd": "b"}, "did you mean rejected by rejectd?"),
        ({"prompt": "x", "chosen": "a", "rejected": "a"}, "rejected: found the same as chosen"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "prompt: found an empty text"),
        ({"chosen": "a", "rejected": "b"}, "prompt: missing; the responses are texts"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "have no first message in common"),
        ({"chosen": [USER, GOOD], "rejected": [USER]}, "rejected: found nothing beyond"),
        ({"prompt": [USER], "chosen": [USER], "rejected": [BAD]}, "chosen: found nothing"),
        ({"prompt": "x", "chosen": 3, "rejected": "b"}, "chosen: found the number 3"),
        (
            {
                "chosen": [USER, GOOD, USER, GOOD],
                "rejected": [USER, GOOD, dict(USER, content="y"), BAD],
            },
            "chosen: goes on with user after what both share",
        ),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "margin": -1}, "margin: found the number"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "margin": True}, "margin: found true"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "margn": 1}, "did you mean margin?"),
        ({"prompt": "x", "messages": [USER], "chosen": "a", "rejected": "b"}, "expected one"),
        (
            {"prompt": "x", "completion": "a", "label": True},
            "label: found a completion with a label",
        ),
        ([1], "expected a JSON object"),
    ],
)
def test_bad_row_is_named_by_file_line_and_field(row: object, message: str) -> None:
    good = {"prompt": "x", "chosen": "a", "rejected": "b"}
    (line,) = errors(good, row)
    assert line.startswith("pairs.jsonl:2: ")
    assert message in line


def test_margin_of_many_digits_is_refused_not_overflowed() -> None:
    row = {"prompt": "x", "chosen": "a", "rejected": "b", "margin": 10**400}
    (line,) = errors(row)
    assert "margin: found the number" in line


def test_reading_stops_after_twenty_problems() -> None:
    assert errors(*[{"chosen": "a"}] * 30)[-1].endswith("further rows were not looked at")


def test_response_beside_a_prompt_is_taken_as_it_stands() -> None:
    found = one({"prompt": "x", "chosen": "    return 1\n", "rejected": "Assistant: a\n\nHuman: b"})
    assert [m.text for m in found.chosen] == ["    return 1\n"]
    assert [m.text for m in found.rejected] == ["Assistant: a\n\nHuman: b"]
