"""One command under way in a container: its streams, its caps, its end as the engine tells it."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable

from sandbox.backends.docker.wire import ExecStream
from sandbox.output import CappedOutput
from sandbox.types import Chunk, Command, ExecOutcome, Stream, Termination

DRAIN_LIMIT_BYTES = 64 * 1024 * 1024
"""A command that writes more than this, both streams together, is killed."""

GRACE_SECONDS = 0.3
"""How long the output may stay open after the command has ended."""

EXIT_KILLED = 128 + signal.SIGKILL
_LAST_SIGNAL = 31
_SIGNALED = 128
_START_FAILED = b"OCI runtime exec failed"
"""How the engine begins what it writes, as if it were output, when a command could not be started."""


class ContainerCommand:
    """Reads a command's output and feeds its input; knows nothing of how it is killed."""

    def __init__(
        self, command: Command, group: int, emit: Callable[[Chunk], None] | None, begun: float
    ) -> None:
        """`group` marks it in the container; `begun` is a monotonic time."""
        self.command = command
        self.group = group
        self.begun = begun
        self.stop_reason: Termination | None = None
        self.killing: asyncio.Task[None] | None = None
        """Set while, and after, everything that the command started is being killed."""
        self.exec_id = ""
        """The engine's name for it, once it has one."""
        self.starting = False
        """Whether the engine may be at starting it."""
        self.stop_time = 0.0
        """When it was first killed, a monotonic time."""
        self.output_incomplete = False
        self.ended = asyncio.Event()
        self.stdout = CappedOutput(command.max_output_bytes)
        self.stderr = CappedOutput(command.max_output_bytes)
        self._emit = emit
        self._held: list[Chunk] = []
        """Looks like the engine's own words; given out when it is known not to be."""

    async def pump(self, stream: ExecStream, on_output_limit: Callable[[], None]) -> None:
        """Read until the engine closes the stream; feed the input meanwhile."""
        feeding = asyncio.ensure_future(stream.feed(self.command.stdin))
        try:
            async for which, data in stream.read():
                self._take(which, data)
                if self.stdout.total_bytes + self.stderr.total_bytes > DRAIN_LIMIT_BYTES:
                    on_output_limit()
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding
            stream.close()

    def outcome(self, code: int, oom_killed: bool) -> ExecOutcome:
        """Return how it went; `code` is the engine's, 128 and more for a signal."""
        number = code - _SIGNALED if _SIGNALED < code <= _SIGNALED + _LAST_SIGNAL else 0
        termination = self.stop_reason
        if termination is None and oom_killed and code == EXIT_KILLED:
            termination = Termination.OOM_KILLED
        if termination is None:
            termination = Termination.SIGNALED if number else Termination.EXITED
        return ExecOutcome(
            termination=termination,
            exit_code=0 if number else code,
            signal=number,
            stdout=self.stdout.content(),
            stderr=self.stderr.content(),
            stdout_truncated=self.stdout.truncated,
            stderr_truncated=self.stderr.truncated,
            output_incomplete=self.output_incomplete,
            duration_seconds=time.monotonic() - self.begun,
        )

    def mute(self) -> None:
        """Hand on no more output: nobody takes it."""
        self._emit = None

    def release_output(self) -> None:
        """Give out what was held back: the command did start."""
        for chunk in self._held:
            if self._emit is not None:
                self._emit(chunk)
        self._held = []

    def take_refusal(self) -> str:
        """Return what the engine wrote because the command never started, and keep none of it."""
        text = (self.stdout.content() + self.stderr.content()).decode(errors="replace").strip()
        self._held = []
        self.stdout = CappedOutput(self.command.max_output_bytes)
        self.stderr = CappedOutput(self.command.max_output_bytes)
        return text

    def _take(self, which: Stream, data: bytes) -> None:
        output = self.stdout if which is Stream.STDOUT else self.stderr
        if self._emit is not None:
            room = self.command.max_output_bytes - output.total_bytes
            chunk = Chunk(stream=which, data=data[:room])
            is_first = not self.stdout.total_bytes + self.stderr.total_bytes
            if self._held or (is_first and data.startswith(_START_FAILED)):
                self._held += [chunk] if room > 0 else []
            elif room > 0:
                self._emit(chunk)
        output.add(data)
