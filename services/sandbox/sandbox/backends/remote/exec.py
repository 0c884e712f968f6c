"""One program under way in a remote sandbox: a command of the workload, or a script of our own.

The daemon says that a command has ended only when its pipes are closed, which a process left behind can put off for
ever. So the command is watched from a second stream too: once its first process has ended, the pipes have a moment.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sandbox.backends.local.running import GRACE_SECONDS
from sandbox.backends.remote import shell
from sandbox.backends.remote.envd import Ended, Envd, Output, Started, StartRefused, StreamBroken
from sandbox.output import CappedOutput
from sandbox.types import Chunk, Command, ExecOutcome, Stream, Termination

T = TypeVar("T")

DRAIN_LIMIT_BYTES = 16 * 1024 * 1024
"""A command that writes more than this, both streams together, is killed; what it writes comes over a network."""

KILL_SECONDS = 10.0
"""How long killing may take, with the ways there and back."""

_RETRY_SECONDS = 0.05
_EXIT_KILLED = 137


class Wrecked(Exception):
    """The command has left its sandbox unable to start anything; the daemon in it still answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a script of ours gave back."""

    exit_code: int
    stdout: bytes
    stderr: bytes


async def run_tool(
    envd: Envd,
    script: str,
    *arguments: str,
    seconds: float,
    max_bytes: int = DRAIN_LIMIT_BYTES,
    sink: Callable[[bytes], None] | None = None,
) -> ToolResult:
    """Run a script; what it prints is collected, or handed to `sink` piece by piece.

    Raises:
        StartRefused: there is no shell to run it.
        StreamBroken: it did not end in time, printed more than `max_bytes`, or the sandbox is gone.
    """
    stdout, stderr, size = bytearray(), bytearray(), 0
    argv = (shell.SHELL, "-c", script, "hone", *arguments)
    try:
        async with asyncio.timeout(seconds), envd.start(argv, shell.TOOL_ENV) as events:
            async for event in events:
                if isinstance(event, Ended):
                    status = shell.status_of_end(event.exited, event.exit_code, event.status)
                    code = 128 + status.signal if status.signal else status.exit_code
                    return ToolResult(exit_code=code, stdout=bytes(stdout), stderr=bytes(stderr))
                if isinstance(event, Output):
                    size += len(event.data)
                    if size > max_bytes:
                        raise StreamBroken(f"a script printed more than {max_bytes} bytes")
                    if event.is_stderr:
                        stderr += event.data
                    elif sink is not None:
                        sink(event.data)
                    else:
                        stdout += event.data
    except TimeoutError as error:
        raise StreamBroken(f"a script did not end within {seconds:g} s") from error
    raise StreamBroken("a script's stream ended before the script")


class RemoteExec:
    """One command of the workload."""

    def __init__(
        self,
        envd: Envd,
        command: Command,
        env: Mapping[str, str],
        emit: Callable[[Chunk], None] | None,
        *,
        mark: str,
        input_path: str,
        call_seconds: float,
    ) -> None:
        """Starts nothing.

        Args:
            envd: of the sandbox.
            command: what to run.
            env: its whole environment.
            emit: takes the output as it comes.
            mark: found in the environment of everything that it starts.
            input_path: the file that holds its input; empty for none.
            call_seconds: how long the daemon may take to start it.
        """
        self.command = command
        self.stop_reason: Termination | None = None
        self._envd = envd
        self._env = {**env, shell.MARK: mark}
        self._emit = emit
        self._mark = mark
        self._input_path = input_path
        self._call_seconds = call_seconds
        self._stdout = CappedOutput(command.max_output_bytes)
        self._stderr = CappedOutput(command.max_output_bytes)
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[shell.WaitStatus] = loop.create_future()
        self._incomplete = False
        self._refused = ""
        self._killing: asyncio.Task[None] | None = None

    async def run(self) -> ExecOutcome:
        """Run it to its end.

        Raises:
            StartRefused: the daemon could not start even a shell.
            StreamBroken: what became of it is not known, and so of the sandbox.
        """
        begun = time.monotonic()
        tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]
        try:
            await self._wait(self._started, self._call_seconds, "it did not start")
            try:
                async with asyncio.timeout(self.command.timeout_seconds):
                    status = await asyncio.shield(self._ended)
            except TimeoutError:
                self.stop(Termination.TIMED_OUT)
                await self.killed()
                status = await self._wait(self._ended, KILL_SECONDS, "it could not be killed")
            if self.command.kill_survivors:
                self._kill()
            await self.killed()
            return self._outcome(status, begun)
        except Wrecked as error:
            self._stderr.add(f"{error}\n".encode(errors="replace"))
            self.stop_reason = Termination.SANDBOX_BROKEN_BY_WORKLOAD
            return self._outcome(shell.WaitStatus(0, 0), begun)
        except asyncio.CancelledError:
            self.stop(Termination.KILLED)  # goes on after us; the box waits for it
            raise
        finally:
            if self._killing is None or self._killing.done():
                self._let_go(tasks)
            else:  # killing waits for the command to start, and that is heard on the stream
                self._killing.add_done_callback(lambda _: self._let_go(tasks))

    def _let_go(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        self._started.cancel()
        self._ended.cancel()

    def stop(self, reason: Termination) -> None:
        """Have it killed with all it started, once."""
        if self.stop_reason is None and not self._ended.done():
            self.stop_reason = reason
            self._kill()

    async def killed(self) -> None:
        """Wait until a killing that was begun is over.

        Raises:
            StreamBroken: it is not known whether it could be done.
            Wrecked: it cannot be done.
        """
        if self._killing is not None:
            await asyncio.shield(self._killing)

    def _kill(self) -> None:
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill_tree())
            self._killing.add_done_callback(_note_failure)

    async def _kill_tree(self) -> None:
        if not self._started.done():  # a command that comes after its killers would live
            await self._wait(self._started, self._call_seconds, "it did not start")
        try:
            async with asyncio.timeout(KILL_SECONDS):
                while not await self._try_to_kill():
                    await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError as error:
            if self._refused:
                raise Wrecked(f"its sandbox cannot start a process: {self._refused}") from error
            raise StreamBroken(f"it could not be killed within {KILL_SECONDS:g} s") from error

    async def _try_to_kill(self) -> bool:
        try:
            await run_tool(self._envd, shell.KILL, self._mark, seconds=KILL_SECONDS)
        except StartRefused as error:
            self._refused = str(error)
            return False  # the sandbox may be full of processes; some end all the time
        return True

    async def _listen(self) -> None:
        argv = (shell.SHELL, "-c", shell.RUN, "sh", self.command.working_dir, self._input_path)
        try:
            async with self._envd.start((*argv, *self.command.argv), self._env) as events:
                async for event in events:
                    if isinstance(event, Started) and not self._started.done():
                        self._started.set_result(event.pid)
                    elif isinstance(event, Output):
                        self._take(event)
                    elif isinstance(event, Ended):
                        self._finish(
                            shell.status_of_end(event.exited, event.exit_code, event.status)
                        )
                        return
            raise StreamBroken("the stream ended before the command")
        except (StreamBroken, StartRefused) as error:
            for future in (self._started, self._ended):
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # whoever waits sees it; nobody need wait

    async def _watch(self) -> None:
        """Notice the end of the command's first process where a process left behind holds the pipes."""
        with contextlib.suppress(StreamBroken, StartRefused):  # the listener says what is wrong
            pid = await asyncio.shield(self._started)
            await asyncio.wait([self._ended], timeout=GRACE_SECONDS)
            if self._ended.done():
                return
            longest = self.command.timeout_seconds + self._call_seconds + KILL_SECONDS
            seen = await run_tool(self._envd, shell.WATCH, str(pid), seconds=longest)
            status = shell.status_of_watch(seen.stdout)
            if status is None:
                return
            await asyncio.wait([self._ended], timeout=GRACE_SECONDS)
            if not self._ended.done():
                self._incomplete = True
                self._finish(status)

    def _finish(self, status: shell.WaitStatus) -> None:
        if not self._started.done():
            self._started.set_result(0)
        if not self._ended.done():
            self._ended.set_result(status)

    def _take(self, event: Output) -> None:
        stream = Stream.STDERR if event.is_stderr else Stream.STDOUT
        output = self._stderr if event.is_stderr else self._stdout
        room = self.command.max_output_bytes - output.total_bytes
        if self._emit is not None and room > 0:
            self._emit(Chunk(stream=stream, data=event.data[:room]))
        output.add(event.data)
        if self._stdout.total_bytes + self._stderr.total_bytes > DRAIN_LIMIT_BYTES:
            self.stop(Termination.OUTPUT_LIMIT)

    async def _wait(self, future: asyncio.Future[T], seconds: float, what: str) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise StreamBroken(f"{what} within {seconds:g} s") from error

    def _outcome(self, status: shell.WaitStatus, begun: float) -> ExecOutcome:
        ended = Termination.SIGNALED if status.signal else Termination.EXITED
        return ExecOutcome(
            termination=self.stop_reason or ended,
            exit_code=status.exit_code,
            signal=status.signal,
            stdout=self._stdout.content(),
            stderr=self._stderr.content(),
            stdout_truncated=self._stdout.truncated,
            stderr_truncated=self._stderr.truncated,
            output_incomplete=self._incomplete,
            duration_seconds=time.monotonic() - begun,
        )


def was_killed(outcome: ExecOutcome) -> bool:
    """Say whether the kernel may have killed the command, or what a shell ran last."""
    if outcome.termination is Termination.SIGNALED:
        return outcome.signal == _EXIT_KILLED - 128
    return outcome.termination is Termination.EXITED and outcome.exit_code == _EXIT_KILLED


def _note_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # who waits for it sees it; a caller that went away need not
