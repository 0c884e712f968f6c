"""One command under way in a local sandbox: its pipes, its caps, its end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from sandbox.output import CappedOutput
from sandbox.types import Chunk, Command, Stream, Termination

DRAIN_LIMIT_BYTES = 64 * 1024 * 1024
"""A command that writes more than this, both streams together, is killed."""

GRACE_SECONDS = 0.3
"""How long the pipes may stay open after the command has ended."""

_READ_BYTES = 256 * 1024
_ROUNDS_BEFORE_FREEZE = 3


class RunningCommand:
    """Reads a command's output and feeds its input; knows nothing of how it was started."""

    def __init__(
        self,
        command: Command,
        owner: int,
        emit: Callable[[Chunk], None] | None,
        on_output_limit: Callable[[], None],
    ) -> None:
        """Opens the pipes; `owner` may reopen them by /proc/self/fd."""
        self.command = command
        self.stop_reason: Termination | None = None
        self.started: asyncio.Event = asyncio.Event()
        self.killing: asyncio.Task[None] | None = None
        """Set while, and after, everything that the command started is being killed."""
        self._mark = 0
        self._mark_descriptor = -1
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
        self.child_descriptors = self._open_pipes(owner)

    def _open_pipes(self, owner: int) -> list[int]:
        if self._stdin:
            reader, self._stdin_writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._stdin_writer, False)
            os.fchown(reader, owner, owner)
        else:
            reader = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        child = [reader]
        for stream in (Stream.STDOUT, Stream.STDERR):
            ours, theirs = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ours, False)
            os.fchown(theirs, owner, owner)
            self._readers[ours] = stream
            child.append(theirs)
        return child

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

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        for descriptor in self.child_descriptors:
            os.close(descriptor)
        self.child_descriptors = []
        for descriptor in list(self._readers):
            self._close_reader(descriptor)
        self._close_stdin()

    def set_mark(self, mark: int, descriptor: int) -> None:
        """Take the UTS namespace that marks everything the command started: its inode number and a descriptor."""
        self._mark, self._mark_descriptor = mark, descriptor
        self.ended.add_done_callback(lambda _: self._release_mark())
        self.started.set()

    @contextlib.contextmanager
    def held_mark(self) -> Iterator[int]:
        """Give the mark, 0 if there is none; its number is given to no other command while inside."""
        if self._mark_descriptor < 0:
            yield 0
            return
        held = os.dup(self._mark_descriptor)
        try:
            yield self._mark
        finally:
            os.close(held)

    def _release_mark(self) -> None:
        os.close(self._mark_descriptor)
        self._mark_descriptor = -1

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


def kill_marked(
    list_processes: Callable[[], Iterable[int]],
    mark: int,
    spare: frozenset[int],
    forks_refused: Callable[[], AbstractContextManager[None]],
    deadline: float,
    clock: Callable[[], float],
) -> bool:
    """Kill every process that lives in the UTS namespace `mark`; return whether none is left.

    Runs in a worker thread. When a few rounds do not end it (a fork bomb), forks in the sandbox are refused meanwhile.
    """
    for _ in range(_ROUNDS_BEFORE_FREEZE):
        if not _kill_round(list_processes(), mark, spare):
            return True
    with forks_refused():
        while _kill_round(list_processes(), mark, spare):
            if clock() > deadline:
                return False
    return True


def _kill_round(pids: Iterable[int], mark: int, spare: frozenset[int]) -> bool:
    found = False
    wanted = f"uts:[{mark}]"
    for pid in pids:
        if pid in spare:
            continue
        # The pidfd comes first: what is looked at and what is killed is then the same process.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            pidfd = os.pidfd_open(pid)
            try:
                if os.readlink(f"/proc/{pid}/ns/uts") == wanted:
                    found = True
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return found


def all_processes() -> list[int]:
    """List every process, for where there is no control group to ask."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
