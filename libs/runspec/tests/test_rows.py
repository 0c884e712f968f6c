import gzip
import json

import pytest

from runspec.graderfields import required_fields
from runspec.problems import RowErrors
from runspec.rows import parse_tasks
from trajectory.types import ImagePart, Role

USER = {"role": "user", "content": "What is 2 + 3?"}
ANSWER = {"role": "assistant", "content": "5"}


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def task_errors(data: bytes, required: frozenset[str] = frozenset()) -> list[str]:
    with pytest.raises(RowErrors) as caught:
        parse_tasks(data, source="tasks.jsonl", required=required)
    return str(caught.value).splitlines()


def test_task_in_the_openai_shape() -> None:
    row = {"id": "t1", "messages": [{"role": "system", "content": "Be brief."}, USER], "answer": 5}
    (task,) = parse_tasks(jsonl(row), source="f", required={"answer"})
    assert task.task_id == "t1"
    assert [message.role for message in task.messages] == [Role.SYSTEM, Role.USER]
    assert task.reference == {"answer": 5}


@pytest.mark.parametrize("prompt", ["What is 2 + 3?", [USER]])
def test_task_in_the_trl_shape(prompt: object) -> None:
    row = {"prompt": prompt, "reward_model": {"ground_truth": "5"}}
    (task,) = parse_tasks(jsonl(row), source="f", required={"reward_model.ground_truth"})
    assert task.messages[0].text == "What is 2 + 3?"


def test_task_id_is_a_hash_of_the_content_when_none_is_given() -> None:
    rows = jsonl({"messages": [USER], "answer": 5}, {"answer": 6, "messages": [USER]})
    first, second = parse_tasks(rows, source="f", required=set())
    same = parse_tasks(jsonl({"answer": 5, "messages": [USER]}), source="g", required=set())
    assert first.task_id == same[0].task_id != second.task_id


def test_image_parts_are_kept() -> None:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
    row = {"messages": [{"role": "user", "content": content}]}
    (task,) = parse_tasks(jsonl(row), source="f", required=set())
    assert task.messages[0].content[1] == ImagePart(data=b"hi", media_type="image/png")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER]}, "answer: missing; the grader reads {{item.answer}}, the row has no "
         "reference fields"),
        ({"messages": [USER], "anwser": 5}, "answer: missing; the grader reads {{item.answer}}, "
         "the row's reference fields are anwser; did you mean anwser?"),
        ({"messages": [USER], "answer": ""}, "answer: empty; the grader reads"),
        ({"messages": [USER], "answer": None}, "answer: empty; the grader reads"),
        ({"mesages": [USER], "answer": 5}, "messages: missing; the row has mesages, answer; did "
         "you mean messages by mesages?"),
        ({"messages": [], "answer": 5}, "messages: found a list of 0, expected a list of at least"),
        ({"messages": [USER, ANSWER], "answer": 5}, "messages[1].role: found assistant, expected "
         "the last to be user"),
        ({"messages": [{"role": "human", "content": "x"}], "answer": 5}, "messages[0].role: found "
         "the text 'human', expected system, user, assistant or tool"),
        ({"messages": [{"role": "user", "text": "x"}], "answer": 5}, "messages[0].text: unknown"),
        ({"messages": [{"role": "user", "content": 7}], "answer": 5}, "messages[0].content: found "
         "the number 7, expected a text or a list of parts"),
        ({"messages": [USER], "prompt": "x", "answer": 5}, "prompt: found messages and prompt"),
        ({"messages": [USER], "id": [1], "answer": 5}, "id: found a list of 1"),
        ([1], "found a list of 1, expected a JSON object"),
    ],
)  # fmt: skip
def test_bad_task_row_names_file_line_and_field(row: object, expected: str) -> None:
    data = jsonl({"messages": [USER], "answer": 1}) + b"\n" + jsonl(row)
    lines = task_errors(data, frozenset({"answer"}))
    assert lines[0].startswith(f"tasks.jsonl:3: {expected}")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"messages": ', "is not JSON: Expecting value at column 14"),
        (b'{"a": NaN}', "has NaN, which is not a JSON number"),
        (b'{"a": 1, "a": 2}', "has the key 'a' twice in one object"),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 7 of the line)"),
        (b'{"a": ' + b"[" * 100_000, "is nested too deeply"),
        (b'{"a": "x', "is not JSON: Unterminated string starting at column 7"),
        (b'{"a": ' + b"9" * 5000 + b"}", "holds a number of 5000 digits; give it as a text"),
    ],
)
def test_line_that_is_no_object_is_named(raw: bytes, expected: str) -> None:
    assert task_errors(b"\n" + raw + b"\n") == [f"tasks.jsonl:2: {expected}"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'\xef\xbb\xbf [\n {"prompt": "x"},\n {"prompt": "y"}\n]', "is a JSON list; expected one"),
        ('{"prompt": "x"}\n{"prompt": "y"}\n'.encode("utf-16"), "is UTF-16, expected UTF-8"),
        (gzip.compress(b'{"prompt": "x"}\n' * 9), "is compressed by gzip, expected a name"),
        (b"PAR1\x15\n\x00\n", "is parquet, expected a name that ends with .parquet"),
        (b"a\n\x00\xff\n", "is a binary file"),
    ],
)
def test_file_of_another_format_is_one_problem_and_not_one_per_line(
    data: bytes, expected: str
) -> None:
    (line,) = task_errors(data)
    assert line.startswith(f"tasks.jsonl: {expected}")


def test_object_may_be_laid_out_over_lines() -> None:
    rows = [{"prompt": "x", "a": {"b": []}}, {"prompt": "y"}]
    data = "\n".join(json.dumps(row, indent=2) for row in rows) + '\n\n{"prompt": "z"}\n'
    tasks = parse_tasks(data.encode(), source="f", required=set())
    assert [task.messages[0].text for task in tasks] == ["x", "y", "z"]
    assert tasks[0].reference == {"a": {"b": []}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b'\n{\n "prompt": \n}\n{"prompt": "x"}',
            "2: is not JSON: Expecting value at column 1 of line 4",
        ),
        (b'{\n "prompt": "x"', "1: is not JSON: Expecting ',' delimiter at column 1 of line 3"),
    ],
)
def test_broken_object_over_lines_is_one_problem(data: bytes, expected: str) -> None:
    assert task_errors(data) == [f"tasks.jsonl:{expected}"]


def test_byte_order_mark_is_no_part_of_the_first_row() -> None:
    (task,) = parse_tasks(b'\xef\xbb\xbf{"prompt": "x"}', source="f", required=set())
    assert task.messages[0].text == "x"


def test_empty_file_is_refused() -> None:
    assert task_errors(b"\n\n") == ["tasks.jsonl: is empty; expected one JSON object per line"]


def test_duplicate_ids_are_refused() -> None:
    data = jsonl({"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"}, {"id": "a", "prompt": "y"})
    assert task_errors(data) == ["tasks.jsonl:3: id: found 'a' again; first on line 1"]
    same = jsonl({"prompt": "x"}, {"prompt": "x"})
    assert task_errors(same) == ["tasks.jsonl:2: the row's content is again; first on line 1"]


def test_reading_stops_after_twenty_errors() -> None:
    lines = task_errors(jsonl(*[{"x": i} for i in range(100)]))
    assert len(lines) == 21
    assert lines[-1] == "tasks.jsonl: further rows were not looked at"


def test_violations_are_keyed_by_line_and_field() -> None:
    with pytest.raises(RowErrors) as caught:
        parse_tasks(jsonl({"prompt": "x"}), source="f", required={"answer"})
    assert list(caught.value.violations()) == ["line 1: answer"]


def test_required_fields_are_those_of_the_templates() -> None:
    grader = {
        "type": "multi",
        "graders": {
            "a": {"type": "answer", "reference": "{{item.answer}}"},
            "b": {
                "type": "string_check",
                "input": "{{ sample.output_text }} {{ item.extra.index }}",
            },
        },
        "items": [{"reference": "{{item.unit}} of {{item.answer}}"}],
        "minimum": "item.min_calls",
        "source": "return item.score",
    }
    assert required_fields(grader) == {"answer", "extra.index", "unit", "min_calls"}
    assert required_fields(None) == set()
