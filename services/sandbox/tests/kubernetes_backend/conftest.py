"""Fixtures: a running fake cluster, backends over it, boxes with the calls that tests make."""

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_kubernetes import container
from fake_kubernetes.cluster import FakeCluster, running_cluster

from sandbox.backends.agent_box import AgentBox
from sandbox.backends.kubernetes.backend import KubernetesBackend
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import (
    MIB,
    BoxSpec,
    Chunk,
    Command,
    ExecOutcome,
    Limits,
    Owner,
    Purpose,
    Template,
)

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=16 * MIB, shm_bytes=8 * MIB)


class Clock:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Shell:
    """A box with the calls that tests make of it."""

    box: AgentBox
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(self, *argv: str, **changes: object) -> ExecOutcome:
        emit = changes.pop("emit", None)
        fields: dict[str, object] = {"exec_id": f"e{next(self.numbers)}", "argv": argv}
        return await self.box.run(Command(**(fields | changes)), DEFAULT_ENV, emit)  # type: ignore[arg-type]

    async def sh(self, script: str, **changes: object) -> ExecOutcome:
        return await self.run("sh", "-c", script, **changes)

    async def python(self, script: str, **changes: object) -> ExecOutcome:
        return await self.run("python3", "-c", script, **changes)


@dataclass
class Rig:
    """A cluster and backends over it."""

    cluster: FakeCluster
    folder: Path
    clock: Clock
    lost: list[str] = field(default_factory=list)
    backends: list[KubernetesBackend] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def backend(self, instance: str = "one", **changes: object) -> KubernetesBackend:
        """Return a backend that is not started; the same instance is the same data folder."""
        fields: dict[str, object] = {
            "kubeconfig": self.cluster.kubeconfig,
            "check_network": False,
            "create_seconds": 15.0,
            "unschedulable_seconds": 0.1,
            "creates_per_second": 1000.0,
            "request_seconds": 5.0,
        }
        made = KubernetesBackend(
            self.folder / instance,
            KubernetesOptions(**(fields | changes)),  # type: ignore[arg-type]
            rng=random.Random(7),
            clock=self.clock,
        )
        self.backends.append(made)
        return made

    def spec(self, **changes: object) -> BoxSpec:
        number = next(self.numbers)
        owner = Owner(rollout_id=f"rollout-{number}", run_id="run-1", purpose=Purpose.AGENT)
        fields: dict[str, object] = {
            "sandbox_id": f"sbx_{number:032x}",
            "limits": LIMITS,
            "template": Template(limits=LIMITS),
            "owner": owner,
        }
        return BoxSpec(**(fields | changes))  # type: ignore[arg-type]

    async def make(self, backend: KubernetesBackend, **changes: object) -> Shell:
        return Shell(await backend.create(self.spec(**changes), self.lost.append))


@pytest.fixture(scope="session")
def containers() -> None:
    """Skip where this machine cannot run a pod's container."""
    problem = container.why_not()
    if problem:
        pytest.skip(f"no containers on this machine: {problem}")


@pytest.fixture
async def rig(tmp_path: Path, containers: None) -> AsyncIterator[Rig]:
    async with running_cluster(tmp_path) as cluster:
        made = Rig(cluster, tmp_path, Clock())
        yield made
        cluster.api.stalled.set()
        cluster.api.faults.clear()
        for backend in made.backends:
            await backend.close()


@pytest.fixture
async def backend(rig: Rig) -> KubernetesBackend:
    """A started backend."""
    made = rig.backend()
    await made.start()
    return made


@pytest.fixture
async def shell(rig: Rig, backend: KubernetesBackend) -> Shell:
    """One sandbox."""
    return await rig.make(backend)


@pytest.fixture
def collect() -> Callable[[list[Chunk]], Callable[[Chunk], None]]:
    return lambda chunks: chunks.append


Made = Callable[..., Awaitable[Shell]]
