"""Asks a child process whether two formulas are equal, with a hard time limit that works in any thread.

The child (see `symbolic_worker`) is started on first use, serves one question at a time and is killed when it does not
answer in time; the next question starts another. Plain numbers never come here.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from enum import StrEnum
from typing import IO, Protocol

MAX_CHARACTERS = 600
"""Formulas longer than this are not compared."""


class SymbolicVerdict(StrEnum):
    """What the checker found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    LEFT_UNREADABLE = "left_unreadable"
    RIGHT_UNREADABLE = "right_unreadable"
    UNSURE = "unsure"
    TIMEOUT = "timeout"


class Symbolic(Protocol):
    """Compares formulas."""

    def compare(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        """Compare two LaTeX formulas; kind is `value` or `equation` (sides subtracted, up to a factor)."""
        ...


class SymbolicProcess:
    """The checker in a child process; safe to share between threads."""

    def __init__(
        self,
        *,
        timeout_seconds: float = 3.0,
        start_timeout_seconds: float = 30.0,
        remembered: int = 4096,
    ) -> None:
        """Start nothing yet.

        Args:
            timeout_seconds: for one comparison; the child is killed after it.
            start_timeout_seconds: for a child to start, which imports sympy.
            remembered: number of verdicts kept.
        """
        self._timeout_seconds = timeout_seconds
        self._start_timeout_seconds = start_timeout_seconds
        self._remembered = remembered
        self._verdicts: OrderedDict[tuple[str, str, str], SymbolicVerdict] = OrderedDict()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def compare(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        """Compare two LaTeX formulas within the time limit.

        Raises:
            OSError: the child process cannot be started.
        """
        if len(left) > MAX_CHARACTERS or len(right) > MAX_CHARACTERS:
            return SymbolicVerdict.UNSURE
        key = (kind, left, right)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
            verdict = self._ask(kind, left, right)
            self._verdicts[key] = verdict
            if len(self._verdicts) > self._remembered:
                self._verdicts.popitem(last=False)
            return verdict

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while there is none."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """End the child process, if there is one."""
        with self._lock:
            self._stop()

    def _ask(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        question = {"kind": kind, "left": left, "right": right, "seconds": self._timeout_seconds}
        answer = self._exchange(json.dumps(question).encode() + b"\n")
        if answer == b"":
            # The child was dead or died; a formula that kills it does so again.
            answer = self._exchange(json.dumps(question).encode() + b"\n")
        if answer is None:
            return SymbolicVerdict.TIMEOUT
        return SymbolicVerdict(json.loads(answer)["verdict"]) if answer else SymbolicVerdict.UNSURE

    def _exchange(self, question: bytes) -> bytes | None:
        """Return the child's answer; empty if it died, None if the time was over."""
        if self._child is None:
            self._child = _start()
            assert self._child.stdout is not None
            if not _read_line(self._child.stdout, self._start_timeout_seconds):
                self._stop()
                raise OSError(
                    "the formula checker did not start within "
                    f"{self._start_timeout_seconds:g} s; is math-verify installed?"
                )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(question)
            child.stdin.flush()
            answer = _read_line(child.stdout, self._timeout_seconds)
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._stop()
        return answer

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                _close(pipe)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "grader.answer.symbolic_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        # The child is dead and the last question was never read.
        return


def _read_line(pipe: IO[bytes], limit_seconds: float) -> bytes | None:
    """Return one line, empty at the end of the stream, None when the time is over."""
    deadline = time.monotonic() + limit_seconds
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            return None
        piece = os.read(pipe.fileno(), 65536)
        if not piece:
            return b""
        line += piece
    return line
