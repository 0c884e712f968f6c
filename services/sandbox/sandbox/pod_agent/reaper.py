"""Collects every child that ends: supervisors, workers, and orphans that the pod's first process inherits."""

import asyncio
import contextlib
import os
import signal
from collections import OrderedDict

_REMEMBERED = 1024


class Reaper:
    """The only caller of wait in the agent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reaps from `start` on."""
        self._loop = loop
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._unclaimed: OrderedDict[int, int] = OrderedDict()
        self.own: set[int] = set()
        """Children that the agent forked and that have not ended."""

    def start(self) -> None:
        """Begin."""
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def forked(self, pid: int) -> "asyncio.Future[int]":
        """Note a child that the agent forked; return its future wait status."""
        self._unclaimed.pop(pid, None)  # of an earlier process with this number
        self.own.add(pid)
        return self.ended(pid)

    def ended(self, pid: int) -> "asyncio.Future[int]":
        """Return the future wait status of a process that is, or may become, this one's child."""
        future: asyncio.Future[int] = self._loop.create_future()
        status = self._unclaimed.pop(pid, None)
        if status is None:
            self._waiting[pid] = future
        else:
            self.own.discard(pid)
            future.set_result(status)
        return future

    def reap(self) -> None:
        """Collect all that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.own.discard(pid)
                waiting = self._waiting.pop(pid, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(status)
                    continue
                self._unclaimed[pid] = status
                while len(self._unclaimed) > _REMEMBERED:
                    self._unclaimed.popitem(last=False)
