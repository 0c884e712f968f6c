"""One command under way in a local sandbox: its pipes, its caps, its end."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator

from sandbox.output import CappedOutput
from sandbox.storage.ownership import ids
from sandbox.types import Chunk, Command, ExecOutcome, Stream, Termination

DRAIN_LIMIT_BYTES = 64 * 1024 * 1024
"""A command that writes more than this, both streams together, is killed."""

GRACE_SECONDS = 0.3
"""How long the pipes may stay open after the command has ended."""

_READ_BYTES = 256 * 1024


class RunningCommand:
    """Reads a command's output and feeds its input; knows nothing of how it was started."""

    def __init__(
        self,
        command: Command,
        owner: int,
        emit: Callable[[Chunk], None] | None,
        on_output_limit: Callable[[], None],
    ) -> None:
        """Opens the pipes; `owner` may reopen them by /proc/self/fd.

        Raises:
            OSError: this process has no descriptors left; nothing is open then.
        """
        self.command = command
        self.stop_reason: Termination | None = None
        self.fork_refused = False
        self.started: asyncio.Event = asyncio.Event()
        self.killing: asyncio.Task[None] | None = None
        """Set while, and after, everything that the command started is being killed."""
        self._mark = 0
        self._let_mark_go: Callable[[], None] | None = None
        self._mark_holders = 0
        self._is_mark_needed = True
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        """Exit code, negative for a signal."""
        self.stdout = CappedOutput(command.max_output_bytes)
        self.stderr = CappedOutput(command.max_output_bytes)
        self._loop = loop
        self._emit = emit
        self._on_output_limit = on_output_limit
        self._readers: dict[int, Stream] = {}
        self._drained = asyncio.Event()
        self._stdin = memoryview(command.stdin)
        self._stdin_writer = -1
        self.child_descriptors: list[int] = []
        try:
            self._open_pipes(owner)
        except OSError:
            self.close()
            raise

    def _open_pipes(self, owner: int) -> None:
        if self._stdin:
            reader, self._stdin_writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._stdin_writer, False)
            os.fchown(reader, *ids(owner, owner))
        else:
            reader = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.child_descriptors.append(reader)
        for stream in (Stream.STDOUT, Stream.STDERR):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            os.fchown(theirs, *ids(owner, owner))
            self._readers[ours] = stream
            self.child_descriptors.append(theirs)

    def watch(self) -> None:
        """Begin to read and to feed; the child's ends have been handed over."""
        for descriptor in self.child_descriptors:
            os.close(descriptor)
        self.child_descriptors = []
        for descriptor in self._readers:
            self._loop.add_reader(descriptor, self._readable, descriptor)
        if self._stdin_writer >= 0:
            self._loop.add_writer(self._stdin_writer, self._writable)

    async def drain(self) -> bool:
        """Wait a moment for the rest of the output; return whether the pipes were closed."""
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def outcome(
        self, termination: Termination, code: int, closed: bool, begun: float
    ) -> ExecOutcome:
        """Return how it went; `begun` is a monotonic time, `closed` says whether the pipes were."""
        return ExecOutcome(
            termination=termination,
            exit_code=max(code, 0),
            signal=max(-code, 0),
            stdout=self.stdout.content(),
            stderr=self.stderr.content(),
            stdout_truncated=self.stdout.truncated,
            stderr_truncated=self.stderr.truncated,
            output_incomplete=not closed,
            duration_seconds=time.monotonic() - begun,
        )

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        for descriptor in self.child_descriptors:
            os.close(descriptor)
        self.child_descriptors = []
        for descriptor in list(self._readers):
            self._close_reader(descriptor)
        self._close_stdin()
        if self.killing is None or self.killing.done():
            self._release_mark()
        else:
            self.killing.add_done_callback(lambda _: self._release_mark())

    def set_mark(self, mark: int, let_go: Callable[[], None]) -> None:
        """Take the number that marks everything the command started; it means nothing else until `let_go` is called."""
        self._mark, self._let_mark_go = mark, let_go
        if not self.command.kill_survivors:  # otherwise it is needed beyond the end
            self.ended.add_done_callback(lambda _: self._release_mark())
        self.started.set()

    @contextlib.contextmanager
    def held_mark(self) -> Iterator[int]:
        """Give the mark, 0 if there is none; its number is given to no other command while inside."""
        if self._let_mark_go is None:
            yield 0
            return
        self._mark_holders += 1
        try:
            yield self._mark
        finally:
            self._mark_holders -= 1
            self._let_go_of_mark()

    def _release_mark(self) -> None:
        self._is_mark_needed = False
        self._let_go_of_mark()

    def _let_go_of_mark(self) -> None:
        if self._let_mark_go is not None and not (self._is_mark_needed or self._mark_holders):
            self._let_mark_go()
            self._let_mark_go = None

    def _readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_reader(descriptor)
            return
        stream = self._readers[descriptor]
        output = self.stdout if stream is Stream.STDOUT else self.stderr
        if self._emit is not None:
            room = self.command.max_output_bytes - output.total_bytes
            if room > 0:
                self._emit(Chunk(stream=stream, data=data[:room]))
        output.add(data)
        if self.stdout.total_bytes + self.stderr.total_bytes > DRAIN_LIMIT_BYTES:
            self._on_output_limit()

    def _close_reader(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        del self._readers[descriptor]
        os.close(descriptor)
        if not self._readers:
            self._drained.set()

    def _writable(self) -> None:
        try:
            written = os.write(self._stdin_writer, self._stdin)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._close_stdin()  # the command does not read its input; that is its right
            return
        self._stdin = self._stdin[written:]
        if not self._stdin:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin_writer >= 0:
            self._loop.remove_writer(self._stdin_writer)
            os.close(self._stdin_writer)
            self._stdin_writer = -1
