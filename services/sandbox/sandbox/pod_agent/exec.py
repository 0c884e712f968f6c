"""One command under way: its pipes, its caps, its time-out, the end of all that it started."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.output import CappedOutput
from sandbox.pod_agent import processes, protocol, supervise
from sandbox.pod_agent.counters import Counters
from sandbox.pod_agent.reaper import Reaper
from sandbox.pod_agent.supervise import Identity, Start

DRAIN_LIMIT_BYTES = 64 * 1024 * 1024
"""A command that writes more than this, both streams together, is killed."""

GRACE_SECONDS = 0.3
"""How long the pipes may stay open after the command has ended."""

KILL_SECONDS = 5.0
_ROUND_SECONDS = 0.002
_EMPTY_ROUNDS = 5
"""Rounds without a victim that are enough even where other processes come and go."""
_READ_BYTES = 256 * 1024
_EXIT_NOT_FOUND, _EXIT_NOT_EXECUTABLE = 127, 126
_EXIT_KILLED = 128 + signal.SIGKILL
_SHELL = "/bin/sh"


@dataclass(frozen=True)
class ExecRequest:
    """A command as the manager asks for it."""

    exec_id: str
    start: Start
    timeout_seconds: float
    max_output_bytes: int
    kill_survivors: bool
    stdin: bytes


class Exec:
    """Runs one command; output goes to `send` as frames, the last one is the end."""

    def __init__(
        self,
        request: ExecRequest,
        identity: Identity,
        reaper: Reaper,
        counters: Counters,
        strays: Callable[[], list[int]],
        send: Callable[[bytes], None],
    ) -> None:
        """Starts nothing yet.

        Args:
            request: What to run.
            identity: As whom.
            reaper: Tells how processes ended.
            counters: Tell whose doing a death was.
            strays: Lists the agent's children that it did not start itself.
            send: Takes frames; must not block.
        """
        self.request = request
        self.supervisor = 0
        self._identity = identity
        self._reaper = reaper
        self._counters = counters
        self._strays = strays
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._drained = asyncio.Event()
        self._stop_reason = ""
        self._killing: asyncio.Task[bool] | None = None
        self.command = 0
        self._orphaned = False
        self._outputs = {
            protocol.STDOUT: CappedOutput(request.max_output_bytes),
            protocol.STDERR: CappedOutput(request.max_output_bytes),
        }
        self._readers: dict[int, int] = {}
        self._notes = -1
        self._note_bytes = b""
        self._stdin = memoryview(request.stdin)
        self._stdin_writer = -1
        self._failure = b""

    async def run(self) -> bytes:
        """Run to the end; return the end frame."""
        begun = time.monotonic()
        oom_kills, refused = self._counters.oom_kills(), self._counters.refused_forks()
        beat = self._loop.create_task(self._beat())
        try:
            self._launch()
            try:
                status = await asyncio.wait_for(
                    asyncio.shield(self._ended), self.request.timeout_seconds
                )
            except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
                self.stop("timed_out")
                status = await self._ended
            if self.request.kill_survivors and self._killing is None:
                self._killing = self._loop.create_task(self._kill_tree())
            killed = await self._killing if self._killing is not None else True
            closed = await self._drain()
            self._send_tails()
            code = os.waitstatus_to_exitcode(status)
            return protocol.end_frame(
                termination=self._termination(code, oom_kills, refused),
                exit_code=max(code, 0),
                signal=max(-code, 0),
                stdout_truncated=self._outputs[protocol.STDOUT].truncated,
                stderr_truncated=self._outputs[protocol.STDERR].truncated,
                output_incomplete=not closed,
                duration_seconds=time.monotonic() - begun,
                killed=killed,
            )
        finally:
            beat.cancel()
            self._close()

    def stop(self, reason: str) -> None:
        """Have it killed with all it started, once."""
        if not self._stop_reason and not self._ended.done():
            self._stop_reason = reason
            self._killing = self._loop.create_task(self._kill_tree())

    async def abandon(self) -> None:
        """Kill what is left because nobody waits for the result any more."""
        self.stop("killed")
        if self._killing is not None:
            await self._killing

    def _launch(self) -> None:
        pipes = self._open_pipes()
        try:
            pid = os.fork()
        except OSError as error:
            self._note_failure(supervise.STAGE_FORK, error.errno or errno.EAGAIN)
            self._ended.set_result(_EXIT_NOT_EXECUTABLE << 8)
            self._notes_closed()
            return
        else:
            if not pid:
                supervise.supervise(self.request.start, self._identity, pipes[:3], pipes[3])
            self.supervisor = pid
            self._reaper.forked(pid)
        finally:
            for descriptor in pipes:
                os.close(descriptor)
        for descriptor in self._readers:
            self._loop.add_reader(descriptor, self._readable, descriptor)
        self._loop.add_reader(self._notes, self._read_notes)
        if self._stdin_writer >= 0:
            self._loop.add_writer(self._stdin_writer, self._writable)

    def _open_pipes(self) -> list[int]:
        """Open all pipes; return the child's ends: stdin, stdout, stderr, notes."""
        if self._stdin:
            reader, self._stdin_writer = os.pipe()
            os.set_blocking(self._stdin_writer, False)
        else:
            reader = os.open("/dev/null", os.O_RDONLY)
        child = [reader]
        for kind in (protocol.STDOUT, protocol.STDERR):
            ours, theirs = _pipe_of(self._identity)
            self._readers[ours] = kind
            child.append(theirs)
        self._notes, theirs = os.pipe()
        child.append(theirs)
        for descriptor in (*self._readers, self._notes):
            os.set_blocking(descriptor, False)
        return child

    def _readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_reader(descriptor)
            return
        kind = self._readers[descriptor]
        output = self._outputs[kind]
        room = self.request.max_output_bytes - output.total_bytes
        if room > 0:
            self._send(protocol.frame(kind, data[:room]))
        output.add(data)
        if sum(each.total_bytes for each in self._outputs.values()) > DRAIN_LIMIT_BYTES:
            self.stop("output_limit")

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
            written = len(self._stdin)  # the command does not read its input; that is its right
        self._stdin = self._stdin[written:]
        if not self._stdin:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin_writer >= 0:
            self._loop.remove_writer(self._stdin_writer)
            os.close(self._stdin_writer)
            self._stdin_writer = -1

    def _read_notes(self) -> None:
        try:
            data = os.read(self._notes, 4096)
        except BlockingIOError:
            return
        self._note_bytes += data
        while len(self._note_bytes) >= supervise.NOTE.size:
            kind, first, second = supervise.NOTE.unpack_from(self._note_bytes)
            self._note_bytes = self._note_bytes[supervise.NOTE.size :]
            if kind == supervise.STARTED:
                self.command = first
            elif kind == supervise.FAILED:
                self._note_failure(first, second)
            elif not self._ended.done():
                self._ended.set_result(first)
        if not data:
            self._notes_closed()
            self._adopt()

    def _notes_closed(self) -> None:
        if self._notes >= 0:
            self._loop.remove_reader(self._notes)
            os.close(self._notes)
            self._notes = -1

    def _adopt(self) -> None:
        """Take over from a supervisor that is gone: at its natural end, or killed by the pod's own processes."""
        if self._ended.done():
            return
        self._orphaned = True
        if not self.command:
            self._ended.set_result(signal.SIGKILL)
            return
        orphan = self._reaper.ended(self.command)
        orphan.add_done_callback(self._orphan_ended)
        self._reaper.reap()
        if not orphan.done() and not os.path.exists(f"/proc/{self.command}"):
            self._ended.set_result(signal.SIGKILL)  # nobody can say any more how it ended

    def _orphan_ended(self, status: "asyncio.Future[int]") -> None:
        if not self._ended.done():
            self._ended.set_result(status.result())

    def _note_failure(self, stage: int, number: int) -> None:
        """Turn a program that could not be started into what a shell would say."""
        text = os.strerror(number)
        if stage == supervise.STAGE_FORK:
            self._stop_reason = "pids_limit"
            self._failure = f"fork: {text}\n".encode()
            self._outputs[protocol.STDERR].add(self._failure)
            self._send(protocol.frame(protocol.STDERR, self._failure))
            return
        start = self.request.start
        subject = start.working_dir if stage == supervise.STAGE_WORKING_DIR else start.argv[0]
        if not os.path.exists(_SHELL):
            self._stop_reason = "sandbox_broken_by_workload"
        missing = stage == supervise.STAGE_EXECUTE and number == errno.ENOENT
        code = _EXIT_NOT_FOUND if missing else _EXIT_NOT_EXECUTABLE
        self._failure = f"{subject}: {text}\n".encode()
        self._outputs[protocol.STDERR].add(self._failure)
        self._send(protocol.frame(protocol.STDERR, self._failure))
        self._ended.set_result(code << 8)

    async def _kill_tree(self) -> bool:
        """Kill in rounds until nothing that the command started is left; return whether that succeeded."""
        end = time.monotonic() + KILL_SECONDS
        number = empty_rounds = 0
        while time.monotonic() < end:
            self._reaper.reap()
            seen = processes.read_table()
            victims = self._victims(seen.rows)
            started = bool(self.command) or self._ended.done()
            empty_rounds = 0 if victims or not started else empty_rounds + 1
            if empty_rounds and (seen.whole or empty_rounds == _EMPTY_ROUNDS):
                return True
            processes.kill(victims, os.getpgid(0), number)
            number += 1
            await asyncio.sleep(_ROUND_SECONDS)
        if not self._ended.done():
            self._ended.set_result(signal.SIGKILL)
        return False

    def _victims(self, rows: dict[int, processes.Process]) -> list[processes.Process]:
        """List what is left of this command; with its supervisor gone, all orphans of the pod are under suspicion."""
        if (
            self._identity.is_mark
        ):  # but for what has not taken the group yet, which is still a descendant
            found = processes.descendants([self.supervisor], rows)
            return list({*found, *processes.bearing(self._identity.gid, rows)})
        if not self._orphaned:
            return processes.descendants([self.supervisor], rows)
        roots = list({self.command, *self._strays()} - {0})
        alive = [rows[pid] for pid in roots if pid in rows and not rows[pid].zombie]
        return alive + processes.descendants(roots, rows)

    async def _drain(self) -> bool:
        """Wait a moment for the rest of the output; return whether the pipes were closed."""
        if not self._readers:
            return True
        try:
            await asyncio.wait_for(self._drained.wait(), GRACE_SECONDS)
        except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
            return False
        return True

    def _send_tails(self) -> None:
        cap = self.request.max_output_bytes
        for kind, output in self._outputs.items():
            if output.truncated:
                tail = output.content()[cap - cap // 2 :]
                is_out = kind == protocol.STDOUT
                tail_kind = protocol.STDOUT_TAIL if is_out else protocol.STDERR_TAIL
                self._send(protocol.frame(tail_kind, tail))

    def _termination(self, code: int, oom_kills: int, refused: int) -> str:
        if self._stop_reason:
            return self._stop_reason
        if self._counters.oom_kills() > oom_kills and code in (-signal.SIGKILL, _EXIT_KILLED):
            return "oom_killed"
        if code < 0:
            return "signaled"
        if code and self._counters.refused_forks() > refused:
            return "pids_limit"
        return "exited"

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(protocol.BEAT_SECONDS)
            self._send(protocol.frame(protocol.BEAT))

    def _close(self) -> None:
        for descriptor in list(self._readers):
            self._close_reader(descriptor)
        self._close_stdin()
        self._notes_closed()


def _pipe_of(identity: Identity) -> tuple[int, int]:
    """Make a pipe that belongs to the commands' user, who may open it again as /dev/stdout.

    Made as that user, not given to them: that would take another capability, and gVisor never lets it be done.
    """
    if not identity.switch:
        return os.pipe()
    os.seteuid(identity.uid)
    try:
        return os.pipe()
    finally:
        os.seteuid(os.getuid())
