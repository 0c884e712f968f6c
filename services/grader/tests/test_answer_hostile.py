"""Hostile responses: an answer or a typed result in bounded time, with no formula checker left running wild."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from grader.answer.judge import AnswerJudgement, ReferenceUnreadableError, judge_answer
from grader.answer.symbolic import SymbolicProcess, SymbolicVerdict
from trajectory.types import OutcomeKind

HOSTILE = {
    "power tower": "Final Answer: 9**9**9**9",
    "latex tower": "\\boxed{9^{9^{9^{9}}}}",
    "factorial": "\\boxed{100000!}",
    "a million digits": "9" * 1_000_000,
    "a million digits, stated": "Final Answer: " + "9" * 1_000_000,
    "nested latex": "\\boxed{" + "\\frac{1}{" * 300 + "1" + "}" * 300 + "}",
    "open braces": "Final Answer: " + "{" * 5000,
    "control characters": "Final Answer: \x00\x1b[2J\x07",
    "right to left": "Final Answer: \u202e27",
    "json bomb": '{"answer": ' + "[" * 50_000,
    "many boxes": "\\boxed{1" * 20_000,
    "many tags": "<answer>" * 20_000,
    "spaces": "Final Answer:" + " " * 200_000 + "x",
    "commas": "Final Answer: " + "1, " * 60_000,
    "quotes": '"answer": "' * 20_000,
    "huge exponent": "Final Answer: 1e999999999",
    "long words": "Final Answer: " + "one " * 50_000,
}


@pytest.fixture(scope="module")
def impatient() -> Iterator[SymbolicProcess]:
    process = SymbolicProcess(timeout_seconds=0.5)
    yield process
    process.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_response_is_judged_in_time(name: str, impatient: SymbolicProcess) -> None:
    begun = time.monotonic()
    found = judge_answer(HOSTILE[name], "72", impatient)
    assert not found.correct
    assert time.monotonic() - begun < 5


def test_slow_formula_is_masked_and_the_checker_recovers() -> None:
    process = SymbolicProcess(timeout_seconds=0.0)
    try:
        found = judge_answer("\\boxed{\\sqrt[3]{x}}", "\\sqrt[5]{y+i}", process)
        assert found.masked
        assert found.kind is OutcomeKind.EXTRACTION
    finally:
        process.close()


def test_checker_works_from_other_threads(symbolic: SymbolicProcess) -> None:
    found: list[AnswerJudgement] = []

    def work() -> None:
        found.append(judge_answer("\\boxed{\\sqrt{12}}", "2\\sqrt{3}", symbolic))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [judgement.correct for judgement in found] == [True] * 4


def test_plain_numbers_never_start_the_checker() -> None:
    class Untouchable:
        def compare(self, kind: str, left: str, right: str) -> SymbolicVerdict:
            raise AssertionError(f"asked about {left} and {right}")

    assert judge_answer("so 1,000 clips.\n#### $1,000.00", "1000", Untouchable()).correct


def test_blank_reference_is_an_error_that_shows_it(symbolic: SymbolicProcess) -> None:
    with pytest.raises(ReferenceUnreadableError, match="1 to 2000 characters"):
        judge_answer("Final Answer: 1", "  ", symbolic)


def test_checker_that_was_killed_is_replaced() -> None:
    process = SymbolicProcess()
    try:
        assert process.compare("value", "\\sqrt[3]{8}", "2") is SymbolicVerdict.EQUAL
        assert len(process.pids) == 1
        os.kill(process.pids[0], signal.SIGKILL)
        assert process.compare("value", "\\sqrt[3]{27}", "3") is SymbolicVerdict.EQUAL
    finally:
        process.close()
    assert process.pids == []


def test_checker_that_cannot_start_is_an_error() -> None:
    process = SymbolicProcess(start_timeout_seconds=0.0)
    with pytest.raises(OSError, match="did not start"):
        process.compare("value", "\\sqrt[3]{8}", "2")
    process.close()
