"""Bubblewrap with the same limits, to compare with: the same control groups, entered the same way, sized disks."""

import asyncio
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandbox.backends.local.cgroups import BoxCgroup, Cgroups, find_tree
from support.embedded import LIMITS

_ROOT_LINKS = ("bin", "sbin", "lib", "lib64")
_FIRST = "true && echo ready && exec sleep 3600"
"""What runs in it: the first command, then something that keeps it alive as a sandbox between commands is."""


class Bubblewrap:
    """Makes sandboxes with bwrap, bounded as ours are."""

    def __init__(self, groups: Cgroups) -> None:
        """Makes them in these groups."""
        self._groups = groups
        self._turns = asyncio.Semaphore(4 * (os.cpu_count() or 1))
        self._numbers = itertools.count()

    async def create(self) -> "Wrapped":
        """Make one; its first command has run."""
        async with self._turns:
            name = f"bwrap_{next(self._numbers):08d}"
            group = await asyncio.to_thread(self._groups.create, name, LIMITS)
            join = " ".join(f"&& echo 0 >{path}" for path in group.join_paths())
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                f'true {join} && exec "$@"',
                "sh",
                *_command(),
                stdout=asyncio.subprocess.PIPE,
                stdin=asyncio.subprocess.DEVNULL,
            )
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("bwrap does not start here")
            return Wrapped(process, group)


class Wrapped:
    """One sandbox of bwrap."""

    def __init__(self, process: asyncio.subprocess.Process, group: BoxCgroup) -> None:
        """Keeps what ends it."""
        self._process = process
        self._group = group

    async def true(self) -> None:
        """Do nothing: the command ran with the start."""

    async def destroy(self) -> None:
        """Kill it and remove its groups."""
        self._process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._group.kill_all)
        await self._process.wait()
        await asyncio.to_thread(self._group.remove)


def _command() -> list[str]:
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--hostname", "sandbox", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
    command += ["--size", str(LIMITS.disk_bytes), "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
    for name in _ROOT_LINKS:
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(LIMITS.shm_bytes)]
    command += ["--tmpfs", "/dev/shm", "--dir", "/tmp", "--dir", "/work", "--chdir", "/work"]
    return [*command, "--cap-drop", "ALL", "--", "/bin/sh", "-c", _FIRST]


@asynccontextmanager
async def running_bubblewrap() -> AsyncIterator[Bubblewrap | None]:
    """Give the way to make them, or None where bwrap is not installed."""
    if shutil.which("bwrap") is None:
        yield None
        return
    groups = Cgroups(find_tree(), f"bench-bwrap.{os.getpid()}")
    try:
        yield Bubblewrap(groups)
    finally:
        await asyncio.to_thread(groups.close)
