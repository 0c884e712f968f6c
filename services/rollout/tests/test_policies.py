"""Policies are loaded once, counted, and unloaded when replaced; adapters come whole or not at all."""

import asyncio
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollout.adapters import AdapterFolders
from rollout.engines.base import EngineError, ModelKey, PolicyKey
from rollout.jobs import AdapterRef
from rollout.policies import Policies
from servicekit.errors import DataLoss

MODEL = ModelKey(path="m")


@dataclass
class FakeEngine:
    """Remembers what it was told."""

    log: list[str] = field(default_factory=list)
    fail: bool = False
    hold: asyncio.Event | None = None
    name = "fake"

    async def start(self, folder: Path, model: ModelKey) -> None:
        self.log.append(f"start {model.path}")
        if self.fail:
            raise EngineError("no memory")

    async def load_policy(self, policy: PolicyKey, adapter_dir: Path | None) -> None:
        if adapter_dir is not None:
            assert (adapter_dir / "adapter_model.safetensors").is_file()
        self.log.append(f"load {policy.run_id} v{policy.version}")
        if self.hold is not None:
            await self.hold.wait()

    async def unload_policy(self, policy: PolicyKey) -> None:
        self.log.append(f"unload {policy.run_id} v{policy.version}")

    async def close(self) -> None:
        self.log.append("close")


@dataclass
class Store:
    """Blobs in memory."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    fetched: int = 0

    def add(self, name: str, files: dict[str, bytes]) -> AdapterRef:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return self.add_bytes(name, packed.getvalue())

    def add_bytes(self, name: str, data: bytes) -> AdapterRef:
        self.blobs[name] = data
        digest = hashlib.sha256(data).hexdigest()
        return AdapterRef(bucket="b", name=name, size_bytes=len(data), sha256=digest)

    async def fetch(self, ref: AdapterRef, destination: Path) -> None:
        self.fetched += 1
        destination.write_bytes(self.blobs[ref.name])


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def policies(engine: FakeEngine, store: Store, tmp_path: Path) -> Policies:
    return Policies(
        make_engine=lambda: engine,  # type: ignore[arg-type,return-value]
        resolve=lambda path: tmp_path,
        adapters=AdapterFolders(tmp_path / "adapters", store),
    )


def adapter(store: Store, version: int) -> AdapterRef:
    files = {"adapter_model.safetensors": bytes([version]), "adapter_config.json": b"{}"}
    return store.add(f"v{version}", files)


async def test_many_rollouts_load_a_policy_once(
    policies: Policies, engine: FakeEngine, store: Store
) -> None:
    ref = adapter(store, 1)
    release = asyncio.Event()

    async def roll() -> None:
        async with policies.use(MODEL, PolicyKey("r", 1), ref):
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(roll())
        while sum(status.in_flight for status in policies.status()) < 8:
            await asyncio.sleep(0)
        release.set()
    assert engine.log == ["start m", "load r v1"]
    assert store.fetched == 1


async def test_a_replaced_policy_goes_with_its_last_rollout(
    policies: Policies, engine: FakeEngine, store: Store, tmp_path: Path
) -> None:
    old = adapter(store, 1)
    async with policies.use(MODEL, PolicyKey("r", 1), old):
        async with policies.use(MODEL, PolicyKey("r", 2), adapter(store, 2)):
            pass
        assert "unload r v1" not in engine.log
    assert engine.log[-1] == "unload r v1"
    assert not (tmp_path / "adapters" / old.sha256).exists()
    assert [status.policy.version for status in policies.status()] == [2]


async def test_a_newer_version_replaces_an_idle_one_when_it_is_loaded(
    policies: Policies, engine: FakeEngine, store: Store
) -> None:
    await policies.load(MODEL, PolicyKey("r", 1), adapter(store, 1))
    await policies.load(MODEL, PolicyKey("r", 2), adapter(store, 2))
    assert engine.log[-1] == "unload r v1"
    assert policies.serves(MODEL)


async def test_few_idle_policies_of_other_runs_stay(policies: Policies, engine: FakeEngine) -> None:
    for run in ("a", "b", "c"):
        async with policies.use(MODEL, PolicyKey(run, 0), None):
            pass
    assert engine.log[-1] == "unload a v0"
    assert len(policies.status()) == 2


async def test_a_version_made_again_replaces_the_first_once_nobody_acts_by_it(
    policies: Policies, engine: FakeEngine, store: Store
) -> None:
    policy = PolicyKey("r", 1)
    async with policies.use(MODEL, policy, adapter(store, 1)):
        with pytest.raises(EngineError, match="still acts from another adapter") as raised:
            await policies.load(MODEL, policy, adapter(store, 2))
        assert raised.value.retryable
    await policies.load(MODEL, policy, adapter(store, 2))
    assert engine.log == ["start m", "load r v1", "unload r v1", "load r v1"]


async def test_another_model_closes_the_unused_one(policies: Policies, engine: FakeEngine) -> None:
    await policies.load(MODEL, PolicyKey("r", 0), None)
    await policies.load(ModelKey(path="n"), PolicyKey("r", 0), None)
    assert engine.log == ["start m", "load r v0", "close", "start n", "load r v0"]


async def test_an_engine_is_not_closed_under_who_waits_for_it(
    policies: Policies, engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()

    async def roll(model: ModelKey) -> None:
        async with policies.use(model, PolicyKey("r", 0), None):
            assert not any(line == "close" for line in engine.log)

    async with asyncio.TaskGroup() as group:
        group.create_task(roll(MODEL))
        while "load r v0" not in engine.log:
            await asyncio.sleep(0)
        group.create_task(roll(ModelKey(path="n")))
        while engine.log.count("load r v0") < 2:
            await asyncio.sleep(0)
        engine.hold.set()


async def test_who_runs_out_of_time_does_not_break_off_what_others_wait_for(
    policies: Policies, engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()
    first = asyncio.create_task(policies.load(MODEL, PolicyKey("r", 0), None))
    while "load r v0" not in engine.log:
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    engine.hold.set()
    await policies.load(MODEL, PolicyKey("r", 0), None)
    assert engine.log == ["start m", "load r v0"]


async def test_an_engine_that_does_not_start_is_closed(
    policies: Policies, engine: FakeEngine
) -> None:
    engine.fail = True
    with pytest.raises(EngineError, match="no memory"):
        await policies.load(MODEL, PolicyKey("r", 0), None)
    assert engine.log == ["start m", "close"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a tar", "'x' is not a readable tar archive"),
        (None, r"should hold one adapter_model\.safetensors or model\.safetensors, found 0"),
    ],
)
async def test_a_broken_blob_leaves_nothing(
    policies: Policies, store: Store, tmp_path: Path, data: bytes | None, message: str
) -> None:
    ref = store.add("x", {"readme": b"hi"}) if data is None else store.add_bytes("x", data)
    with pytest.raises(DataLoss, match=message):
        await policies.load(MODEL, PolicyKey("r", 1), ref)
    assert list((tmp_path / "adapters").iterdir()) == []
    assert policies.status() == []


async def test_a_blob_cannot_write_outside_its_folder(
    policies: Policies, store: Store, tmp_path: Path
) -> None:
    ref = store.add("x", {"../../evil": b"x", "adapter_model.safetensors": b"x"})
    with pytest.raises(DataLoss):
        await policies.load(MODEL, PolicyKey("r", 1), ref)
    assert not (tmp_path / "evil").exists()
