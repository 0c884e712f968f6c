"""One sandbox with an agent in it: commands and files through that, its death as whoever holds it tells.

What holds it is a pod, or a process of a runtime on this machine.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sandbox.backends.agent_client import AgentClient, AgentLost
from sandbox.backends.protocol import BoxLost
from sandbox.backends.verdict import BY_WORKLOAD, DEAD, State, Verdict
from sandbox.pod_agent import protocol
from sandbox.types import (
    BoxFile,
    Chunk,
    Command,
    ExecOutcome,
    FileContent,
    FileEntry,
    FileKind,
    Owner,
    Stream,
    Termination,
)
from servicekit.errors import FailedPrecondition, Unavailable

log = logging.getLogger(__name__)

_MARGIN_SECONDS = 15.0
"""How much longer than its time-out a command may take to be reported: killing, grace, the way back."""
_FILE_SECONDS = 60.0
_ARCHIVE_SECONDS = 600.0
_VERDICT_SECONDS = 3.0
"""How long the cause of a broken connection is waited for; an API server hears of a pod's death last."""


class AgentBox:
    """A sandbox with a live agent."""

    def __init__(
        self,
        sandbox_id: str,
        *,
        name: str,
        rootfs_digest: str,
        agent: AgentClient,
        take: Callable[[Owner], Awaitable[None]],
        look: Callable[[], Awaitable[Verdict]],
        remove: Callable[[], Awaitable[None]],
        on_lost: Callable[[str], None],
        what: str = "pod",
    ) -> None:
        """Holds one that is ready.

        Args:
            sandbox_id: The fleet's name for it.
            name: Of what holds it.
            rootfs_digest: What it started from.
            agent: Reaches into it.
            take: Hands it to an owner.
            look: Asks for its state those who must know.
            remove: Deletes it; returns when that is certain.
            on_lost: Is told when it dies unasked and its workload is not to blame.
            what: What holds it, in a word.
        """
        self.sandbox_id = sandbox_id
        self.name = name
        self._what = what
        self._rootfs_digest = rootfs_digest
        self._agent = agent
        self._take = take
        self._look = look
        self._remove = remove
        self._on_lost = on_lost
        self._death: Verdict | None = None
        self._died = asyncio.Event()
        self._destroying: asyncio.Task[None] | None = None

    @property
    def rootfs_digest(self) -> str:
        """What it started from; see `Box.rootfs_digest`."""
        return self._rootfs_digest

    def see(self, verdict: Verdict) -> None:
        """Take note of its state."""
        if self._death is not None or verdict.state not in DEAD:
            return
        self._death = verdict
        self._died.set()
        if verdict.state is State.LOST and self._destroying is None:
            log.error(
                f"{self._what} lost", extra={"sandbox_id": self.sandbox_id, "why": verdict.text}
            )
            self._on_lost(self.sandbox_id)

    async def claim(self, owner: Owner) -> None:
        """Hand it to its rollout; see `Box.claim`."""
        if self._death is not None:
            raise Unavailable(
                f"{self._what} {self.name} has died: {self._death.text}", reason="BOX_GONE"
            )
        await self._take(owner)

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command; see `Box.run`."""
        begun = time.monotonic()
        self._refuse_if_destroyed()
        output = _Output(command, emit)
        if self._death is not None:
            return self._after_death(output, begun, under_way=False)
        request = {
            "exec_id": command.exec_id,
            "argv": list(command.argv),
            "env": dict(env),
            "working_dir": command.working_dir,
            "timeout_seconds": command.timeout_seconds,
            "max_output_bytes": command.max_output_bytes,
            "kill_survivors": command.kill_survivors,
        }
        try:
            async with asyncio.timeout(command.timeout_seconds + _MARGIN_SECONDS):
                end = await self._unless_dead(
                    self._agent.execute(request, command.stdin, output.add)
                )
        except (AgentLost, TimeoutError) as error:
            await self._find_cause(error)
            return self._after_death(output, begun, under_way=True)
        if not end["killed"]:
            self._break("a command could not be killed")
        return output.outcome(end)

    async def kill(self, exec_id: str) -> None:
        """End a running command; see `Box.kill`."""
        if self._death is None or self._death.state not in BY_WORKLOAD:
            await self._ask(lambda: self._agent.kill(exec_id))

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; see `Box.write_file`."""
        query: dict[str, str | int] = {"path": file.path, "mode": file.mode}
        await self._operate("PUT", "/v1/file", query, _FILE_SECONDS, body=file.content)

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a file; see `Box.read_file`."""
        content = bytearray()
        query: dict[str, str | int] = {"path": path, "offset": offset_bytes, "max": max_bytes}
        end = await self._operate("GET", "/v1/file", query, _FILE_SECONDS, on_data=content.extend)
        return FileContent(content=bytes(content), size_bytes=end["size_bytes"])

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder; see `Box.list_files`."""
        end = await self._operate("GET", "/v1/list", {"path": path}, _FILE_SECONDS)
        return [_entry(each) for each in end["entries"]]

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        end = await self._operate("GET", "/v1/stat", {"path": path}, _FILE_SECONDS)
        return _entry(end["entry"])

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive; see `Box.unpack`."""
        await self._operate("PUT", "/v1/tar", {"folder": folder}, _ARCHIVE_SECONDS, body=archive)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder; see `Box.pack`."""
        query: dict[str, str | int] = {"path": path, "max": max_bytes}
        await self._fetch("/v1/tar", query, archive)

    async def snapshot(self, target: Path) -> None:
        """Write an archive of the writable folders; see `Box.snapshot`."""
        await self._fetch("/v1/snapshot", {}, target)

    async def restore(self, snapshot: Path) -> None:
        """Start from a snapshot: fill the writable folders."""
        await self._operate("PUT", "/v1/snapshot", {}, _ARCHIVE_SECONDS, body=snapshot)

    async def polluted(self) -> bool:
        """Say that nobody shares it; see `Box.polluted`."""
        return False

    async def destroy(self) -> None:
        """End it; see `Box.destroy`. A caller that gives up does not stop it."""
        if self._destroying is None:
            self._destroying = asyncio.get_running_loop().create_task(self._destroy())
        await asyncio.shield(self._destroying)

    async def _destroy(self) -> None:
        self._died.set()
        await self._remove()

    async def _fetch(self, path: str, query: dict[str, str | int], target: Path) -> None:
        with target.open("wb") as file:
            try:
                await self._operate("GET", path, query, _ARCHIVE_SECONDS, on_data=file.write)
            except BaseException:  # also when cancelled: half an archive must not be taken for one
                target.unlink(missing_ok=True)
                raise

    async def _operate(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        seconds: float,
        *,
        body: bytes | Path = b"",
        on_data: Callable[[bytes], object] = lambda _: None,
    ) -> dict[str, Any]:
        def hand_on(data: bytes) -> None:
            on_data(data)

        end: dict[str, Any] = await self._ask(
            lambda: self._agent.operate(method, path, query, seconds, body=body, on_data=hand_on)
        )
        return end

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for the agent; a broken connection becomes the error of whoever broke it."""
        try:
            self._refuse_if_destroyed()
            if self._death is not None:
                raise AgentLost(f"the {self._what} ended")
            return await self._unless_dead(call())
        except (AgentLost, TimeoutError) as error:
            await self._find_cause(error)
            assert self._death is not None
            if self._death.state in BY_WORKLOAD:
                raise FailedPrecondition(
                    f"sandbox {self.sandbox_id} was ended by its own commands: {self._death.text}",
                    reason="SANDBOX_BROKEN_BY_WORKLOAD",
                    attributable="workload",
                ) from error
            raise BoxLost(f"{self._what} {self.name}: {self._death.text}") from error

    async def _unless_dead(self, call: Awaitable[Any]) -> Any:
        """Wait for a call, but no longer than it lives: nobody resets the connections of a node that is gone."""
        loop = asyncio.get_running_loop()
        asking = asyncio.ensure_future(call)
        dying = loop.create_task(self._died.wait())
        try:
            await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and self._death is not None and self._destroying is None:
                # What the agent sent before it died may still be on its way.
                await asyncio.wait({asking}, timeout=_VERDICT_SECONDS / 10)
            if asking.done():
                return asking.result()
            raise AgentLost(f"the {self._what} ended")
        finally:
            dying.cancel()
            asking.cancel()
            await asyncio.wait({asking, dying})
            if not asking.cancelled():
                asking.exception()  # was raised above, or the pod's end says more

    async def _find_cause(self, error: Exception) -> None:
        """Wait a moment until it is said why the agent is gone; without a word it is our fault."""
        self._refuse_if_destroyed()
        if self._death is not None:
            return
        try:
            async with asyncio.timeout(_VERDICT_SECONDS):
                await self._died.wait()
        except TimeoutError:
            self.see(await self._look())
        self._refuse_if_destroyed()
        if self._death is None:
            text = f"its agent is gone though the {self._what} seems alive: {error}"
            self.see(Verdict(state=State.LOST, text=text))

    def _refuse_if_destroyed(self) -> None:
        if self._destroying is not None:
            raise BoxLost(f"sandbox {self.sandbox_id} was destroyed")

    def _break(self, text: str) -> None:
        self._death = Verdict(state=State.BROKEN, text=text)
        self._died.set()

    def _after_death(self, output: "_Output", begun: float, *, under_way: bool) -> ExecOutcome:
        assert self._death is not None
        if self._death.state not in BY_WORKLOAD:
            raise BoxLost(f"{self._what} {self.name}: {self._death.text}")
        out_of_memory = self._death.state is State.OOM_KILLED and under_way
        termination = (
            Termination.OOM_KILLED if out_of_memory else Termination.SANDBOX_BROKEN_BY_WORKLOAD
        )
        return output.cut_off(termination, time.monotonic() - begun)


class _Output:
    """Puts a command's output together from frames."""

    def __init__(self, command: Command, emit: Callable[[Chunk], None] | None) -> None:
        self._head_cap = command.max_output_bytes - command.max_output_bytes // 2
        self._emit = emit
        self._heads = {protocol.STDOUT: bytearray(), protocol.STDERR: bytearray()}
        self._tails = {protocol.STDOUT: b"", protocol.STDERR: b""}

    def add(self, kind: int, data: bytes) -> None:
        """Take in a frame."""
        if kind in (protocol.STDOUT_TAIL, protocol.STDERR_TAIL):
            is_out = kind == protocol.STDOUT_TAIL
            self._tails[protocol.STDOUT if is_out else protocol.STDERR] = data
        elif kind in self._heads:
            if self._emit is None:
                self._heads[kind] += data
                return
            stream = Stream.STDOUT if kind == protocol.STDOUT else Stream.STDERR
            self._emit(Chunk(stream=stream, data=data))

    def outcome(self, end: dict[str, Any]) -> ExecOutcome:
        """Return how it went, as the agent says."""
        cut = {protocol.STDOUT: end["stdout_truncated"], protocol.STDERR: end["stderr_truncated"]}
        return ExecOutcome(
            termination=Termination(end["termination"]),
            exit_code=end["exit_code"],
            signal=end["signal"],
            stdout=self._content(protocol.STDOUT, cut[protocol.STDOUT]),
            stderr=self._content(protocol.STDERR, cut[protocol.STDERR]),
            stdout_truncated=cut[protocol.STDOUT],
            stderr_truncated=cut[protocol.STDERR],
            output_incomplete=end["output_incomplete"],
            duration_seconds=end["duration_seconds"],
        )

    def cut_off(self, termination: Termination, seconds: float) -> ExecOutcome:
        """Return what came until it died."""
        return ExecOutcome(
            termination=termination,
            stdout=bytes(self._heads[protocol.STDOUT]),
            stderr=bytes(self._heads[protocol.STDERR]),
            output_incomplete=True,
            duration_seconds=seconds,
        )

    def _content(self, kind: int, truncated: bool) -> bytes:
        if self._emit is not None:
            return b""
        head = bytes(self._heads[kind])
        return head[: self._head_cap] + self._tails[kind] if truncated else head


def _entry(found: dict[str, Any]) -> FileEntry:
    return FileEntry(
        name=found["name"],
        kind=FileKind(found["kind"]),
        size_bytes=found["size_bytes"],
        mode=found["mode"],
        modify_time=found["modify_time"],
        link_target=found["link_target"],
    )
