"""One sandbox of a remote service, from the manager's side."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol

from sandbox.backends.protocol import BoxLost
from sandbox.backends.remote import shell
from sandbox.backends.remote.api import Vm
from sandbox.backends.remote.archives import BoundedFile, check_archive
from sandbox.backends.remote.envd import DiskFull, Envd, StartRefused, StreamBroken
from sandbox.backends.remote.exec import (
    DRAIN_LIMIT_BYTES,
    RemoteExec,
    ToolResult,
    Wrecked,
    run_tool,
    was_killed,
)
from sandbox.rootfs import WORKING_DIR
from sandbox.storage.files import MAX_READ_BYTES, shown
from sandbox.types import (
    MIB,
    BoxFile,
    Chunk,
    Command,
    ExecOutcome,
    FileContent,
    FileEntry,
    Owner,
    Termination,
)
from servicekit.errors import (
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
)

_ARCHIVE_BYTES_PER_SECOND = MIB
"""The slowest packing that is waited for."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_SHOWN_CHARACTERS = 200
_CALLERS_FAULTS = (
    "File exists",
    "Is a directory",
    "Not a directory",
    "Permission denied",
    "Read-only file system",
)


class Host(Protocol):
    """What a box asks of the backend that made it."""

    async def exists(self, remote_id: str) -> bool:
        """Say whether the service still has it."""
        ...

    async def end(self, box: "RemoteBox") -> None:
        """End it at the service, now or, where the service does not answer, a little later."""
        ...

    async def save(self, box: "RemoteBox", target: Path) -> bool:
        """Save its file system, to be found again by the file `target`; False if it is gone."""
        ...


class RemoteBox:
    """A micro-VM somewhere else."""

    def __init__(
        self,
        sandbox_id: str,
        vm: Vm,
        envd: Envd,
        *,
        host: Host,
        rootfs_digest: str,
        call_seconds: float,
        new_mark: Callable[[], str],
        on_lost: Callable[[str], None],
    ) -> None:
        """Works with a sandbox that the service has made.

        Args:
            sandbox_id: ours.
            vm: the service's.
            envd: runs what is to be run in it.
            host: made it and ends it.
            rootfs_digest: of what it started from.
            call_seconds: how long a call may take.
            new_mark: makes words that do not repeat.
            on_lost: is told our id when it is gone unasked.
        """
        self.sandbox_id = sandbox_id
        self.rootfs_digest = rootfs_digest
        self.remote_id = vm.remote_id
        self._envd = envd
        self._host = host
        self._call_seconds = call_seconds
        self._new_mark = new_mark
        self._on_lost = on_lost
        self._running: dict[str, RemoteExec] = {}
        self._oom_kills = 0
        self._lost = False
        self._destroying: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Make sure that commands can run.

        Raises:
            FailedPrecondition: its image lacks a tool.
            Unavailable: it cannot be reached.
        """
        try:
            made = await self._tool(shell.PREPARE, WORKING_DIR)
        except BoxLost as error:
            raise Unavailable(f"the sandbox was gone before its first command: {error}") from error
        if made.exit_code == shell.NO_TOOL:
            name = made.stdout.decode(errors="replace").strip()
            raise FailedPrecondition(
                f"the service's template has no {name!r}; use an image with sh and the GNU tools",
                reason="REMOTE_TEMPLATE",
            )
        self._oom_kills = shell.oom_kills_of(made.stdout)

    async def claim(self, owner: Owner) -> None:
        """Take an owner; see `Box.claim`. Tags of the service cannot be changed later."""

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`."""
        self._check_alive()
        mark = self._new_mark()
        running: RemoteExec | None = None
        try:
            input_path = f"/tmp/.hone-{mark}" if command.stdin else ""
            if input_path:
                await self._envd.upload(input_path, command.stdin)
            running = self._running[command.exec_id] = RemoteExec(
                self._envd,
                command,
                env,
                emit,
                mark=mark,
                input_path=input_path,
                call_seconds=self._call_seconds,
            )
            return await self._with_cause(await running.run())
        except DiskFull:
            return ExecOutcome(
                termination=Termination.EXITED,
                exit_code=_NOT_EXECUTABLE,
                stderr=b"the input has no room on the sandbox's disk\n",
            )
        except StartRefused as error:
            return await self._not_started(str(error))
        except StreamBroken as error:
            self.lose()  # a command whose end nobody knows leaves a sandbox that nobody knows
            raise BoxLost(f"sandbox {self.sandbox_id}: {error}") from error
        finally:
            if running is not None:
                self._running.pop(command.exec_id, None)

    async def kill(self, exec_id: str) -> None:
        """End a running command; see `Box.kill`."""
        running = self._running.get(exec_id)
        if running is not None:
            running.stop(Termination.KILLED)
            with contextlib.suppress(StreamBroken, Wrecked):  # whoever runs it says what it means
                await running.killed()

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; see `Box.write_file`."""
        temporary = f"/tmp/.hone-{self._new_mark()}"
        await self._upload(temporary, file.content, file.path)
        mode = f"{file.mode & 0o777:o}"
        result = await self._tool(shell.WRITE, temporary, file.path, mode)
        self._check(result, file.path)

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a file; see `Box.read_file`."""
        count = min(max_bytes, MAX_READ_BYTES)
        result = await self._tool(
            shell.READ, path, str(offset_bytes), str(count), str(MAX_READ_BYTES)
        )
        if result.exit_code == shell.TOO_LARGE:
            raise OutOfRange(
                f"{shown(path)}: more than {MAX_READ_BYTES} bytes; read it in parts with offset_bytes "
                "and max_bytes"
            )
        self._check(result, path)
        try:
            return FileContent(content=result.stdout, size_bytes=int(result.stderr))
        except ValueError:
            self._raise_odd(path, result)

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder; see `Box.list_files`."""
        result = await self._tool(shell.LIST, path)
        self._check(result, path, wrong_kind="is no folder")
        return self._entries(path, result)

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        result = await self._tool(shell.STAT, path)
        self._check(result, path)
        found = self._entries(path, result)
        if len(found) != 1:
            self._raise_odd(path, result)
        return found[0]

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive; see `Box.unpack`."""
        await asyncio.to_thread(check_archive, archive)
        temporary = f"/tmp/.hone-{self._new_mark()}"
        await self._upload(temporary, archive, folder)
        size = archive.stat().st_size
        result = await self._tool(shell.UNPACK, temporary, folder, work_bytes=size)
        self._check(result, folder)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file; see `Box.pack`."""
        with archive.open("wb") as target:
            bounded = BoundedFile(target, max_bytes, path)
            result = await self._tool(
                shell.PACK, path, sink=bounded.write, work_bytes=max_bytes, max_bytes=1 << 62
            )
        self._check(result, path)

    async def snapshot(self, target: Path) -> None:
        """Save the file system at the service; see `Box.snapshot`."""
        self._check_alive()
        if not await self._host.save(self, target):
            self.lose()
            raise BoxLost(f"sandbox {self.sandbox_id} is gone at the service")

    async def polluted(self) -> bool:
        """Say no: nobody else can change it."""
        return False

    async def destroy(self) -> None:
        """End it; see `Box.destroy`."""
        if self._destroying is None:
            self._lost = True
            self._destroying = asyncio.get_running_loop().create_task(self._host.end(self))
        await asyncio.shield(self._destroying)

    def lose(self) -> None:
        """Note that it is not to be had any more, once."""
        if not self._lost:
            self._lost = True
            self._on_lost(self.sandbox_id)

    def _check_alive(self) -> None:
        if self._lost:
            raise BoxLost(f"sandbox {self.sandbox_id} is gone")

    async def _with_cause(self, outcome: ExecOutcome) -> ExecOutcome:
        """Return the outcome; where the kernel's count of kills for want of memory grew, that was the cause."""
        if not was_killed(outcome):
            return outcome
        try:
            seen = await run_tool(self._envd, shell.OOM_KILLS, seconds=self._call_seconds)
        except (StreamBroken, StartRefused):
            return outcome  # only the finer word is missing
        kills = shell.oom_kills_of(seen.stdout)
        if kills > self._oom_kills:
            self._oom_kills = kills
            return replace(outcome, termination=Termination.OOM_KILLED)
        return outcome

    async def _not_started(self, why: str) -> ExecOutcome:
        """Say why the daemon could not start a shell that ran before."""
        lowered = why.lower()
        if "resource temporarily unavailable" in lowered:
            termination = Termination.PIDS_LIMIT
        elif "argument list too long" in lowered:
            termination = Termination.EXITED
        else:
            termination = Termination.SANDBOX_BROKEN_BY_WORKLOAD
        return ExecOutcome(
            termination=termination,
            exit_code=_NOT_EXECUTABLE,
            stderr=f"{why}\n".encode(errors="replace"),
        )

    async def _tool(
        self,
        script: str,
        *arguments: str,
        work_bytes: int = 0,
        max_bytes: int = DRAIN_LIMIT_BYTES,
        sink: Callable[[bytes], None] | None = None,
    ) -> ToolResult:
        seconds = self._call_seconds + work_bytes / _ARCHIVE_BYTES_PER_SECOND
        async with self._reaching():
            return await run_tool(
                self._envd, script, *arguments, seconds=seconds, max_bytes=max_bytes, sink=sink
            )

    async def _upload(self, temporary: str, content: bytes | Path, path: str) -> None:
        async with self._reaching():
            try:
                await self._envd.upload(temporary, content)
            except DiskFull as error:
                raise _disk_full(path) from error

    @asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Turn what can go wrong on the way into what the caller can act on."""
        self._check_alive()
        try:
            yield
        except StartRefused as error:
            raise FailedPrecondition(
                f"sandbox {self.sandbox_id} was wrecked by its own commands: {error}",
                reason="SANDBOX_BROKEN_BY_WORKLOAD",
                attributable="workload",
            ) from error
        except StreamBroken as error:
            if await self._is_gone():
                self.lose()
                raise BoxLost(f"sandbox {self.sandbox_id} is gone at the service") from error
            raise Unavailable(
                f"sandbox {self.sandbox_id}: {error}", reason="REMOTE_UNREACHABLE"
            ) from error

    async def _is_gone(self) -> bool:
        try:
            return not await self._host.exists(self.remote_id)
        except HoneError:
            return False  # nobody knows

    def _check(
        self, result: ToolResult, path: str, wrong_kind: str = "is no regular file of the sandbox"
    ) -> None:
        """Raise what a script's exit code says."""
        if result.exit_code == 0:
            return
        words = result.stderr.decode(errors="replace")
        if result.exit_code == shell.MISSING:
            raise NotFound(f"{shown(path)}: no such file in the sandbox", reason="FILE_NOT_FOUND")
        if result.exit_code == shell.WRONG_KIND:
            raise InvalidArgument(f"{shown(path)}: {wrong_kind}")
        if "No space left" in words or "quota exceeded" in words:
            raise _disk_full(path)
        if any(text in words for text in _CALLERS_FAULTS):
            raise InvalidArgument(f"{shown(path)}: {_short(words)}")
        if result.exit_code in (_NOT_FOUND, _NOT_EXECUTABLE):
            raise FailedPrecondition(
                f"sandbox {self.sandbox_id} lacks the tools for it: {_short(words)}",
                reason="SANDBOX_BROKEN_BY_WORKLOAD",
                attributable="workload",
            )
        self._raise_odd(path, result)

    def _entries(self, path: str, result: ToolResult) -> list[FileEntry]:
        try:
            return shell.entries_of(result.stdout)
        except ValueError:
            self._raise_odd(path, result)

    def _raise_odd(self, path: str, result: ToolResult) -> NoReturn:
        words = _short(result.stderr.decode(errors="replace"))
        raise FailedPrecondition(
            f"{shown(path)}: the sandbox's own tools gave exit code {result.exit_code}: {words}",
            attributable="workload",
        )


def _disk_full(path: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{shown(path)}: the sandbox's disk is full", reason="DISK_FULL", attributable="workload"
    )


def _short(words: str) -> str:
    return "".join(c if c.isprintable() else " " for c in words[-_SHOWN_CHARACTERS:]).strip()
