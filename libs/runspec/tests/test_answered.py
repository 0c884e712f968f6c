import json

import pytest

from runspec.answered import AnsweredTask, read_answered
from runspec.jsonl import read_rows
from runspec.rows import RowProblems
from trajectory.types import Role

USER = {"role": "user", "content": "What is 2 + 3?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "5"}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "function": {"name": "calculator", "arguments": {"e": "2+3"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}


def read(row: object, *required: str) -> tuple[AnsweredTask | None, list[str]]:
    problems = RowProblems("f.jsonl")
    (line,) = read_rows(json.dumps(row).encode(), "f.jsonl")
    found = read_answered(line, set(required), problems)
    return found, [f"{problem.field}: {problem.message}" for problem in problems.found]


@pytest.mark.parametrize("key", ["response", "completion"])
@pytest.mark.parametrize("prompt", [{"messages": [USER]}, {"prompt": "What is 2 + 3?"}])
def test_response_beside_the_task(key: str, prompt: dict[str, object]) -> None:
    found, problems = read({**prompt, "answer": 5, key: "It is 5"}, "answer")
    assert problems == []
    assert found is not None
    assert found.task.messages[-1].text == "What is 2 + 3?"
    assert found.response[-1].text == "It is 5"
    assert found.task.reference == {"answer": 5}


def test_empty_response_is_a_response() -> None:
    found, problems = read({"messages": [USER], "response": ""})
    assert (problems, found and found.response[0].content) == ([], ())


def test_conversation_is_cut_after_its_last_user_message() -> None:
    earlier = [SYSTEM, USER, ANSWER]
    found, problems = read({"messages": [*earlier, USER, CALL, RESULT, ANSWER], "answer": 5})
    assert problems == []
    assert found is not None
    assert [m.role for m in found.task.messages] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
    ]
    assert [m.role for m in found.response] == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


def test_two_responses_to_one_task_share_its_id() -> None:
    first, _ = read({"messages": [USER], "answer": 5, "response": "5"})
    second, _ = read({"messages": [USER], "answer": 5, "response": "6"})
    third, _ = read({"messages": [USER, ANSWER], "answer": 5})
    assert first and second and third
    assert first.task.task_id == second.task.task_id == third.task.task_id


def test_completion_as_messages_keeps_calls_and_results() -> None:
    found, problems = read({"prompt": [USER], "completion": [CALL, RESULT, ANSWER]})
    assert problems == []
    assert found is not None
    assert found.response[0].tool_calls[0].name == "calculator"


@pytest.mark.parametrize(("reason", "cut_off"), [("length", True), ("stop", False), (None, False)])
def test_finish_reason_says_whether_the_response_was_cut_off(
    reason: str | None, cut_off: bool
) -> None:
    found, _ = read({"messages": [USER], "response": "5", "finish_reason": reason})
    assert found is not None
    assert found.cut_off is cut_off
    assert "finish_reason" not in found.task.reference


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER]}, "response: missing; the row has no response or completion"),
        ({"prompt": "q", "answer": 1}, "response: missing; the row has prompt, answer"),
        ({"messages": [USER, CALL, RESULT]}, "messages[2].role: found tool, expected the last"),
        ({"messages": [USER], "response": 5}, "response: found the number 5, expected a list"),
        ({"messages": [USER], "response": [USER]}, "response[0].role: found user, expected"),
        ({"messages": [USER], "response": "a", "completion": "b"}, "completion: found response"),
        (
            {"messages": [USER], "response": "a", "finish_reason": "eos"},
            "finish_reason: found the text 'eos', expected stop, length, tool_calls",
        ),
        ({"messages": [SYSTEM], "response": "a"}, "messages[0].role: found system"),
    ],
)
def test_wrong_rows_name_field_and_finding(row: object, expected: str) -> None:
    found, problems = read(row)
    assert found is None
    assert any(problem.startswith(expected) for problem in problems), problems


def test_missing_reference_is_named() -> None:
    found, problems = read({"messages": [USER], "response": "5"}, "answer")
    assert found is None
    assert problems[0].startswith("answer: missing; the grader reads {{item.answer}}")
