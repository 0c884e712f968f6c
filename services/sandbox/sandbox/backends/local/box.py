"""One sandbox of the embedded backend, from the manager's side."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from sandbox.backends.local.cgroups import BoxCgroup
from sandbox.backends.local.evidence import Evidence
from sandbox.backends.local.files import LocalFiles
from sandbox.backends.local.killing import TreeKiller, has_ended, remove_group
from sandbox.backends.local.running import RunningCommand
from sandbox.backends.local.spawner_process import Channel, SpawnerProcess
from sandbox.backends.protocol import BoxLost
from sandbox.types import (
    BoxFile,
    Chunk,
    Command,
    ExecOutcome,
    FileContent,
    FileEntry,
    Owner,
    Termination,
)
from servicekit.errors import FailedPrecondition, Unavailable

log = logging.getLogger(__name__)

_REFORK_SECONDS = 0.005
_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126
_EXIT_KILLED = 128 + signal.SIGKILL


class LaunchError(Exception):
    """The sandbox could not be set up; says at which stage."""

    maps_no_owners = False
    """Whether that is because an imported root cannot be shown as another user's here."""


class _ForkRefused(Exception):
    """The command could not be started because the sandbox may start no process at present."""

    def __init__(self, outcome: ExecOutcome) -> None:
        super().__init__(str(outcome.termination))
        self.outcome = outcome


class LocalBox:
    """A keeper process and the sandbox that it holds."""

    def __init__(
        self,
        sandbox_id: str,
        *,
        cgroup: BoxCgroup | None,
        rootfs_digest: str,
        owner: int,
        health_paths: tuple[str, ...],
        make_name: Callable[[], str],
        pool: Executor,
        on_lost: Callable[[str], None],
        answer_seconds: float,
    ) -> None:
        """Holds nothing until `launch`.

        `health_paths` must exist for programs to run at all. The keeper may take `answer_seconds` to start a command
        that is already to end.
        """
        self.sandbox_id = sandbox_id
        self.rootfs_digest = rootfs_digest
        self._cgroup = cgroup
        self._killer = TreeKiller(cgroup)
        self._evidence = Evidence(cgroup)
        self.owner = owner
        self._health_paths = health_paths
        self._make_name = make_name
        self._pool = pool
        self._on_lost = on_lost
        self._answer_seconds = answer_seconds
        self.on_destroyed: Callable[[], object] = lambda: None
        """Called when nothing is left."""
        self._channel: Channel | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pidfds: list[int] = []
        self._own_pids: frozenset[int] = frozenset()
        self.keeper_pid = 0
        self._files: LocalFiles | None = None
        self._running: dict[int, RunningCommand] = {}
        self._next_key = 0
        self._forget: list[int] = []
        """Commands whose marks the keeper need not hold any more; it is told with the next."""
        self._launched = False
        self._dead = False
        self._broken = False
        self._end = "died"
        """What became of it, for the error."""
        self._destroying: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can run commands."""
        return self._launched and not self._dead

    @property
    def busy(self) -> bool:
        """Whether a command is under way."""
        return any(running.started.is_set() for running in self._running.values())

    async def launch(self, spawner: SpawnerProcess, spec: dict[str, Any]) -> None:
        """Have the sandbox made and wait until it can run commands.

        Raises:
            LaunchError: a stage failed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._channel = Channel(ours, self._on_message, self._on_close)
            try:
                await spawner.request_box(spec, theirs.fileno())
            except OSError as error:
                raise LaunchError(f"spawner: {error}") from error
        await self._ready

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`."""
        begun = time.monotonic()
        while True:
            freezes = self._killer.freezes
            try:
                return await self._run_once(command, env, emit, begun)
            except _ForkRefused as refused:
                if not self._killer.frozen and self._killer.freezes == freezes:
                    return refused.outcome  # the sandbox is full, by its own doing
            # Forks are refused while another command is killed.
            await asyncio.sleep(_REFORK_SECONDS)

    async def _run_once(
        self,
        command: Command,
        env: Mapping[str, str],
        emit: Callable[[Chunk], None] | None,
        begun: float,
    ) -> ExecOutcome:
        if self._dead:
            return self._after_death(None, begun)
        self._next_key += 1
        key = self._next_key
        try:
            running = RunningCommand(
                command, self.owner, emit, lambda: self._stop(running, Termination.OUTPUT_LIMIT)
            )
        except OSError as error:
            raise _no_means(error) from error
        self._running[key] = running
        forks_refused = self._evidence.forks_refused()
        try:
            await self._request(key, running, env)
            running.watch()
            try:
                async with asyncio.timeout(command.timeout_seconds):
                    code = await asyncio.shield(running.ended)
            except TimeoutError:
                self._stop(running, Termination.TIMED_OUT)
                code = await asyncio.shield(running.ended)
            self._kill_survivors(running)
            if running.killing is not None:
                await asyncio.shield(running.killing)
            closed = await running.drain()
            outcome = running.outcome(
                self._termination(running, code, forks_refused), code, closed, begun
            )
            if running.fork_refused:
                raise _ForkRefused(outcome)
            return outcome
        except BoxLost:
            return self._after_death(running, begun)
        finally:
            self._stop(running, Termination.KILLED)  # only if the caller went away before the end
            self._kill_survivors(running)
            running.close()

    async def _request(self, key: int, running: RunningCommand, env: Mapping[str, str]) -> None:
        """Ask the keeper to start a command; if that fails, nothing of it is left that could be waited for."""
        command = running.command
        request = {"key": key, "argv": list(command.argv), "env": dict(env)}
        forget, self._forget = self._forget, []
        assert self._channel is not None
        try:
            await self._channel.send(
                {**request, "cwd": command.working_dir, "forget": forget},
                running.child_descriptors,
            )
        except TimeoutError as error:
            self._lose("its keeper takes no requests")
            raise BoxLost from error
        except (BrokenPipeError, ConnectionResetError) as error:
            self._die()  # the keeper is gone; `_on_close` tells of it
            raise BoxLost from error
        except BaseException as error:  # also when cancelled
            self._forget += forget
            self._fail(key)
            if isinstance(error, OSError):
                raise _no_means(error) from error
            raise

    async def kill(self, exec_id: str) -> None:
        """End a running command; see `Box.kill`."""
        for running in list(self._running.values()):
            if running.command.exec_id == exec_id:
                self._stop(running, Termination.KILLED)
                with contextlib.suppress(BoxLost):
                    await asyncio.shield(running.ended)
                if running.killing is not None:
                    await asyncio.shield(running.killing)

    async def claim(self, owner: Owner) -> None:
        """Hand it over; see `Box.claim`. Nothing in it says whose it is."""

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; see `Box.write_file`."""
        await self._usable_files().write(file)

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a file; see `Box.read_file`."""
        return await self._usable_files().read(path, offset_bytes, max_bytes)

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder; see `Box.list_files`."""
        return await self._usable_files().list_folder(path)

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        return await self._usable_files().look_at(path)

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive; see `Box.unpack`."""
        await self._usable_files().unpack(folder, archive)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file; see `Box.pack`."""
        await self._usable_files().pack(path, archive, max_bytes)

    async def snapshot(self, target: Path) -> None:
        """Save the writable part of the root; see `Box.snapshot`."""
        await self._usable_files().snapshot(target)

    async def restore(self, snapshot: Path) -> None:
        """Make the writable part what a snapshot says; before the sandbox is handed over."""
        await self._usable_files().restore(snapshot)

    async def polluted(self) -> bool:
        """Say no: nobody else can change it."""
        return False

    async def destroy(self) -> None:
        """End it; see `Box.destroy`. A caller that gives up does not stop it."""
        if self._destroying is None:
            self._destroying = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._destroying)

    async def _destroy(self) -> None:
        self._dead = True
        for pidfd in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if self._channel is not None:
            self._channel.close()
        if not self._ready.done():
            self._ready.cancel()
        self._fail_running()
        for pidfd in self._pidfds:
            if not await has_ended(pidfd, self._own_pids):
                log.error("sandbox: a killed process does not end", extra={"id": self.sandbox_id})
        if self._cgroup is not None:
            gone = await asyncio.to_thread(remove_group, self._cgroup)
            if not gone:
                log.error("sandbox: cgroup could not be removed", extra={"id": self.sandbox_id})
        if self._files is not None:
            await self._files.close()
        for descriptor in self._pidfds:
            os.close(descriptor)
        self._pidfds = []
        self.on_destroyed()

    def _on_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        operation = message["op"]
        if operation == "hello":
            self._pidfds += descriptors
            self.keeper_pid = message["pid"]
            self._own_pids |= {message["pid"]}
        elif operation == "root":
            root, writable = descriptors
            self._files = LocalFiles(
                root=root,
                writable=writable,
                owner=self.owner,
                make_name=self._make_name,
                pool=self._pool,
            )
        elif operation == "ready":
            self._launched = True
            if not self._ready.done():
                self._ready.set_result(None)
        elif operation == "error":
            if not self._ready.done():
                error = LaunchError(f"{message['stage']}: {message['detail']}")
                error.maps_no_owners = bool(message.get("maps_no_owners"))
                self._ready.set_exception(error)
        elif operation == "started":
            self._on_started(message["key"], message["mark"])
        elif operation in ("ended", "refused"):
            self._on_ended(message)

    def _on_started(self, key: int, mark: int) -> None:
        running = self._running.get(key)
        if running is None:
            self._forget.append(key)
            return
        running.set_mark(mark, lambda: self._forget.append(key))

    def _on_ended(self, message: dict[str, Any]) -> None:
        running = self._running.pop(message["key"], None)
        if running is None:
            return
        running.started.set()
        if message["op"] == "ended":
            running.ended.set_result(message["status"])
            return
        stage, number = message["stage"], message["errno"]
        if stage in ("working_dir", "execute"):
            running.ended.set_result(self._refusal(running, stage, number))
        elif stage == "fork" and number == errno.EAGAIN:
            running.fork_refused = True
            running.stop_reason = Termination.PIDS_LIMIT
            running.ended.set_result(_EXIT_NOT_EXECUTABLE)
        else:
            text = f"exec failed at {stage}: {os.strerror(number)}"
            log.error("sandbox: %s", text, extra={"id": self.sandbox_id})
            running.ended.set_exception(BoxLost(text))

    def _refusal(self, running: RunningCommand, stage: str, number: int) -> int:
        """Turn a program that could not be started into what a shell would say, or find the sandbox wrecked."""
        assert self._files is not None
        if not all(self._files.exists(path) for path in self._health_paths):
            running.stop_reason = Termination.SANDBOX_BROKEN_BY_WORKLOAD
        command = running.command
        subject = command.working_dir if stage == "working_dir" else command.argv[0]
        running.stderr.add(os.fsencode(f"{subject}: {os.strerror(number)}\n"))
        missing = stage == "execute" and number == errno.ENOENT
        return _EXIT_NOT_FOUND if missing else _EXIT_NOT_EXECUTABLE

    def _on_close(self) -> None:
        if self._destroying is not None:
            return
        if not self._launched:
            if not self._ready.done():
                self._ready.set_exception(LaunchError("the keeper ended during set-up"))
            return
        self._die()
        if not self._broken:
            self._on_lost(self.sandbox_id)

    def _die(self) -> None:
        """Note that the sandbox is dead, and whether its workload did it: the kernel counts its OOM kills."""
        evidence = self._evidence
        self._broken |= evidence.new_oom_kills() > 0 and evidence.memory_was_used_up()
        self._dead = True
        self._fail_running()

    def _lose(self, why: str) -> None:
        """Give a sandbox up that still runs, for a reason that is ours."""
        log.error("sandbox given up", extra={"id": self.sandbox_id, "why": why})
        self._end = f"was given up: {why}"
        self._die()
        self._on_lost(self.sandbox_id)

    def _fail_running(self) -> None:
        for key in list(self._running):
            self._fail(key)

    def _fail(self, key: int) -> None:
        running = self._running.pop(key, None)
        if running is not None:
            running.started.set()
            running.ended.set_exception(BoxLost("the sandbox died"))
            running.ended.exception()  # whoever waits sees it; nobody need wait

    def _after_death(self, running: RunningCommand | None, begun: float) -> ExecOutcome:
        if not self._broken:
            raise BoxLost(f"sandbox {self.sandbox_id} {self._end}")
        return ExecOutcome(
            termination=Termination.SANDBOX_BROKEN_BY_WORKLOAD,
            stdout=running.stdout.content() if running else b"",
            stderr=running.stderr.content() if running else b"",
            duration_seconds=time.monotonic() - begun,
        )

    def _termination(
        self, running: RunningCommand, code: int, forks_refused_before: int
    ) -> Termination:
        oom_kills = self._evidence.new_oom_kills()
        if oom_kills and not self._evidence.memory_was_used_up():
            # Whatever became of the command without its child: it is no doing of the workload.
            self._lose("the machine ran out of memory and killed a process in it")
            raise BoxLost
        if running.stop_reason is not None:
            return running.stop_reason
        if oom_kills and code in (-signal.SIGKILL, _EXIT_KILLED):
            return Termination.OOM_KILLED
        if code < 0:
            return Termination.SIGNALED
        if code and self._evidence.forks_refused() > forks_refused_before:
            return Termination.PIDS_LIMIT
        return Termination.EXITED

    def _stop(self, running: RunningCommand, reason: Termination) -> None:
        """Have a command killed with all it started, once."""
        if running.stop_reason is None and not running.ended.done():
            running.stop_reason = reason
            running.killing = asyncio.get_running_loop().create_task(
                self._kill_when_started(running)
            )

    def _kill_survivors(self, running: RunningCommand) -> None:
        """Have what a command left behind killed, where its caller wants that; once."""
        if running.command.kill_survivors and running.killing is None and not self._dead:
            running.killing = asyncio.get_running_loop().create_task(self._kill_tree(running))

    async def _kill_when_started(self, running: RunningCommand) -> None:
        try:
            async with asyncio.timeout(self._answer_seconds):
                await running.started.wait()  # the keeper's death sets this too
        except TimeoutError:
            if not self._dead:
                self._lose("its keeper does not answer")
        await self._kill_tree(running)

    async def _kill_tree(self, running: RunningCommand) -> None:
        with running.held_mark() as mark:
            killed = mark == 0 or await asyncio.to_thread(self._killer.kill, mark, self._own_pids)
        if not killed and not self._dead:
            self._lose("a command could not be killed")

    def _usable_files(self) -> LocalFiles:
        if self._dead and self._broken:
            raise FailedPrecondition(
                f"sandbox {self.sandbox_id} was wrecked by its own commands",
                reason="SANDBOX_BROKEN_BY_WORKLOAD",
                attributable="workload",
            )
        if self._dead or self._files is None:
            raise BoxLost(f"sandbox {self.sandbox_id} {self._end}")
        return self._files


def _no_means(error: OSError) -> Unavailable:
    return Unavailable(f"the command could not be started: {error}", reason="NO_MEANS")
