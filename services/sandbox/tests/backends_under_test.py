"""Every backend that the contract suite and the hostile cases run over, and what it takes to run it here.

To put a backend under test add a row to `UNDER_TEST`: `test_contract.py` then runs whole on it, and `test_vectors.py`
runs the hostile cases that the row names. What only one row needs is imported in its `open`.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import docker_rows
import hostile_cases
import kubernetes_rows
import pytest
import remote_rows
import runsc_rows

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.cgroups import CgroupsUnavailable, find_tree
from sandbox.backends.protocol import Backend, Box
from sandbox.types import Feature

Census = frozenset[str]
"""What exists of sandboxes outside the manager's memory, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend under test."""

    open: Callable[[Path], AbstractAsyncContextManager[Backend]]
    """Gives one that is not started, over a folder that may have been used before; `pytest.skip` says why it cannot
    run here. What it needs around it (a fake server) lives as long as the context."""
    features: frozenset[Feature] = frozenset(Feature)
    """What it must offer; `start` has to say the same."""
    runs_programs: bool = True
    """False for a fake whose commands a test scripts: then only birth, death and counting are tested."""
    survivors: bool = True
    """Whether what a command leaves running lives on unless it is to die."""
    sees_processes: bool = False
    """Whether the sandboxes' processes are processes of this machine."""
    vectors: frozenset[str] = frozenset()
    """Names of the cases in `hostile_cases.CASES` that it is put through."""
    lose: Callable[[Backend, Box], Awaitable[None]] | None = None
    """Makes a sandbox die as if what held it had failed."""
    census: Callable[[Backend, Path], Census] | None = None
    """Lists what exists, by other means than the backend's own table."""
    leave_remains: Callable[[Backend, Path, int], Awaitable[None]] | None = None
    """Leaves that many sandboxes of a manager that was killed; called before `start`."""
    is_slow: bool = False
    """Whether the contract takes so long on it that it waits for the slow tests."""


def _no_cgroups() -> NoReturn:
    raise CgroupsUnavailable("none in this test")


def _local(*, control_groups: bool) -> Callable[[Path], AbstractAsyncContextManager[Backend]]:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Backend]:
        yield LocalBackend(folder, find_cgroups=find_tree if control_groups else _no_cgroups)

    return opened


async def _kill_keeper(backend: Backend, box: Box) -> None:
    os.kill(box.keeper_pid, signal.SIGKILL)  # type: ignore[attr-defined]


def _local_census(backend: Backend, folder: Path) -> Census:
    """List processes below the spawner or in namespaces of their own, mounts of the folder and control groups."""
    spawner = backend.spawner_pid  # type: ignore[attr-defined]
    found = {f"process {pid}" for pid in descendants(spawner)}
    own = os.readlink("/proc/self/ns/pid")
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") != own:
                found.add(f"process {pid}")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(folder) in line:
            found.add(f"mount {line.split()[4]}")
    return frozenset(found | {f"group {path}" for path in group_folders(folder)})


def children_of(parent: int) -> list[int]:
    """Return the processes that one has started itself."""
    return _by_parent().get(parent, [])


def descendants(root: int) -> set[int]:
    """Return the processes below one."""
    children = _by_parent()
    found: set[int] = set()
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found


def _by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(name))
    return children


def group_folders(folder: Path) -> list[Path]:
    """Return the control groups of sandboxes whose manager works, or worked, with this folder."""
    instance_file = folder / "instance"
    if not instance_file.exists():
        return []
    instance = instance_file.read_text().strip()
    found = []
    for top, names, _ in os.walk("/sys/fs/cgroup"):
        here = Path(top)
        if here.name == "hone-sandbox":
            for name in names:
                if name.startswith(f"{instance}."):
                    with contextlib.suppress(FileNotFoundError):
                        found += [child for child in (here / name).iterdir() if child.is_dir()]
            names.clear()
    return found


_MANAGER = """
import asyncio, json, site, sys
from pathlib import Path
for path in [one for one in sys.path if one.endswith("site-packages")]:
    site.addsitedir(path)  # where this Python is not the one that they belong to
from backends_under_test import UNDER_TEST
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import BoxSpec, Command

async def main():
    name, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    async with UNDER_TEST[name].open(folder) as backend:
        await backend.start()
        ids = [f"sbx_{number:032x}" for number in range(count)]
        boxes = await asyncio.gather(
            *(backend.create(BoxSpec(sandbox_id=one), lambda _: None) for one in ids))
        command = Command(exec_id="x", argv=("sh", "-c", "sleep 782 >/dev/null 2>&1 &"))
        await asyncio.gather(*(box.run(command, DEFAULT_ENV, None) for box in boxes))
        print(json.dumps({"spawner": backend.spawner_pid}), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def _killed_manager(name: str) -> Callable[[Backend, Path, int], Awaitable[None]]:
    async def leave(backend: Backend, folder: Path, count: int) -> None:
        path = os.pathsep.join((str(Path(__file__).parent), *sys.path))
        with subprocess.Popen(
            [sys.executable, "-c", _MANAGER, name, str(folder), str(count)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        ) as process:
            assert process.stdout is not None
            spawner = json.loads(await asyncio.to_thread(process.stdout.readline))["spawner"]
            orphans = descendants(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            os.kill(spawner, signal.SIGKILL)
        await asyncio.to_thread(reap_orphans, orphans)

    return leave


def reap_orphans(orphans: set[int]) -> None:
    """Reap what comes to this process, which is the manager of other tests, instead of to the machine's init."""
    end = time.monotonic() + 10.0
    while orphans and time.monotonic() < end:
        for pid in list(orphans):
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # it went to the machine's init, which may take its time
                done = 0 if _lives(pid) else pid
            if done:
                orphans.discard(pid)
        time.sleep(0.01)  # waitpid of several processes cannot wait for the first of them


def _lives(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def _local_row(name: str, *, control_groups: bool) -> Subject:
    return Subject(
        is_slow=not control_groups,
        open=_local(control_groups=control_groups),
        sees_processes=True,
        vectors=frozenset(hostile_cases.CASES),
        lose=_kill_keeper,
        census=_local_census,
        leave_remains=_killed_manager(name),
    )


@asynccontextmanager
async def _state(folder: Path) -> AsyncIterator[Backend]:
    from sandbox.backends.state.backend import StateBackend
    from sandbox.settings import StateOptions

    yield StateBackend(folder, StateOptions())


@asynccontextmanager
async def _optimistic(folder: Path) -> AsyncIterator[Backend]:
    from sandbox.backends.optimistic.backend import OptimisticBackend
    from sandbox.settings import OptimisticOptions

    # Alone in its environment each keeps the whole contract; what sharing does is tested in test_optimistic.py.
    yield OptimisticBackend(LocalBackend(folder), folder, OptimisticOptions(share=1))


async def _kill_room(backend: Backend, box: Box) -> None:
    await _kill_keeper(backend, box.room.box)  # type: ignore[attr-defined]


UNDER_TEST: dict[str, Subject] = {
    "local": _local_row("local", control_groups=True),
    "local-rlimits": _local_row("local-rlimits", control_groups=False),
    # Its one program is sql: what that does is tested in test_state.py.
    "state": Subject(
        open=_state,
        features=frozenset({Feature.SNAPSHOTS, Feature.WARM_POOL}),
        runs_programs=False,
    ),
    "optimistic": Subject(
        is_slow=True,
        open=_optimistic,
        features=frozenset({Feature.FILES, Feature.ARCHIVES}),
        survivors=False,
        sees_processes=True,
        lose=_kill_room,
    ),
    "remote": Subject(
        is_slow=True,
        open=remote_rows.opened,
        vectors=remote_rows.VECTORS,
        lose=remote_rows.lose,
        census=remote_rows.census,
        leave_remains=remote_rows.leave_remains,
    ),
    "docker": Subject(
        is_slow=True,
        open=docker_rows.opened,
        sees_processes=True,
        vectors=docker_rows.VECTORS,
        lose=docker_rows.lose,
        census=docker_rows.census,
        leave_remains=docker_rows.leave_remains,
    ),
    "docker-gvisor": Subject(
        is_slow=True,
        open=docker_rows.opened_gvisor,
        vectors=docker_rows.GVISOR_VECTORS,
        lose=docker_rows.lose,
        census=docker_rows.census,
    ),
    "kubernetes": Subject(
        is_slow=True,
        open=kubernetes_rows.opened,
        sees_processes=True,
        vectors=kubernetes_rows.VECTORS,
        lose=kubernetes_rows.lose,
        census=kubernetes_rows.census,
        leave_remains=kubernetes_rows.leave_remains,
    ),
    "runsc": Subject(
        is_slow=True,
        open=runsc_rows.opened,
        vectors=runsc_rows.VECTORS,
        lose=runsc_rows.lose,
        census=runsc_rows.census,
        leave_remains=runsc_rows.leave_remains,
    ),
}


def rows() -> list[Any]:
    """Return the names of the rows as a test's parameters, those that take long marked."""
    return [
        pytest.param(name, marks=pytest.mark.slow if subject.is_slow else ())
        for name, subject in UNDER_TEST.items()
    ]
