"""What it takes to put the backend runsc under the shared tests: see `backends_under_test.py`."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.backends.runsc.backend import RunscBackend
from sandbox.settings import RunscOptions

VECTORS = frozenset({"02b", "05", "06", "06b", "07b", "09", "10", "11", "16"})
"""Not those of a root that can be written to (02, 08, 12c), which is read-only here; of a limit of processes or memory
that the sandbox outlives (01, 01b, 04*), where `test_runsc.py` has what holds instead; of inodes (03), which gVisor
does not count; of a command that stops itself while a child leaves its session (07), which gVisor then wakes; and of
namespaces and calls of Linux that gVisor answers in its own way (12, 12b)."""

_MANAGER = """
import asyncio, sys
from pathlib import Path
from sandbox.backends.runsc.backend import RunscBackend
from sandbox.rootfs import DEFAULT_ENV
from sandbox.settings import RunscOptions
from sandbox.types import BoxSpec, Command

async def main():
    folder, count = sys.argv[1:]
    backend = RunscBackend(Path(folder), RunscOptions())
    await backend.start()
    ids = [f"sbx_left_{number:027x}" for number in range(int(count))]
    boxes = await asyncio.gather(
        *(backend.create(BoxSpec(sandbox_id=one), lambda _: None) for one in ids))
    command = Command(exec_id="x", argv=("sh", "-c", "sleep 784 >/dev/null 2>&1 &"))
    await asyncio.gather(*(box.run(command, DEFAULT_ENV, None) for box in boxes))
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def need_runsc() -> None:
    """Skip where there is nothing to test with."""
    if shutil.which("runsc") is None:
        pytest.skip("not installed: runsc (Debian: runsc)")
    if os.geteuid() != 0:
        pytest.skip("gVisor without a daemon needs root")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[RunscBackend]:
    """Give a backend over this machine's own gVisor."""
    need_runsc()
    yield RunscBackend(folder, RunscOptions())


def kernels_of(sandbox_id: str) -> list[int]:
    """Return the processes of gVisor that are the kernel of a sandbox, found by their command lines."""
    return [pid for pid, words in _runtimes() if "boot" in words and sandbox_id in words]


async def lose(backend: Any, box: Any) -> None:
    """Kill a sandbox's kernel from outside."""
    for pid in kernels_of(box.sandbox_id):
        os.kill(pid, signal.SIGKILL)


def census(backend: Any, folder: Path) -> frozenset[str]:
    """List gVisor's processes, folders of sandboxes, mounts and control groups."""
    from backends_under_test import group_folders

    found = {f"process {pid}" for pid, words in _runtimes() if str(folder) in " ".join(words)}
    boxes = folder / "runsc/boxes"
    found |= {f"folder {child.name}" for child in boxes.iterdir()} if boxes.is_dir() else set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(folder) in line:
            found.add(f"mount {line.split()[4]}")
    return frozenset(found | {f"group {path}" for path in group_folders(folder)})


async def leave_remains(backend: Any, folder: Path, count: int) -> None:
    """Have a manager of the same folder make sandboxes, and kill it."""
    with subprocess.Popen(
        [sys.executable, "-c", _MANAGER, str(folder), str(count)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        said = await asyncio.to_thread(process.stdout.readline)
        os.kill(process.pid, signal.SIGKILL)
    assert said == b"made\n"


def _runtimes() -> list[tuple[int, list[str]]]:
    """Return each process of gVisor's own with its command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit():
                continue
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "runsc" in words[0]:
            found.append((int(name), words))
    return found
