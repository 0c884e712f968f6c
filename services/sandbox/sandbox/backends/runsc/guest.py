"""One running gVisor: its processes in the sandbox's control groups, the pipes to the agent in it, its end.

`runsc run` stays as the parent of what it starts and ends with it. All of them are born in the control groups, so that
killing the groups misses nothing, and a manager that died is cleared up after by group alone. The agent reads its end
of a pipe that the manager holds: with the manager it ends, and the sandbox with it.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandbox.backends.local.cgroups import BoxCgroup
from sandbox.backends.verdict import State, Verdict
from sandbox.pod_agent.mux import Broken, Mux

log = logging.getLogger(__name__)

_ENTER = 'n=$1; shift; while [ $n -gt 0 ]; do echo 0 >"$1" || exit 1; shift; n=$((n - 1)); done; exec "$@"'
"""A shell of one thread enters the groups and becomes the runtime."""

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_PARENT_SECONDS = 2.0
_LOG_BYTES = 2000
_FRAME_BYTES = 1024 * 1024


class Guest:
    """Is made once, runs once."""

    def __init__(
        self, sandbox_id: str, folder: Path, group: BoxCgroup, on_end: Callable[[Verdict], None]
    ) -> None:
        """The groups exist; `folder` is made; `on_end` is told of an end that nobody asked for."""
        self._sandbox_id = sandbox_id
        self._folder = folder
        self._group = group
        self._on_end = on_end
        self._mux = Mux()
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._ending = False

    async def start(self, runtime: Sequence[str], config: dict[str, Any]) -> None:
        """Start it.

        Args:
            runtime: The runtime's program and its options for all.
            config: Of the bundle.

        Raises:
            OSError: the program cannot be run.
        """
        self._folder.mkdir(parents=True)
        self._folder.chmod(0o700)
        (self._folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        joins = self._group.join_paths()
        words = ["/bin/sh", "-c", _ENTER, "sh", str(len(joins)), *joins, *runtime]
        words += ["--root", str(self._folder / "state"), "run"]
        words += ["--bundle", str(self._folder), self._sandbox_id]
        their_input, our_output = os.pipe2(os.O_CLOEXEC)
        our_input, their_output = os.pipe2(os.O_CLOEXEC)
        try:
            # For root alone: what the agent has open can be opened again by way of /proc.
            with open(self._folder / "log", "ab", opener=_private) as errors:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=their_input,
                    stdout=their_output,
                    stderr=errors,
                    env=_ENVIRONMENT,
                    start_new_session=True,
                )
        except BaseException:
            os.close(our_output)
            os.close(our_input)
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        await self._connect(our_input, our_output)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the agent; see `agent_client.Connect`."""
        return self._mux.open()

    def verdict(self) -> Verdict:
        """Say why it is dead, given that it is."""
        if self.ran_out_of_memory():
            return Verdict(state=State.OOM_KILLED, text="its memory ran out")
        if self._group.fork_refused_count():
            text = "it used up its processes, and gVisor cannot do without"
            return Verdict(state=State.BROKEN, text=text)
        code = self._process.returncode if self._process is not None else None
        how = "does not answer" if code is None else f"ended with {code}"
        return Verdict(state=State.LOST, text=f"gVisor {how}: {self.last_words()}")

    def ran_out_of_memory(self) -> bool:
        """Say whether the kernel killed something in it because it had used up its own memory."""
        return self._group.oom_kill_count() > 0 and self._group.limit_was_reached()

    def last_words(self) -> str:
        """Return the end of what the runtime and the agent wrote about errors."""
        try:
            text = (self._folder / "log").read_bytes()[-_LOG_BYTES:]
        except FileNotFoundError:
            return ""
        return text.decode(errors="replace").strip()

    async def remove(self) -> None:
        """End everything in it and remove what it had on this machine."""
        await self.kill()
        if not await asyncio.to_thread(self._group.remove):
            log.error("sandbox: a control group stays", extra={"id": self._sandbox_id})
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def kill(self) -> None:
        """End everything in it. Idempotent."""
        self._ending = True
        process = self._process
        if process is not None and process.returncode is None:
            for pid in self._group.process_ids():
                if pid != process.pid:  # that one collects the others
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PARENT_SECONDS):
                    await process.wait()
        if not await asyncio.to_thread(self._group.kill_all):
            log.error("sandbox: a process cannot be killed", extra={"id": self._sandbox_id})
        if process is not None:
            await process.wait()
        for transport in self._transports:
            transport.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, our_input: int, our_output: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_FRAME_BYTES)
        written = os.fdopen(our_output, "wb", buffering=0)
        read = os.fdopen(our_input, "rb", buffering=0)
        transport, _ = await loop.connect_write_pipe(lambda: self._mux, written)
        self._transports.append(transport)
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), read)
        self._transports.append(source)
        self._tasks = [loop.create_task(self._serve(reader)), loop.create_task(self._watch())]

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._mux.serve(reader)
        except Broken as error:
            log.error("sandbox: its agent breaks the rules", extra={"error": str(error)})

    async def _watch(self) -> None:
        assert self._process is not None
        await self._process.wait()
        if not self._ending:
            self._on_end(self.verdict())
            await asyncio.to_thread(self._group.kill_all)  # what it may have left behind


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
