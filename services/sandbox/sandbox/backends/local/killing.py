"""Ends everything that one command started, and nothing else of its sandbox.

A command's processes share a UTS namespace that they cannot leave; its inode number is their mark. Killing goes in
rounds over the sandbox's processes. Where new ones keep appearing (a fork bomb) forks in the whole sandbox are refused
until the rounds come up empty.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator

from sandbox.backends.local.cgroups import BoxCgroup

KILL_SECONDS = 5.0
"""How long killing may take before the sandbox is given up."""

_ROUND_SECONDS = 0.001
_FRESH_ROUNDS = 4
"""Rounds that may find new processes before forks are refused."""


class TreeKiller:
    """Kills by mark in one sandbox."""

    def __init__(self, cgroup: BoxCgroup | None) -> None:
        """Looks for processes in the group, or everywhere if there is none."""
        self._cgroup = cgroup
        self._frozen = 0
        self.freezes = 0
        """How often forks were refused; with `frozen`, tells whether a refused fork was our own doing."""

    @property
    def frozen(self) -> bool:
        """Whether forks are being refused."""
        return self._frozen > 0

    def kill(self, mark: int, spare: frozenset[int]) -> bool:
        """Kill every process with this mark but `spare`; return whether none is left. Blocks: run it in a thread."""
        end = time.monotonic() + KILL_SECONDS
        seen: set[int] = set()
        fresh_rounds = 0
        with contextlib.ExitStack() as freeze:
            while time.monotonic() < end:
                found = self._round(mark, spare)
                if not found:
                    return True
                fresh_rounds += not found <= seen
                seen |= found
                if fresh_rounds == _FRESH_ROUNDS:
                    fresh_rounds += 1
                    freeze.enter_context(self._forks_refused())
                time.sleep(_ROUND_SECONDS)  # a killed process takes a moment to be gone
        return False

    def _round(self, mark: int, spare: frozenset[int]) -> set[int]:
        found = set()
        wanted = f"uts:[{mark}]"
        for pid in self._processes():
            if pid in spare:
                continue
            # The pidfd comes first: what is looked at and what is killed is then the same process.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                pidfd = os.pidfd_open(pid)
                try:
                    if os.readlink(f"/proc/{pid}/ns/uts") == wanted:
                        found.add(pid)
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        return found

    def _processes(self) -> list[int]:
        if self._cgroup is not None:
            return self._cgroup.process_ids()
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

    @contextlib.contextmanager
    def _forks_refused(self) -> Iterator[None]:
        if self._cgroup is None:
            yield
            return
        self._frozen += 1
        self.freezes += 1
        try:
            with self._cgroup.forks_refused():
                yield
        finally:
            self._frozen -= 1


async def has_ended(pidfd: int, own_pids: Iterable[int]) -> bool:
    """Wait until a process that was killed has ended, but not for ever; return whether it has.

    `own_pids` are reaped then: a dead spawner's keepers are this process's children.
    """
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await gone.wait()
    finally:
        loop.remove_reader(pidfd)
    for pid in own_pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return gone.is_set()


def remove_group(cgroup: BoxCgroup) -> bool:
    """Kill what is left in a sandbox's control group and remove it; return whether it is gone. Blocks."""
    return cgroup.kill_all() and cgroup.remove()
