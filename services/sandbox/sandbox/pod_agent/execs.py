"""All commands of one agent: each by its exec_id, each, where that is wanted, with a group of its own."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandbox.pod_agent import processes
from sandbox.pod_agent.counters import Counters
from sandbox.pod_agent.exec import Exec, ExecRequest
from sandbox.pod_agent.reaper import Reaper
from sandbox.pod_agent.supervise import Identity


class Execs:
    """All commands of the pod."""

    def __init__(
        self, identity: Identity, reaper: Reaper, counters: Counters, groups: range = range(0)
    ) -> None:
        """Nothing runs yet; with `groups`, each command runs with one of its own.

        That marks what a command started where the kernel has no subreapers (gVisor). It takes an agent that may
        change groups, and commands that may not.
        """
        self._identity = identity
        self._groups = itertools.cycle(groups)
        self._is_marking = bool(groups)
        self._reaper = reaper
        self._counters = counters
        self._running: set[Exec] = set()

    async def run(
        self, request: ExecRequest, send: Callable[[bytes], None], gone: "asyncio.Future[None]"
    ) -> bytes:
        """Run a command; when `gone` is set first, its caller is, and it is killed."""
        identity = self._identity
        if self._is_marking:
            identity = replace(identity, gid=next(self._groups), is_mark=True)
        execution = Exec(request, identity, self._reaper, self._counters, self._strays, send)
        self._running.add(execution)
        try:
            task = asyncio.get_running_loop().create_task(execution.run())
            either: set[asyncio.Future[Any]] = {task, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await execution.abandon()
            return await task
        finally:
            self._running.discard(execution)

    async def kill(self, exec_id: str) -> None:
        """End a running command with all it started; nothing happens if it is not running."""
        chosen = [each for each in self._running if each.request.exec_id == exec_id]
        with contextlib.suppress(Exception):
            await asyncio.gather(*(each.abandon() for each in chosen))

    def _strays(self) -> list[int]:
        """List the agent's children that it did not fork itself: orphans that no supervisor holds any more."""
        known = self._reaper.own | {each.command for each in self._running}
        own = os.getpid()
        return [
            process.pid
            for process in processes.read_table().rows.values()
            if process.parent == own and process.pid not in known
        ]
