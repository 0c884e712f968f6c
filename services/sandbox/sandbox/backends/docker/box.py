"""One sandbox that is a container, from the manager's side."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sandbox.backends.docker.engine import Engine, Missing, Refused
from sandbox.backends.docker.exec import EXIT_KILLED, GRACE_SECONDS, ContainerCommand
from sandbox.backends.docker.files import ContainerFiles
from sandbox.backends.docker.kill import Killer
from sandbox.backends.docker.listing import names_in
from sandbox.backends.docker.wire import ExecStream
from sandbox.backends.protocol import BoxLost
from sandbox.rootfs import SHELL
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
T = TypeVar("T")

COMMAND_GROUPS = range(30_000, 60_000)
"""A group for each command of a sandbox, within what a daemon that maps users has."""

KILL_SECONDS = 10.0
"""A command that was killed and does not end within this takes its sandbox with it."""

_FIRST_LOOK_SECONDS = 0.1
_CLOSED_LOOK_SECONDS = 0.01
_START_LOOK_SECONDS = 0.01
_LAST_LOOK_SECONDS = 1.0
"""The engine does not tell that a command ended while something holds its output: it is asked, ever more rarely."""

_DEATH_SECONDS = 2.0
_OOM_SECONDS = 0.5
"""The kernel's word about memory may come a little later than the end that it explains."""

_EXITS_NOT_STARTED = (126, 127)
_NO_PROGRAM = ("executable file not found", "error finding executable")
"""How runc and gVisor say it."""


class DockerBox:
    """A container that is kept alive by nothing of the workload's, and the commands in it."""

    def __init__(
        self,
        sandbox_id: str,
        *,
        container: str,
        image_id: str,
        engine: Engine,
        killer: Killer,
        files: ContainerFiles,
        user: int,
        writable: tuple[str, ...],
        can_wreck_root: bool,
        remove: Callable[[], Awaitable[None]],
        on_lost: Callable[[str], None],
    ) -> None:
        """The container is made; `writable` are the folders that a snapshot saves, `remove` removes it for good."""
        self.sandbox_id = sandbox_id
        self.container = container
        self.rootfs_digest = image_id
        self._engine = engine
        self._killer = killer
        self._files = files
        self._user = user
        self._writable = writable
        self._can_wreck_root = can_wreck_root
        self._groups = itertools.cycle(COMMAND_GROUPS)
        self._remove = remove
        self._on_lost = on_lost
        self._running: set[ContainerCommand] = set()
        self._ended = asyncio.Event()
        """It is dead, or being destroyed."""
        self._broken = False
        self._oom_kills = 0
        self._oom_time = float("-inf")
        self._oom_seen = asyncio.Event()
        self._kill_turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calm = asyncio.Event()
        """Not set while something in it is being killed: nothing is started then."""
        self._calm.set()
        self._destroying: asyncio.Task[None] | None = None

    async def claim(self, owner: Owner) -> None:
        """Hand it over; see `Box.claim`. An engine cannot change labels: whose it is stands in the journal alone."""
        if self._ended.is_set():
            raise Unavailable(
                f"sandbox {self.sandbox_id} died before it was taken", reason="SANDBOX_LOST"
            )

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`."""
        running = ContainerCommand(command, next(self._groups), emit, time.monotonic())
        self._running.add(running)
        task = asyncio.get_running_loop().create_task(self._run(running, env))
        self._keep(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            running.mute()
            self._stop(running, Termination.KILLED)
            raise

    async def kill(self, exec_id: str) -> None:
        """End a running command; see `Box.kill`."""
        for running in list(self._running):
            if running.command.exec_id == exec_id:
                self._stop(running, Termination.KILLED)
                await running.ended.wait()

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; see `Box.write_file`."""
        await self._with_files(self._files.write(file))

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a file; see `Box.read_file`."""
        return await self._with_files(self._files.read(path, offset_bytes, max_bytes))

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder; see `Box.list_files`."""
        return await self._with_files(self._files.entries(path, self._names_in))

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        return await self._with_files(self._files.stat(path))

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive; see `Box.unpack`."""
        await self._with_files(self._files.unpack(folder, archive))

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file; see `Box.pack`."""
        await self._with_files(self._files.pack(path, archive, max_bytes))

    async def snapshot(self, target: Path) -> None:
        """Save the writable folders; see `Box.snapshot`."""
        await self._with_files(self._files.save(self._writable, target))

    async def restore(self, source: Path) -> None:
        """Make the writable folders what a snapshot says."""
        await self._with_files(self._files.restore(self._writable, source))

    async def polluted(self) -> bool:
        """Say that nobody shares it; see `Box.polluted`."""
        return False

    async def destroy(self) -> None:
        """End it; see `Box.destroy`. A caller that gives up does not stop it."""
        if self._destroying is None:
            self._ended.set()
            self._destroying = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._destroying)

    def note_oom(self) -> None:
        """Take in that the kernel killed something in it for memory."""
        self._oom_kills += 1
        self._oom_time = time.monotonic()
        self._oom_seen.set()

    def note_death(self) -> None:
        """Take in that the container does not run any more; whether its workload did it is in what came before."""
        if self._ended.is_set():
            return
        self._broken = time.monotonic() - self._oom_time < _DEATH_SECONDS
        self._ended.set()
        if not self._broken:
            self._on_lost(self.sandbox_id)

    async def _destroy(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._remove()

    async def _run(self, running: ContainerCommand, env: Mapping[str, str]) -> ExecOutcome:
        await self._calm.wait()
        running.starting = True  # from here on nothing is paused until it has started
        oom_kills = self._oom_kills
        try:
            self._raise_if_ended()
            running.exec_id = await self._create_exec(running, env)
            stream = await self._engine.start_exec(running.exec_id)
            state = await self._follow(running, stream)
            if state["Pid"]:
                running.release_output()
                return await self._judge(running, int(state["ExitCode"]), oom_kills)
            return await self._not_started(running, int(state["ExitCode"] or 0))
        except (Refused, BoxLost) as error:
            return await self._after_death(running, error)
        finally:
            running.starting = False
            running.ended.set()
            self._running.discard(running)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        """Keep a task until its end, whoever waits for it; what it raises is for whoever does."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _create_exec(self, running: ContainerCommand, env: Mapping[str, str]) -> str:
        made: dict[str, Any] = await self._engine.call(
            "create a command",
            self._engine.sdk.exec_create,
            self.container,
            list(running.command.argv),
            stdin=True,
            user=f"{self._user}:{running.group}",
            workdir=running.command.working_dir,
            environment=dict(env),
        )
        return str(made["Id"])

    async def _follow(self, running: ContainerCommand, stream: ExecStream) -> dict[str, Any]:
        """Read a command's output until it has ended; return what the engine says of its end."""
        loop = asyncio.get_running_loop()
        pumping = loop.create_task(
            running.pump(stream, lambda: self._stop(running, Termination.OUTPUT_LIMIT))
        )
        ending = loop.create_task(self._ended.wait())
        try:
            state = await self._wait_for_end(running, pumping, ending)
            if running.command.kill_survivors and running.killing is None:
                await self._kill(running)
            if running.killing is not None:
                await asyncio.shield(running.killing)
            await asyncio.wait({pumping}, timeout=GRACE_SECONDS)
            running.output_incomplete = not pumping.done()
            if pumping.done() and (broken := pumping.exception()) is not None:
                self.note_death()  # a command that nobody knows leaves a sandbox that nobody knows
                raise BoxLost(f"sandbox {self.sandbox_id}: {broken}") from broken
            return state
        except BaseException:  # how it ends is not to be known
            self._stop(running, Termination.KILLED)
            raise
        finally:
            for task in (pumping, ending):
                task.cancel()
            await asyncio.gather(pumping, ending, return_exceptions=True)

    async def _wait_for_end(
        self,
        running: ContainerCommand,
        pumping: asyncio.Task[None],
        ending: asyncio.Task[bool],
    ) -> dict[str, Any]:
        deadline = running.begun + running.command.timeout_seconds
        look = _FIRST_LOOK_SECONDS
        while True:
            had_output = not pumping.done()
            awaited: set[asyncio.Task[Any]] = {ending, pumping} if had_output else {ending}
            left = max(0.0, deadline - time.monotonic())
            wait = look if running.stop_reason is not None else min(look, left)
            await asyncio.wait(awaited, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            self._raise_if_ended()
            if time.monotonic() >= deadline:
                self._stop(running, Termination.TIMED_OUT)
            state = await self._inspect(running)
            if not state["Running"]:
                return state
            closed_now = had_output and pumping.done()
            look = _CLOSED_LOOK_SECONDS if closed_now else min(2 * look, _LAST_LOOK_SECONDS)
            if running.killing is not None and running.killing.done():
                self._see_to_it(running)

    def _see_to_it(self, running: ContainerCommand) -> None:
        """Kill again what was not there yet when it was killed; give the sandbox up if it does not end."""
        if time.monotonic() - running.stop_time > KILL_SECONDS:
            log.error("sandbox: a command could not be killed", extra={"id": self.sandbox_id})
            self.note_death()
        else:
            self._begin_kill(running)

    def _stop(self, running: ContainerCommand, reason: Termination) -> None:
        """Have a command killed with all it started, once."""
        if running.stop_reason is None and not self._ended.is_set():
            running.stop_reason = reason
            running.stop_time = time.monotonic()
            self._begin_kill(running)

    def _begin_kill(self, running: ContainerCommand) -> None:
        running.killing = asyncio.get_running_loop().create_task(self._kill(running))
        self._keep(running.killing)

    async def _kill(self, running: ContainerCommand) -> None:
        async with self._kill_turn:
            self._calm.clear()
            try:
                await self._await_starts()
                await self._killer.kill(self.container, running.group)
            except (Refused, Unavailable, TimeoutError) as error:
                if not self._ended.is_set():
                    extra = {"id": self.sandbox_id, "error": str(error)}
                    log.error("sandbox: a command could not be killed", extra=extra)
                    self.note_death()
            finally:
                self._calm.set()

    async def _await_starts(self) -> None:
        """Wait until no command is half started: an engine that pauses a container then never gets out of it."""
        async with asyncio.timeout(KILL_SECONDS):
            while starting := [one for one in self._running if one.starting]:
                for one in starting:
                    if one.exec_id:
                        await self._inspect(one)
                await asyncio.sleep(_START_LOOK_SECONDS)

    async def _inspect(self, running: ContainerCommand) -> dict[str, Any]:
        """Ask the engine how a command is, and note that it has started."""
        state: dict[str, Any] = await self._engine.call(
            "inspect a command", self._engine.sdk.exec_inspect, running.exec_id
        )
        running.starting = running.starting and not state["Pid"]
        return state

    async def _judge(self, running: ContainerCommand, code: int, oom_before: int) -> ExecOutcome:
        if code == EXIT_KILLED and running.stop_reason is None and self._oom_kills == oom_before:
            await self._explain_kill()
        return running.outcome(code, self._oom_kills > oom_before)

    async def _explain_kill(self) -> None:
        """Wait a moment for the word about memory; make sure that it was not the sandbox that died.

        Raises:
            BoxLost: it was.
        """
        self._oom_seen.clear()
        words = [asyncio.ensure_future(event.wait()) for event in (self._oom_seen, self._ended)]
        await asyncio.wait(words, timeout=_OOM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for word in words:
            word.cancel()
        self._raise_if_ended()
        if not self._oom_seen.is_set():
            found = await self._engine.call(
                "inspect a container", self._engine.sdk.inspect_container, self.container
            )
            if not found["State"]["Running"]:
                self.note_death()
                self._raise_if_ended()

    async def _not_started(self, running: ContainerCommand, code: int) -> ExecOutcome:
        """Turn the engine's words about a command that it could not start into an outcome."""
        refusal = running.take_refusal()
        if "resource temporarily unavailable" in refusal:
            running.stop_reason = running.stop_reason or Termination.PIDS_LIMIT
            code = _EXITS_NOT_STARTED[0]
        elif self._can_wreck_root and not await self._files.exists(SHELL):
            running.stop_reason = Termination.SANDBOX_BROKEN_BY_WORKLOAD
        elif any(words in refusal for words in _NO_PROGRAM):
            code = _EXITS_NOT_STARTED[1]
        elif code not in _EXITS_NOT_STARTED and running.stop_reason is None:
            raise Unavailable(
                f"sandbox {self.sandbox_id}: the engine could not start a command: {refusal}"
            )
        running.stderr.add(f"{running.command.argv[0]}: {refusal}\n".encode())
        return running.outcome(code, oom_killed=False)

    async def _after_death(self, running: ContainerCommand, error: Exception) -> ExecOutcome:
        """Say what became of a command whose sandbox is gone, or that the engine refused."""
        if isinstance(error, Refused) and not self._ended.is_set():
            with contextlib.suppress(
                TimeoutError
            ):  # the engine's word about the death is on its way
                async with asyncio.timeout(_DEATH_SECONDS):
                    await self._ended.wait()
            if not self._ended.is_set() and isinstance(error, Missing):
                self.note_death()
            elif not self._ended.is_set():
                raise Unavailable(f"sandbox {self.sandbox_id}: {error}") from error
        if not self._broken:
            raise BoxLost(f"sandbox {self.sandbox_id} died") from error
        running.stop_reason = Termination.SANDBOX_BROKEN_BY_WORKLOAD
        return running.outcome(0, oom_killed=False)

    async def _names_in(self, folder: str) -> list[str]:
        return await names_in(folder, lambda command: self.run(command, {}, None), self._user)

    def _raise_if_ended(self) -> None:
        if self._ended.is_set():
            raise BoxLost(f"sandbox {self.sandbox_id} died")

    async def _with_files(self, work: Awaitable[T]) -> T:
        if self._ended.is_set():
            if asyncio.iscoroutine(work):
                work.close()
            if self._broken:
                raise FailedPrecondition(
                    f"sandbox {self.sandbox_id} was wrecked by its own commands",
                    reason="SANDBOX_BROKEN_BY_WORKLOAD",
                    attributable="workload",
                )
            raise BoxLost(f"sandbox {self.sandbox_id} died")
        try:
            return await work
        except Missing as error:
            raise BoxLost(f"sandbox {self.sandbox_id}: {error}") from error
