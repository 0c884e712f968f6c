"""Runs with `model.dtype: auto`: measured once, the same type for everyone, kept when resumed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from learner_world import World, always, never_measured
from local_learner import LocalLearner
from safetensors.torch import load, load_file

from eventbus.bus import Delivery
from eventbus.memory_bus import MemoryBus
from learner.ports import Stopped
from learner.runner import spec_of
from learner.runs.checkpoints import LATEST
from learner.runs.dtype_choice import DtypeSeconds, choose_dtype
from learner.runs.exports import Exporter, FileHead
from learner.runs.store import Run, RunState
from learner.workers.dtype_probe import DtypeProbe, MeasureDtypes
from runspec.schema import RunSpec
from servicekit.errors import FailedPrecondition

pytestmark = pytest.mark.slow

TASKS = b"".join(
    b'{"messages": [{"role": "user", "content": "%d+1?"}], "answer": "2"}\n' % number
    for number in range(4)
)
PAIRS = b"".join(
    b'{"prompt": "%d ?", "chosen": "7 7", "rejected": "apples"}\n' % number for number in range(4)
)


class Measured:
    """Says that bfloat16 takes half of the time, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, run_spec: RunSpec, stop: asyncio.Event) -> DtypeSeconds:
        self.asked += 1
        return DtypeSeconds(float32=2.0, bfloat16=1.0, of_cpu=True)


class GatedWorld(World):
    """Answers requests of the second step once the gate is open."""

    def __init__(self, bus: MemoryBus, gate: asyncio.Event) -> None:
        super().__init__(bus, always("score"))
        self.gate = gate
        self.waiting = asyncio.Event()

    async def handle(self, delivery: Delivery) -> None:
        if delivery.envelope.slot.step == 1:
            self.waiting.set()
            await self.gate.wait()
        await super().handle(delivery)


class Learner(LocalLearner):
    """Starts runs with auto, and exports what they made."""

    def __init__(self, folder: Path, bus: MemoryBus, measure: MeasureDtypes) -> None:
        super().__init__(folder, bus, measure)
        self.exporter = Exporter(self.store, folder / "models", spec_of)

    def start(self, model: Path, algorithm: str, rows: bytes, **train: Any) -> Run:
        kind = "preferences" if algorithm == "reward_model" else "tasks"
        data, _ = self.datasets.store(kind, rows)  # type: ignore[arg-type]  # kind is one of its literals
        spec = RunSpec.model_validate(
            {
                "name": "demo",
                "algorithm": algorithm,
                "model": {"path": str(model), "dtype": "auto"},
                "data": {"eval" if algorithm == "evaluate" else "train": data},
                "lora": {"rank": 4},
                "train": {"max_steps": 2, "batch_size": 2, "group_size": 2, **train},
                "grader": {"type": "answer", "reference": "{{item.answer}}"},
            }
        )
        return self.begin(spec)

    async def exported(self, run: Run) -> dict[str, Any]:
        files: dict[str, bytes] = {}
        name = ""
        async for piece in self.exporter.export(run, LATEST, merged=True):
            if isinstance(piece, FileHead):
                name = piece.path
            elif isinstance(piece, bytes):
                files[name] = files.get(name, b"") + piece
        return load(files["model.safetensors"])


@asynccontextmanager
async def acting(bus: MemoryBus, world: World) -> AsyncIterator[None]:
    stop = asyncio.Event()
    work = bus.consume("rollout", ["rollout_requested"], world.handle, stop=stop)
    consumer = asyncio.create_task(work)
    try:
        async with asyncio.timeout(120):
            yield
    finally:
        stop.set()
        await consumer


async def types_in_log(bus: MemoryBus, run_id: str) -> dict[str, set[str]]:
    """Number types that the log tells others, by the kind of event."""
    found: dict[str, set[str]] = {}
    async for event in bus.read(run_id=run_id):
        kind = event.envelope.WhichOneof("payload")
        payload = getattr(event.envelope, kind)
        if kind == "run_started":
            payload = payload.spec
        if kind in ("run_started", "rollout_requested", "policy_published"):
            found.setdefault(kind, set()).add(payload.model.dtype)
    return found


async def test_a_run_goes_on_with_the_type_that_was_measured_first_and_everyone_has_it(
    bus: MemoryBus, tiny_folder: Path, tmp_path: Path
) -> None:
    measured, gate = Measured(), asyncio.Event()
    world = GatedWorld(bus, gate)
    async with acting(bus, world):
        first = Learner(tmp_path, bus, measured)
        run_id = first.start(tiny_folder, "grpo", TASKS).run_id
        await world.waiting.wait()
        stopped = await first.manager.stop(run_id)
        assert (stopped.state, stopped.step) == (RunState.STOPPED, 1)
        # Another process, which would find something else out.
        second = Learner(tmp_path, bus, never_measured)
        second.manager.resume(run_id)
        gate.set()
        ended = await second.ended(run_id)
    assert (ended.state, ended.detail) == (RunState.COMPLETED, "")
    assert measured.asked == 1
    assert ended.dtype_choice is not None
    assert (ended.dtype_choice.dtype, ended.dtype_choice.float32_seconds) == ("bfloat16", 2.0)
    assert second.store.load(run_id).dtype_choice == ended.dtype_choice
    assert await types_in_log(bus, run_id) == {
        "run_started": {"bfloat16"},
        "policy_published": {"bfloat16"},
        "rollout_requested": {"bfloat16"},
    }
    weights = await second.exported(ended)
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.bfloat16"}


async def test_ranks_train_in_the_type_that_was_measured_once(
    bus: MemoryBus, tiny_folder: Path, tmp_path: Path
) -> None:
    measured = Measured()
    learner = Learner(tmp_path, bus, measured)
    run_id = learner.start(tiny_folder, "reward_model", PAIRS, processes=2).run_id
    ended = await learner.ended(run_id)
    assert (ended.state, ended.detail) == (RunState.COMPLETED, "")
    assert measured.asked == 1
    weights = load_file(learner.store.folder(run_id) / "reward_model" / "model.safetensors")
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.bfloat16"}


@pytest.mark.parametrize(
    ("algorithm", "train"), [("evaluate", {}), ("grpo", {"weights": "full", "max_steps": 1})]
)
async def test_what_has_no_choice_is_float32_and_not_measured(
    bus: MemoryBus, tiny_folder: Path, tmp_path: Path, algorithm: str, train: dict[str, Any]
) -> None:
    learner = Learner(tmp_path, bus, never_measured)
    async with acting(bus, World(bus, always("score"))):
        run_id = learner.start(tiny_folder, algorithm, TASKS, **train).run_id
        ended = await learner.ended(run_id)
    assert (ended.state, ended.detail) == (RunState.COMPLETED, "")
    assert ended.dtype_choice is not None and ended.dtype_choice.float32_seconds == 0.0
    assert set().union(*(await types_in_log(bus, run_id)).values()) == {"float32"}


async def test_a_run_measures_on_this_machine(
    bus: MemoryBus, tiny_folder: Path, tmp_path: Path
) -> None:
    learner = Learner(tmp_path, bus, DtypeProbe(tmp_path / "models", 1))
    run_id = learner.start(tiny_folder, "reward_model", PAIRS, max_steps=1).run_id
    ended = await learner.ended(run_id)
    assert (ended.state, ended.detail) == (RunState.COMPLETED, "")
    choice = ended.dtype_choice
    assert choice is not None
    seconds = DtypeSeconds(
        float32=choice.float32_seconds, bfloat16=choice.bfloat16_seconds, of_cpu=True
    )
    assert min(seconds.float32, seconds.bfloat16) > 0.0
    assert choice == choose_dtype(seconds)
    weights = load_file(learner.store.folder(run_id) / "reward_model" / "model.safetensors")
    assert {str(weight.dtype) for weight in weights.values()} == {f"torch.{choice.dtype}"}


def sft_of(model: Path, **lora: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "algorithm": "sft",
            "model": {"path": str(model), "dtype": "auto"},
            "data": {"train": "x"},
            "lora": lora,
        }
    )


async def test_what_cannot_be_measured_names_the_field_and_what_would_be_right(
    tiny_folder: Path, tmp_path: Path
) -> None:
    probe = DtypeProbe(tmp_path / "models", 1)
    with pytest.raises(FailedPrecondition) as caught:
        await probe(sft_of(tiny_folder, target_modules=["q_prog"]), asyncio.Event())
    assert str(caught.value).startswith("model.dtype: auto could not be measured (")
    assert "lora.target_modules: the model's blocks have no linear layer 'q_prog'" in str(
        caught.value
    )
    assert "Traceback" not in str(caught.value)
    assert "float32 or bfloat16 is right" in str(caught.value)


async def test_layers_that_the_one_measured_layer_lacks_are_no_hindrance_where_an_adapter_brings_them(
    tiny_folder: Path, tmp_path: Path
) -> None:
    spec = sft_of(tiny_folder, target_modules=["model.layers.1.self_attn.q_proj"])
    on = spec.model_copy(update={"model": spec.model.model_copy(update={"adapter": "run-1"})})
    found = await DtypeProbe(tmp_path / "models", 1)(on, asyncio.Event())
    assert min(found.float32, found.bfloat16) > 0.0


def test_measuring_can_be_stopped_on_the_loop_that_services_run_on(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async def stopped() -> None:
        stop = asyncio.Event()
        stop.set()
        await DtypeProbe(tmp_path / "models", 1)(sft_of(tiny_folder), stop)

    with pytest.raises(Stopped):
        uvloop.run(stopped())
