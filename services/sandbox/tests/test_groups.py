"""Control groups on this machine: what a manager leaves elsewhere, and whose memory ran out."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.cgroups import BoxCgroup, CgroupsUnavailable, Tree, find_tree
from sandbox.backends.protocol import BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import MIB, BoxSpec, Command, Limits, Termination

MANAGER = """
import asyncio, sys
from pathlib import Path
from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.cgroups import Tree
from sandbox.types import BoxSpec

async def main():
    folders = dict(pair.split("=") for pair in sys.argv[3:])
    tree = Tree(version=int(sys.argv[2]), folders={n: Path(f) for n, f in folders.items()})
    backend = LocalBackend(Path(sys.argv[1]), find_cgroups=lambda: tree)
    await backend.start()
    await backend.create(BoxSpec(sandbox_id="sbx_elsewhere"), print)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""

HOG = ("python3", "-c", "hog = bytearray(%d); print(len(hog))")


@pytest.fixture
def elsewhere() -> Iterator[Tree]:
    """Groups of another place than this process's own, as another shell or unit has them."""
    try:
        own = find_tree()
        name = f"elsewhere-{uuid.uuid4().hex[:8]}"
        tree = replace(own, folders={c: folder / name for c, folder in own.folders.items()})
        for folder in dict.fromkeys(tree.folders.values()):
            folder.mkdir()
    except (CgroupsUnavailable, OSError) as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield tree
    for folder in dict.fromkeys(tree.folders.values()):
        if (folder / "hone-sandbox").exists():
            (folder / "hone-sandbox").rmdir()
        folder.rmdir()


@pytest.mark.fault
async def test_a_manager_killed_elsewhere_leaves_no_groups_once_its_folder_has_another(
    elsewhere, tmp_path
):
    pairs = [f"{name}={folder}" for name, folder in elsewhere.folders.items()]
    with subprocess.Popen(
        [sys.executable, "-c", MANAGER, str(tmp_path), str(elsewhere.version), *pairs],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    roots = [folder / "hone-sandbox" for folder in elsewhere.folders.values()]
    assert all(any(entry.is_dir() for entry in root.iterdir()) for root in roots)
    backend = LocalBackend(tmp_path)
    await backend.start()
    try:
        # Any manager of this host that works in the same place may have come first.
        assert await backend.reap(frozenset()) <= 1
        left = [entry for root in roots for entry in root.iterdir() if entry.is_dir()]
        assert left == []
    finally:
        await backend.close()
    assert not any(root.exists() for root in roots)


async def test_memory_that_the_machine_lacks_is_no_doing_of_the_workload(elsewhere, tmp_path):
    """The group above all sandboxes stands for the machine: it is full before the sandbox is."""
    memory = elsewhere.folders["memory"]
    name = "memory.limit_in_bytes" if elsewhere.version == 1 else "memory.max"
    (memory / name).write_text(str(256 * MIB))
    backend = LocalBackend(tmp_path, find_cgroups=lambda: elsewhere)
    await backend.start()
    try:
        limits = Limits(memory_bytes=512 * MIB)
        box = await backend.create(BoxSpec(sandbox_id="sbx_large", limits=limits), print)
        with pytest.raises(BoxLost, match="machine ran out of memory"):
            await box.run(_hog(400 * MIB), DEFAULT_ENV, None)
        survivor = await backend.create(BoxSpec(sandbox_id="sbx_survivor", limits=limits), print)
        hog = _hog(400 * MIB).argv[2]
        argv = ("sh", "-c", f"python3 -c '{hog}'; exit 3")  # an end of its own, but not its doing
        with pytest.raises(BoxLost, match="machine ran out of memory"):
            await survivor.run(Command(exec_id="survivor", argv=argv), DEFAULT_ENV, None)
        small = await backend.create(
            BoxSpec(sandbox_id="sbx_small", limits=replace(limits, memory_bytes=128 * MIB)), print
        )
        outcome = await small.run(_hog(200 * MIB), DEFAULT_ENV, None)
        assert outcome.termination is Termination.OOM_KILLED
        assert (await small.run(_hog(MIB), DEFAULT_ENV, None)).stdout == b"1048576\n"
    finally:
        await backend.close()


def test_forks_are_allowed_again_when_the_last_who_refused_them_is_done(tmp_path):
    limit = tmp_path / "pids.max"
    limit.write_text("257")
    group = BoxCgroup(1, {"pids": tmp_path})
    first, second = group.forks_refused(), group.forks_refused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert limit.read_text() == "0"
    second.__exit__(None, None, None)
    assert limit.read_text() == "257"


def _hog(num_bytes: int) -> Command:
    argv = (*HOG[:2], HOG[2] % num_bytes)
    return Command(exec_id=f"hog-{num_bytes}-{time.monotonic_ns()}", argv=argv)
