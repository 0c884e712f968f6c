"""Says whether two formulas are equal, with a hard time limit that works in any thread.

Most are decided at once (see `quick`); the others go to a few child processes (see `symbolic_worker`), which are
started on first use, serve one question at a time and work on it in a fork that is killed when its time is over. Plain
numbers never come here.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from enum import StrEnum
from typing import IO, Protocol

from grader.answer.quick import compare_quickly

MAX_CHARACTERS = 600
"""Formulas longer than this are not compared."""


GRACE_SECONDS = 1.0
"""Beyond its time limit, before a child that does not even say so is killed."""


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


class SymbolicNeededError(Exception):
    """Formulas would have to be compared."""


class NoSymbolic:
    """Compares nothing; for a first try that must not take long."""

    def compare(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        """Raise.

        Raises:
            SymbolicNeededError: always.
        """
        raise SymbolicNeededError


class SymbolicProcess:
    """The checker in child processes; safe to share between threads.

    What can be decided without them is (see `quick`). A child that works on a slow formula holds nobody up but those
    who find all children at work.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float = 3.0,
        start_timeout_seconds: float = 30.0,
        remembered: int = 4096,
        workers: int = 2,
    ) -> None:
        """Start nothing yet.

        Args:
            timeout_seconds: for one comparison; the child is killed after it.
            start_timeout_seconds: for a child to start, which imports sympy.
            remembered: number of verdicts kept.
            workers: children at most; the next one is only started when all others are at work.
        """
        self._remembered = remembered
        self._verdicts: OrderedDict[tuple[str, str, str], SymbolicVerdict] = OrderedDict()
        self._lock = threading.Lock()
        self._workers = tuple(
            _Worker(timeout_seconds, start_timeout_seconds) for _ in range(workers)
        )
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def compare(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        """Compare two LaTeX formulas within the time limit.

        Raises:
            OSError: a child process cannot be started.
        """
        if len(left) > MAX_CHARACTERS or len(right) > MAX_CHARACTERS:
            return SymbolicVerdict.UNSURE
        key = (kind, left, right)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        equal = compare_quickly(kind, left, right)
        if equal is None:
            verdict = self._ask(kind, left, right)
        else:
            verdict = SymbolicVerdict.EQUAL if equal else SymbolicVerdict.DIFFERENT
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > self._remembered:
                self._verdicts.popitem(last=False)
        return verdict

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def close(self) -> None:
        """End the child processes, each when its question is answered."""
        idle = [self._idle.get() for _ in self._workers]
        for worker in idle:
            worker.stop()
            self._idle.put(worker)

    def _ask(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        worker = self._idle.get()
        try:
            return worker.ask(kind, left, right)
        finally:
            self._idle.put(worker)


class _Worker:
    """One child process, started on first use and again after it was killed; for one thread at a time."""

    def __init__(self, timeout_seconds: float, start_timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._start_timeout_seconds = start_timeout_seconds
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def ask(self, kind: str, left: str, right: str) -> SymbolicVerdict:
        question = {"kind": kind, "left": left, "right": right, "seconds": self._timeout_seconds}
        answer = self._exchange(json.dumps(question).encode() + b"\n")
        if answer == b"":
            # The child was dead or died; a formula that kills it does so again.
            answer = self._exchange(json.dumps(question).encode() + b"\n")
        if answer is None:
            return SymbolicVerdict.TIMEOUT
        return SymbolicVerdict(json.loads(answer)["verdict"]) if answer else SymbolicVerdict.UNSURE

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            # Its fork too.
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                _close(pipe)

    def _exchange(self, question: bytes) -> bytes | None:
        """Return the child's answer; empty if it died, None if the time was over."""
        if self._child is None:
            self._child = _start()
            assert self._child.stdout is not None
            if not _read_line(self._child.stdout, self._start_timeout_seconds):
                self.stop()
                raise OSError(
                    "the formula checker did not start within "
                    f"{self._start_timeout_seconds:g} s; is math-verify installed?"
                )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(question)
            child.stdin.flush()
            answer = _read_line(child.stdout, self._timeout_seconds + GRACE_SECONDS)
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.stop()
        return answer


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "grader.answer.symbolic_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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
