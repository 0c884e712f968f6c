import json
import os
from pathlib import Path

import pytest

from runspec.preferences import PreferenceRow, parse_preferences
from runspec.problems import RowErrors
from trajectory.types import Role

USER = {"role": "user", "content": "What is 2 + 3?"}
GOOD = {"role": "assistant", "content": "5"}
BAD = {"role": "assistant", "content": "6"}
PAIR = {"prompt": "x", "chosen": "a", "rejected": "b"}
SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
CASES = SHARED / "cases" / "losses.json"
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
    assert (found.margin, found.soft_label) == (0.0, 1.0)


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
        ({**PAIR, "soft_label": 1.2}, "soft_label: found the number 1.2, expected a probability"),
        ({**PAIR, "soft_label": -0.1}, "soft_label: found the number -0.1, expected"),
        ({**PAIR, "soft_label": 10**400}, "soft_label: found the number 1000"),
        ({**PAIR, "soft_label": "0.7"}, "soft_label: found the text '0.7', expected"),
        ({**PAIR, "soft_label": True}, "soft_label: found true, expected a probability"),
        ({**PAIR, "soft_label": [0.7]}, "soft_label: found a list of 1, expected a probability"),
        ({**PAIR, "soft_label": float("nan")}, "has NaN, which is not a JSON number"),
        ({**PAIR, "soft_labl": 0.7}, "soft_labl: unknown key; did you mean soft_label?"),
        (
            {**PAIR, "first_shown_probabilities": 0.7},
            "first_shown_probabilities: found the number 0.7, expected a list of two numbers",
        ),
        (
            {**PAIR, "first_shown_probabilities": [0.7]},
            "first_shown_probabilities: found a list of 1, expected a list of two numbers",
        ),
        (
            {**PAIR, "first_shown_probabilities": [0.7, 1.5]},
            "first_shown_probabilities[1]: found the number 1.5, expected a probability",
        ),
        (
            {**PAIR, "first_shown_probabilities": [None, 0.5]},
            "first_shown_probabilities[0]: found nothing (null), expected a probability",
        ),
        (
            {**PAIR, "soft_label": 0.7, "first_shown_probabilities": [0.8, 0.4]},
            "soft_label: found soft_label and first_shown_probabilities, expected one of them",
        ),
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


@pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED")
def test_answers_of_a_judge_in_both_orders_are_the_shared_case() -> None:
    cases = {case["id"]: case for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]}
    case = cases["rlaif_soft_label"]
    said = [case["inputs"][f"p_first_shown_order{order}"] for order in (1, 2)]
    found = one({**PAIR, "first_shown_probabilities": said}).soft_label
    assert found == pytest.approx(case["expected"]["p_answer1"], abs=case["tol"])


@pytest.mark.parametrize(
    ("answers", "label"),
    [([1, 0], 1.0), ([0, 1], 0.0), ([1, 1], 0.5), ([0.75, 0.75], 0.5), ([0.25, 0.5], 0.375)],
)
def test_judge_that_always_takes_the_first_place_says_nothing(
    answers: list[float], label: float
) -> None:
    assert one({**PAIR, "first_shown_probabilities": answers}).soft_label == label


def test_label_of_a_judge_who_disagrees_with_the_order_of_the_row_is_kept() -> None:
    found = one({**PAIR, "soft_label": 0.25, "margin": 1})
    assert (found.soft_label, found.margin) == (0.25, 1.0)
    assert [m.text for m in (*found.chosen, *found.rejected)] == ["a", "b"]
    assert [one({**PAIR, "soft_label": label}).soft_label for label in (0, 1)] == [0.0, 1.0]


def test_empty_column_of_a_table_and_columns_of_others_are_no_label() -> None:
    empty = {"soft_label": None, "first_shown_probabilities": None}
    for more in (empty, {"label": 0, "labels": "a", "probability": 0.3, "chosen_rating": 2}):
        assert one({**PAIR, **more}).soft_label == 1.0
