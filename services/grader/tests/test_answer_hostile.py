"""Hostile responses: an answer or a typed result in bounded time, with no formula checker left running wild."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_responses import HOSTILE, MAX_SHORT

from grader.answer.judge import AnswerJudgement, ReferenceUnreadableError, judge_answer
from grader.answer.symbolic import SymbolicProcess, SymbolicVerdict
from trajectory.types import OutcomeKind

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def impatient() -> Iterator[SymbolicProcess]:
    process = SymbolicProcess(timeout_seconds=0.5)
    yield process
    process.close()


@pytest.mark.parametrize("name", [n for n, text in HOSTILE.items() if len(text) <= MAX_SHORT])
def test_hostile_response_is_judged_in_time(name: str, impatient: SymbolicProcess) -> None:
    begun = time.monotonic()
    found = judge_answer(HOSTILE[name], "71", impatient)
    assert not found.correct
    assert time.monotonic() - begun < 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hostile_responses_are_graded_by_every_kind_in_time_and_memory() -> None:
    program = Path(__file__).with_name("hostile_responses.py")
    done = subprocess.run([sys.executable, program], capture_output=True, check=True, timeout=580)
    found = json.loads(done.stdout)
    assert found["failed"] == []
    assert found["gradings"] > 1000
    assert found["slowest"][0][0] < 5, found["slowest"]
    assert found["megabytes"] < 150


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


@pytest.mark.slow
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
