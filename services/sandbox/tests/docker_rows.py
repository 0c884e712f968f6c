"""What it takes to put the Docker backend under the shared tests: see `backends_under_test.py`."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker_daemon
import pytest

from sandbox.backends.docker.backend import DockerBackend
from sandbox.settings import DockerOptions

VECTORS = frozenset({"01", "02b", "03", "04", "04b", "04c", "05", "06", "06b", "07", "07b", "09"})
VECTORS |= {"10", "11", "16"}
"""Not the rows of a root that can be written to (02, 08, 12c) and of namespaces and calls that the engine's own profile
answers in other ways (12, 12b), nor those that need the kernel's count of refused forks (01b)."""

GVISOR_VECTORS = frozenset({"02b", "05", "06b", "07", "10", "11"})
"""Not those that count on a limit of processes or of memory: gVisor's own are the host's, for all of a sandbox at once,
and a sandbox that meets them ends. Nor the FIFO of 09, which is in gVisor alone: from outside nothing is there."""

_MANAGER = """
import asyncio, sys
from pathlib import Path
from sandbox.backends.docker.backend import DockerBackend
from sandbox.rootfs import DEFAULT_ENV
from sandbox.settings import DockerOptions
from sandbox.types import BoxSpec, Command

async def main():
    host, image, folder, count = sys.argv[1:]
    backend = DockerBackend(Path(folder), DockerOptions(host=host, image=image))
    await backend.start()
    ids = [f"sbx_left_{number:027x}" for number in range(int(count))]
    boxes = await asyncio.gather(
        *(backend.create(BoxSpec(sandbox_id=one), lambda _: None) for one in ids))
    command = Command(exec_id="x", argv=("sh", "-c", "sleep 783 >/dev/null 2>&1 &"))
    await asyncio.gather(*(box.run(command, DEFAULT_ENV, None) for box in boxes))
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[DockerBackend]:
    """Give a backend over the tests' daemon."""
    daemon = await asyncio.to_thread(docker_daemon.daemon)
    yield DockerBackend(folder, options(daemon))


@asynccontextmanager
async def opened_gvisor(folder: Path) -> AsyncIterator[DockerBackend]:
    """Give a backend over the tests' daemon whose containers run in gVisor."""
    if shutil.which("runsc") is None:
        pytest.skip("not installed: runsc (Debian: runsc)")
    daemon = await asyncio.to_thread(docker_daemon.daemon)
    yield DockerBackend(folder, options(daemon, runtime="runsc", runtime_processes=512))


def options(daemon: docker_daemon.Daemon, **changes: Any) -> DockerOptions:
    """Return the backend's options for the tests' daemon."""
    return DockerOptions(host=daemon.host, image=docker_daemon.IMAGE, **changes)


async def lose(backend: Any, box: Any) -> None:
    """Kill a container from outside."""
    with contextlib.closing(docker_daemon.daemon().client()) as client:
        await asyncio.to_thread(client.kill, box.container)


def census(backend: Any, folder: Path) -> frozenset[str]:
    """List containers, volumes, and control groups of the daemon."""
    daemon = docker_daemon.daemon()
    with contextlib.closing(daemon.client()) as client:
        found = {f"container {one['Names'][0]}" for one in client.containers(all=True)}
        found |= {f"volume {one['Name']}" for one in client.volumes()["Volumes"] or []}
    for parent in Path("/sys/fs/cgroup").glob(f"*/{daemon.folder.name}"):
        found |= {f"group {child.name}" for child in parent.iterdir() if child.is_dir()}
    return frozenset(found)


async def leave_remains(backend: Any, folder: Path, count: int) -> None:
    """Have a manager of the same folder make sandboxes, and kill it."""
    daemon = docker_daemon.daemon()
    arguments = [daemon.host, docker_daemon.IMAGE, str(folder), str(count)]
    with subprocess.Popen(
        [sys.executable, "-c", _MANAGER, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        said = await asyncio.to_thread(process.stdout.readline)
        os.kill(process.pid, signal.SIGKILL)
    assert said == b"made\n"
