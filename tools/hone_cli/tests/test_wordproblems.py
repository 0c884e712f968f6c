"""The example's problems are right, new where they must be, and its files are what the commands accept."""

import json
import random
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hone_cli.examples.arithmetic import Step, steps_of
from hone_cli.examples.wordproblems import (
    LARGEST,
    SHAPES,
    Problem,
    ProblemSource,
    task_row,
    trace_row,
    write_example,
)
from runspec.graderfields import required_fields
from runspec.load import load_run_file
from runspec.rows import parse_tasks
from runspec.sft_rows import parse_sft_rows

FILES = ("evaluate.yaml", "heldout.jsonl", "run.yaml", "sft.jsonl", "sft.yaml", "tasks.jsonl")
OPERATIONS = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    source = ProblemSource(random.Random(7))
    return [source.draw() for _ in range(1500)]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    write_example(folder, 0)
    return folder


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def value_by_precedence(expression: str) -> Fraction:
    """Reads the expression by hand: products first, then sums from left to right."""
    total = Fraction(0)
    for sign, product in re.findall(r"([+-]?)(\d+(?:\*\d+)*)", expression):
        value = Fraction(1)
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def numbers(text: str) -> Counter[str]:
    return Counter(re.findall(r"\d+", text))


def calls_of(row: dict[str, Any]) -> list[str]:
    return [
        json.loads(call["function"]["arguments"])["expression"]
        for message in row["messages"]
        for call in message.get("tool_calls", [])
    ]


def test_answers_are_right_when_worked_out_another_way(problems: list[Problem]) -> None:
    for problem in problems:
        assert value_by_precedence(problem.expression) == problem.answer, problem


def test_text_and_expression_hold_the_same_numbers(problems: list[Problem]) -> None:
    for problem in problems:
        assert numbers(problem.text) == numbers(problem.expression), problem
        assert "{" not in problem.text


def test_problems_have_two_to_four_steps_with_small_positive_results(
    problems: list[Problem],
) -> None:
    assert {len(problem.steps) for problem in problems} == {2, 3, 4}
    assert all(1 <= step.result <= LARGEST for p in problems for step in p.steps)


def test_every_shape_is_drawn(problems: list[Problem]) -> None:
    signs = {re.sub(r"\d+", "", problem.expression)[1:] for problem in problems}
    assert signs == {"".join(change for change in shape) for shape, _ in SHAPES}


def test_no_problem_is_drawn_twice(problems: list[Problem]) -> None:
    assert len({problem.expression for problem in problems}) == len(problems)
    assert len({problem.text for problem in problems}) == len(problems)


def test_steps_follow_one_from_another(problems: list[Problem]) -> None:
    for problem in problems:
        known = numbers(problem.expression)
        for step in problem.steps:
            left, sign, right = re.fullmatch(r"(\d+)([-+*])(\d+)", step.expression).groups()  # type: ignore[union-attr]
            known -= Counter((left, right))
            known[str(step.result)] += 1
            assert OPERATIONS[sign](Fraction(left), Fraction(right)) == step.result
        assert known == Counter({str(problem.answer): 1}), "each number is used exactly once"


def test_both_styles_solve_to_the_answer_without_a_call_too_many(problems: list[Problem]) -> None:
    for problem in problems[:300]:
        whole, stepwise = trace_row(problem, "whole"), trace_row(problem, "stepwise")
        assert calls_of(whole) == [problem.expression]
        assert calls_of(stepwise) == [step.expression for step in problem.steps]
        for row in (whole, stepwise):
            results = [m["content"] for m in row["messages"] if m["role"] == "tool"]
            said = [value_by_precedence(call) for call in calls_of(row)]
            assert [Fraction(result) for result in results] == said
            assert results[-1] == str(problem.answer)
            assert row["messages"][-1]["content"] == f"Final Answer: {problem.answer}"


def test_calls_and_results_of_a_trace_name_each_other(problems: list[Problem]) -> None:
    messages = trace_row(problems[0], "stepwise")["messages"]
    asked = [call["id"] for m in messages for call in m.get("tool_calls", [])]
    assert asked == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(asked)) == len(asked)


def test_a_task_keeps_its_answer_out_of_what_the_agent_sees(problems: list[Problem]) -> None:
    row = task_row(problems[0], "task-0")
    assert row["messages"] == [{"role": "user", "content": problems[0].text}]
    assert row["answer"] == str(problems[0].answer)
    assert row["steps"] == len(problems[0].steps)
    assert row["min_calls"] == 1


def test_steps_of_goes_in_the_order_of_precedence() -> None:
    assert steps_of("3*9+7*5-10") == (
        Step("3*9", 27),
        Step("7*5", 35),
        Step("27+35", 62),
        Step("62-10", 52),
    )


@pytest.mark.parametrize("expression", ["6/4", "2**3", "f(1)", "1.5+2", "x+1"])
def test_steps_of_refuses_what_is_not_whole_number_arithmetic(expression: str) -> None:
    with pytest.raises(ValueError, match="only whole numbers"):
        steps_of(expression)


def test_files_of_one_seed_share_no_problem(example: Path) -> None:
    texts = {
        name: [row["messages"][0]["content"] for row in rows(example / f"{name}.jsonl")]
        for name in ("tasks", "heldout", "sft")
    }
    everything = [text for part in texts.values() for text in part]
    assert len(set(everything)) == len(everything)
    stories = [numbers_in_order(text) for text in everything]
    held_out = set(stories[len(texts["tasks"]) :][: len(texts["heldout"])])
    others = set(stories[: len(texts["tasks"])] + stories[-len(texts["sft"]) :])
    same_numbers = held_out & others
    assert len(same_numbers) < 0.05 * len(held_out), "held-out tasks are more than new names"


def numbers_in_order(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", text))


def test_traces_are_half_and_half_in_each_style(example: Path) -> None:
    counts = Counter(len(calls_of(row)) == 1 for row in rows(example / "sft.jsonl"))
    assert counts[True] == counts[False]


def test_the_same_seed_writes_the_same_files_and_another_seed_does_not(
    example: Path, tmp_path: Path
) -> None:
    write_example(tmp_path / "again", 0)
    write_example(tmp_path / "other", 1)
    assert tuple(sorted(file.name for file in example.iterdir())) == FILES
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (example / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (example / name).read_bytes()


@pytest.mark.parametrize("name", ["sft.yaml", "run.yaml", "evaluate.yaml"])
def test_run_files_are_valid(example: Path, name: str) -> None:
    spec = load_run_file(example / name).spec
    assert spec.rollout.tools == ("calculator",)
    for file in filter(None, (spec.data.train, spec.data.eval)):
        assert Path(file).is_file()


def test_rows_hold_what_the_grader_reads(example: Path) -> None:
    required = required_fields(load_run_file(example / "run.yaml").spec.grader)
    assert required == {"answer"}
    for name in ("tasks.jsonl", "heldout.jsonl"):
        parsed = parse_tasks((example / name).read_bytes(), source=name, required=required)
        assert len(parsed) == len(rows(example / name))
    sft = parse_sft_rows((example / "sft.jsonl").read_bytes(), source="sft.jsonl")
    assert len(sft) == len(rows(example / "sft.jsonl"))
