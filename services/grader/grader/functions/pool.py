"""Runs reward functions in a few worker processes; one that exceeds its time limit is killed with all it started.

Processes are started anew (never forked), since the grader has threads and channels open.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from grader.functions import frames
from grader.instruments.functions import FunctionCall, FunctionScore
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind


class FunctionPool:
    """Worker processes, started when they are first needed."""

    def __init__(self, *, workers: int, load_timeout_seconds: float = 120.0) -> None:
        """Start nothing yet.

        Args:
            workers: functions that run at once.
            load_timeout_seconds: for a function's package to be imported; not part of a call's own time.
        """
        self._free = asyncio.Semaphore(workers)
        self._load_timeout_seconds = load_timeout_seconds
        self._idle: list[_Worker] = []

    async def call(self, call: FunctionCall) -> FunctionScore:
        """Run a function.

        Raises:
            GradingFaultError: kind code if it raised, returned no score or ended its process; kind timeout.
        """
        question = await asyncio.to_thread(
            frames.encode,
            {"function": call.function, "style": call.style, "arguments": call.arguments},
        )
        async with self._free:
            answer = await self._ask(question, call)
        if "error" in answer:
            raise _fault(call, f"{answer['error']} ({answer['where']})")
        return FunctionScore(value=answer["score"], parts=answer["parts"])

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().kill()

    async def _ask(self, question: bytes, call: FunctionCall) -> Any:
        worker = await self._worker()
        try:
            worker.send(question)
            step = "be imported"
            limit = self._load_timeout_seconds
            async with asyncio.timeout(limit):
                answer = await worker.read()
            if "loaded" in answer:
                step, limit = "answer", call.timeout_seconds
                async with asyncio.timeout(limit):
                    answer = await worker.read()
        except TimeoutError as err:
            await worker.kill()
            raise _fault(
                call, f"did not {step} within {limit:g} s", GraderErrorKind.TIMEOUT
            ) from err
        except (EOFError, ConnectionError) as err:
            code = await worker.kill()
            raise _fault(call, f"ended its process with code {code}") from err
        except BaseException:
            # What it was asked is not known to have ended; nobody else may get its answer.
            await worker.kill()
            raise
        self._idle.append(worker)
        return answer

    async def _worker(self) -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
        return await _start()


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def send(self, question: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(question)

    async def read(self) -> Any:
        """Return the next answer; EOFError if the process ended."""
        assert self._process.stdout is not None
        head = await self._process.stdout.readexactly(frames.LENGTH_BYTES)
        length = int.from_bytes(head, "big")
        if length > frames.MAX_ANSWER_BYTES:
            raise EOFError(f"an answer of {length} bytes")
        return json.loads(await self._process.stdout.readexactly(length))

    async def kill(self) -> int:
        """End the process and what it started, even if it has ended itself; return its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return await self._process.wait()


async def _start() -> _Worker:
    # -P: a file in the working folder must not pass for a package.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "grader.functions.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    return _Worker(process)


def _fault(
    call: FunctionCall, what: str, kind: GraderErrorKind = GraderErrorKind.CODE
) -> GradingFaultError:
    return GradingFaultError(
        f"reward function {call.function}: {what}", kind=kind, retryable=False, client=True
    )
