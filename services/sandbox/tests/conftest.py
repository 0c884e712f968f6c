"""Fixtures: a fleet over the real backend, a fleet over a scripted one, and what both tell."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import Meter

from sandbox.access import Gate
from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.protocol import Backend, BackendInfo, BoxLost
from sandbox.figures.measures import Measures
from sandbox.fleet.admission import Admission
from sandbox.fleet.entry import Created
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.memory import available_memory_bytes
from sandbox.fleet.plans import Plans
from sandbox.fleet.records import Records, SandboxRecord
from sandbox.fleet.turns import Turns
from sandbox.manager import SandboxManager
from sandbox.storage.snapshots import Snapshot, SnapshotStore
from sandbox.storage.spool import Spool
from sandbox.transfers import Transfers
from sandbox.types import (
    MIB,
    BoxFile,
    BoxKey,
    BoxSpec,
    Caller,
    Chunk,
    Command,
    CreateSpec,
    ExecOutcome,
    Feature,
    FileContent,
    FileEntry,
    Limits,
    Owner,
    Purpose,
    Role,
    SandboxInfo,
    Template,
    Termination,
)
from servicekit.errors import FailedPrecondition, Unavailable
from servicekit.metrics import silent_meter

SLOW_PLACES = (
    "kubernetes_backend",
    "remote",
    "test_docker.py",
    "test_local_files.py",
    "test_optimistic.py",
    "test_roots.py",
    "test_runsc.py",
    "test_vectors.py",
)
"""Tests that start a cluster, a service or an engine first, or work sandboxes hard: they wait for the slow ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in the slow places."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in SLOW_PLACES:
            item.add_marker(pytest.mark.slow)


class ToldEvents:
    """Keeps what was told; can be cut off, and be slow to take in that a sandbox was made."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, str]] = []
        self.reachable = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.being_told = 0

    async def created(self, info: SandboxInfo) -> None:
        self.being_told += 1
        await self.gate.wait()
        self.being_told -= 1
        self._check()
        self.log.append(("created", info.sandbox_id, ""))

    async def destroyed(self, record: SandboxRecord) -> None:
        self._check()
        self.log.append(("destroyed", record.sandbox_id, str(record.cause)))

    def causes(self, sandbox_id: str) -> list[str]:
        return [c for what, who, c in self.log if what == "destroyed" and who == sandbox_id]

    def _check(self) -> None:
        if not self.reachable:
            raise Unavailable("the log cannot be reached")


class ManualClock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class ScriptedBox:
    """A box that runs what the test scripts."""

    def __init__(self, sandbox_id: str, on_lost: Callable[[str], None]) -> None:
        self.sandbox_id = sandbox_id
        self.rootfs_digest = "sha256:0"
        self.on_lost = on_lost
        self.destroyed = False
        self.commands: list[Command] = []
        self.files: list[BoxFile] = []
        self.owners: list[Owner] = []
        self.entries: list[FileEntry] = []
        self.unpacked: list[tuple[str, bytes]] = []
        self.archive = b"archive"
        self.paths: list[Path] = []
        self.inside = asyncio.Event()
        self.spoilt = False
        self.is_polluted = False
        self.claiming = asyncio.Event()
        self.claiming.set()
        self.release = asyncio.Event()
        self.release.set()
        self.ending = asyncio.Event()
        self.ending.set()
        self._gone = asyncio.Event()

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        self.commands.append(command)
        waits = [asyncio.ensure_future(e.wait()) for e in (self.release, self._gone)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.destroyed:
            raise BoxLost("destroyed")
        return ExecOutcome(termination=Termination.EXITED, stdout=b"%d" % len(self.commands))

    async def claim(self, owner: Owner) -> None:
        self.owners.append(owner)
        await self.claiming.wait()
        if self.spoilt:
            raise Unavailable("somebody else has it")

    async def polluted(self) -> bool:
        return self.is_polluted

    async def kill(self, exec_id: str) -> None:
        self.release.set()

    async def write_file(self, file: BoxFile) -> None:
        if file.path == "/work/refused":
            raise Unavailable("the write failed")
        self.files.append(file)

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        return FileContent(content=b"", size_bytes=0)

    async def list_files(self, path: str) -> list[FileEntry]:
        return self.entries

    async def stat_file(self, path: str) -> FileEntry:
        return self.entries[0]

    async def unpack(self, folder: str, archive: Path) -> None:
        self.unpacked.append((folder, archive.read_bytes()))
        await self._held(archive)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        archive.write_bytes(self.archive[:max_bytes])
        await self._held(archive)

    async def snapshot(self, target: Path) -> None:
        target.write_bytes(self.archive)
        await self._held(target)

    async def _held(self, path: Path) -> None:
        """Stay inside a call about a file on the manager's disk until the test lets go."""
        self.paths.append(path)
        self.inside.set()
        await self.release.wait()
        if self.destroyed:
            raise BoxLost("destroyed")

    async def destroy(self) -> None:
        await self.ending.wait()
        self.destroyed = True
        self._gone.set()


class ScriptedBackend:
    """A backend whose failures the test scripts."""

    def __init__(self) -> None:
        self.boxes: dict[str, ScriptedBox] = {}
        self.features = frozenset(Feature)
        self.digest = "sha256:0"
        self.specs: list[BoxSpec] = []
        self.failures: list[Exception] = []
        self.reap_failures: list[Exception] = []
        self.reaped = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.dies_at_birth = False
        self.under_way = 0
        self.most_under_way = 0

    def lock(self) -> None:
        pass

    async def start(self) -> BackendInfo:
        return BackendInfo(backend="scripted", isolation="none", features=self.features)

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> ScriptedBox:
        self.specs.append(spec)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
            if self.failures:
                raise self.failures.pop(0)
        finally:
            self.under_way -= 1
        box = ScriptedBox(spec.sandbox_id, on_lost)
        box.rootfs_digest = self.digest
        self.boxes[spec.sandbox_id] = box
        if self.dies_at_birth:
            on_lost(spec.sandbox_id)
        return box

    async def reap(self, known: frozenset[str]) -> int:
        self.reaped += 1
        if self.reap_failures:
            raise self.reap_failures.pop(0)
        return 0

    def live_count(self) -> int:
        return sum(not box.destroyed for box in self.boxes.values())

    async def close(self) -> None:
        pass


@dataclass
class Suite:
    """A manager with everything a test wants to look at."""

    manager: SandboxManager
    transfers: Transfers
    snapshots: SnapshotStore
    fleet: Fleet
    records: Records
    events: ToldEvents
    backend: Backend
    clock: Callable[[], float]
    plans: Plans
    measures: Measures
    turns: Turns
    ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def rollout_id(self) -> str:
        return f"00000000-0000-7000-8000-{next(self.ids):012x}"

    def spec(self, rollout_id: str, **changes: object) -> CreateSpec:
        purpose = changes.pop("purpose", Purpose.AGENT)
        sequence = changes.pop("sequence", 0)
        assert isinstance(purpose, Purpose)
        assert isinstance(sequence, int)
        base: dict[str, object] = {
            "key": BoxKey(rollout_id=rollout_id, purpose=purpose, sequence=sequence),
            "run_id": "run-1",
            "limits": Limits(memory_bytes=256 * MIB, disk_bytes=64 * MIB, shm_bytes=16 * MIB),
            "lifetime_seconds": 3600.0,
            "idle_seconds": 60.0,
        }
        return CreateSpec(**(base | changes))  # type: ignore[arg-type]

    async def create(self, rollout_id: str, *, epoch: int = 1, **changes: object) -> Created:
        role = Role.GRADER if changes.get("purpose") is Purpose.GRADE else Role.AGENT
        caller = Caller(rollout_id=rollout_id, epoch=epoch, role=role)
        return await self.manager.create(caller, self.spec(rollout_id, **changes))


class UsableBox:
    """A real sandbox with the calls that tests make of it."""

    def __init__(self, suite: Suite, info: SandboxInfo) -> None:
        self.suite = suite
        self.info = info
        self.caller = Caller(rollout_id=info.key.rollout_id, epoch=1, role=Role.AGENT)
        self._numbers = itertools.count()

    async def run(self, *argv: str, **changes: object) -> ExecOutcome:
        fields: dict[str, object] = {"exec_id": f"e{next(self._numbers)}", "argv": argv}
        command = Command(**(fields | changes))  # type: ignore[arg-type]
        rollout_id = self.info.key.rollout_id
        return await self.suite.manager.run(self.caller, rollout_id, self.info.sandbox_id, command)

    async def sh(self, script: str, **changes: object) -> ExecOutcome:
        return await self.run("sh", "-c", script, **changes)

    async def python(self, script: str, **changes: object) -> ExecOutcome:
        return await self.run("python3", "-c", script, **changes)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        await self.suite.manager.write_file(
            self.caller,
            self.info.key.rollout_id,
            self.info.sandbox_id,
            BoxFile(path=path, content=content, mode=mode),
        )

    async def read(self, path: str, offset_bytes: int = 0, max_bytes: int = 0) -> bytes:
        read = await self.suite.manager.read_file(
            self.caller,
            self.info.key.rollout_id,
            self.info.sandbox_id,
            path,
            offset_bytes=offset_bytes,
            max_bytes=max_bytes,
        )
        return read.content

    async def list_files(self, path: str) -> list[FileEntry]:
        return await self.suite.manager.list_files(*self._target, path)

    async def stat_file(self, path: str) -> FileEntry:
        return await self.suite.manager.stat_file(*self._target, path)

    async def upload(self, folder: str, archive: bytes, piece_bytes: int = 1 << 20) -> int:
        async def pieces() -> AsyncIterator[bytes]:
            for begin in range(0, len(archive), piece_bytes):
                yield archive[begin : begin + piece_bytes]

        return await self.suite.transfers.upload_tar(*self._target, folder, pieces())

    async def download(self, path: str) -> bytes:
        events = [one async for one in self.suite.transfers.download_tar(*self._target, path)]
        return b"".join(one for one in events if isinstance(one, bytes))

    async def save(self, snapshot_id: str) -> Snapshot:
        return await self.suite.transfers.create_snapshot(*self._target, snapshot_id)

    @property
    def _target(self) -> tuple[Caller, str, str]:
        return self.caller, self.info.key.rollout_id, self.info.sandbox_id


def make_suite(
    backend: Backend,
    folder: Path,
    clock: Callable[[], float],
    *,
    parallel_creates: int = 8,
    queue_seconds: float = 10.0,
    provision_seconds: float = 10.0,
    max_sandboxes: int = 1000,
    memory_budget_bytes: int = 1 << 50,
    reserve_bytes: int = 0,
    available_bytes: Callable[[], int] = available_memory_bytes,
    templates: Mapping[str, Template] | None = None,
    warm_max: int = 32,
    meter: Meter | None = None,
    events: ToldEvents | None = None,
    snapshots_bytes: int = 1 << 40,
    transfer_limits: Mapping[str, Any] | None = None,
) -> Suite:
    """Put a manager together; not started."""
    numbers = itertools.count()
    records = Records(folder / "records.jsonl")
    snapshots = SnapshotStore(
        folder / "snapshots",
        max_bytes=snapshots_bytes,
        clock=clock,
        has_ended=records.has_ended,
    )
    told = events or ToldEvents()
    plans = Plans(default_template="host", most=warm_max, seconds=120.0, clock=clock)
    measures = Measures(clock, meter or silent_meter())
    turns = Turns(parallel_creates, queue_seconds, clock)
    fleet = Fleet(
        backend=backend,
        records=records,
        events=told,
        admission=Admission(
            max_sandboxes=max_sandboxes,
            memory_budget_bytes=memory_budget_bytes,
            reserve_bytes=reserve_bytes,
            available_bytes=available_bytes,
            clock=clock,
        ),
        turns=turns,
        templates=templates or {"host": Template()},
        plans=plans,
        measures=measures,
        provision_seconds=provision_seconds,
        clock=clock,
        new_id=lambda: f"sbx_{folder.name[-8:]}_{next(numbers):06d}",
        on_rollout_end=snapshots.drop,
    )
    manager = SandboxManager(fleet, records, Gate(), snapshots)
    transfers = Transfers(
        manager.door, Spool(folder / "spool"), snapshots, **(transfer_limits or {})
    )
    return Suite(
        manager=manager,
        transfers=transfers,
        snapshots=snapshots,
        fleet=fleet,
        records=records,
        events=told,
        backend=backend,
        clock=clock,
        plans=plans,
        measures=measures,
        turns=turns,
    )


async def start_or_skip(suite: Suite) -> None:
    """Start over the real backend; skip with the reason where the machine cannot isolate."""
    try:
        await suite.manager.start()
    except FailedPrecondition as error:
        if error.reason == "ISOLATION_UNAVAILABLE":
            pytest.skip(f"no sandboxes on this machine: {error.message}")
        raise


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture(scope="session")
def suite_maker() -> Callable[..., Suite]:
    return make_suite


@pytest.fixture
async def suite(
    backend: ScriptedBackend, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Suite]:
    """A started manager over the scripted backend and a manual clock."""
    made = make_suite(backend, tmp_path, clock)
    await made.manager.start()
    yield made
    backend.gate.set()
    await made.manager.close()


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Suite]:
    """A started manager over the embedded backend."""
    made = make_suite(LocalBackend(tmp_path), tmp_path, time.time)
    await start_or_skip(made)
    yield made
    await made.manager.close()


@pytest.fixture
async def box(real: Suite) -> UsableBox:
    """One real sandbox."""
    return UsableBox(real, (await real.create(real.rollout_id())).info)


@pytest.fixture(scope="session")
def use() -> Callable[[Suite, SandboxInfo], UsableBox]:
    return UsableBox


@pytest.fixture(scope="session")
def scripted_type() -> type[ScriptedBackend]:
    return ScriptedBackend


@pytest.fixture(scope="session")
def starter() -> Callable[[Suite], object]:
    return start_or_skip
