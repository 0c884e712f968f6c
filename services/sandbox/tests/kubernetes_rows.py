"""What it takes to put the Kubernetes backend under the shared tests: see `backends_under_test.py`."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from fake_kubernetes import container
from fake_kubernetes.cluster import FakeCluster, running_cluster

from sandbox.backends.kubernetes.backend import KubernetesBackend
from sandbox.backends.kubernetes.options import KubernetesOptions

VECTORS = frozenset({"02b", "05", "06", "06b", "07", "07b", "09", "10"})
"""Not the rows of what a node's runtime and network do, of which the tests have none: control groups (01, 01b, 03, 04*,
16), seccomp (12, 12b), the network (11); nor those of a root that commands can write to (02, 08, 12c), where a pod's
belongs to root. `kubernetes_backend/` has what holds instead."""

_MANAGER = """
import asyncio, random, sys
from pathlib import Path
from sandbox.backends.kubernetes.backend import KubernetesBackend
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.types import BoxSpec

async def main():
    folder, kubeconfig, count, now = sys.argv[1:]
    options = KubernetesOptions(kubeconfig=kubeconfig, check_network=False)
    backend = KubernetesBackend(
        Path(folder), options, rng=random.Random(1), clock=lambda: float(now))
    await backend.start()
    specs = [BoxSpec(sandbox_id=f"sbx_dead_{number:027x}") for number in range(int(count))]
    await asyncio.gather(*(backend.create(spec, print) for spec in specs))
    print("made", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

_CLUSTERS: "WeakKeyDictionary[KubernetesBackend, FakeCluster]" = WeakKeyDictionary()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[KubernetesBackend]:
    """Give a backend over a cluster of its own."""
    problem = container.why_not()
    if problem:
        pytest.skip(f"no containers on this machine: {problem}")
    async with running_cluster(folder) as cluster:
        cluster.api.on_deleted = cluster.kubelet.gone
        options = KubernetesOptions(
            kubeconfig=cluster.kubeconfig, check_network=False, creates_per_second=200.0
        )
        backend = KubernetesBackend(folder / "state", options, rng=random.Random(3))
        _CLUSTERS[backend] = cluster
        yield backend


async def lose(backend: Any, box: Any) -> None:
    """Have a pod fail as when its agent is killed by the node."""
    await _CLUSTERS[backend].kubelet.fail(box.name, 137)


def census(backend: Any, folder: Path) -> frozenset[str]:
    """List pods and the processes of their containers."""
    cluster = _CLUSTERS[backend]
    found = {f"pod {pod['metadata']['name']}" for pod in cluster.pods()}
    for name in os.listdir("/tmp"):
        if name.startswith("hone-pod-") and os.path.isdir(f"/tmp/{name}"):
            found.add(f"container {name}")
    return frozenset(found)


async def leave_remains(backend: Any, folder: Path, count: int) -> None:
    """Have a manager of the same folder make sandboxes, and kill it."""
    await leave(_CLUSTERS[backend], folder / "state", count, time.time())


async def leave(cluster: FakeCluster, folder: Path, count: int, now: float) -> None:
    """Have a manager of a folder make sandboxes, and kill it."""
    arguments = [str(folder), str(cluster.kubeconfig), str(count), str(now)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _MANAGER,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert line == b"made\n"
