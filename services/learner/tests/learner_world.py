"""For tests of runs: a scripted world that acts and judges over the in-process bus, and a core that records."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2

from eventbus.bus import Delivery
from eventbus.envelope import new_envelope
from eventbus.memory_bus import MemoryBus
from learner.health.alarms import Alarm
from learner.jobs.context import JobContext
from learner.ports import Restored, ScoredRollout
from learner.rollouts.runlog import BusRunLog
from learner.runs.dtype_choice import DtypeSeconds
from learner.runs.store import Step
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from trajectory import convert
from trajectory import types as t

Behaviour = Callable[[events_pb2.Envelope], str]


def spec(*, group_timeout: float = 60, **train: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "test",
            "algorithm": "grpo",
            "model": {"path": "none"},
            "data": {"train": "tasks-x", "eval": "tasks-x"},
            "train": {"max_steps": 3, "batch_size": 2, "group_size": 2, **train},
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
            "retry": {"group_timeout": group_timeout},
        }
    )


TASKS = [t.Task(task_id=f"t{i}", messages=(), reference={"answer": str(i)}) for i in range(5)]


class World:
    """Answers every request as `behave` says.

    `score`, `=0.7` (this score), `flat` (all members alike), `turns` (all scores alike, not so the rewards of turns),
    `mask`, `infra`, `data`, `silent`, or `stale` and `future`: scored, but the
    policy that acted was a version older or newer than the one that was asked for.
    """

    def __init__(self, bus: MemoryBus, behave: Behaviour) -> None:
        self.bus = bus
        self.behave = behave
        self.requested: list[events_pb2.Envelope] = []

    async def handle(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        self.requested.append(envelope)
        what = self.behave(envelope)
        if what in ("infra", "data"):
            client = what == "data"
            failure = outcome_pb2.Failure(
                kind=outcome_pb2.FAILURE_KIND_BAD_TASK
                if client
                else outcome_pb2.FAILURE_KIND_SANDBOX,
                retryable=True,
                attributable=outcome_pb2.ATTRIBUTION_CLIENT
                if client
                else outcome_pb2.ATTRIBUTION_INFRA,
            )
            await self.tell(envelope, events_pb2.RolloutFailed(failure=failure), "rollout")
        elif what != "silent":
            shift = {"stale": -1, "future": 1}.get(what, 0)
            await self.tell(envelope, _finished(envelope, shift), "rollout")
            judged = events_pb2.RewardAssigned(grader_version="g1")
            if what == "mask":
                judged.masked.reason = "unreadable"
            else:
                judged.scored.score = _score(what, envelope.slot.sample_index)
                if what == "turns":
                    first = envelope.slot.sample_index / 4
                    judged.scored.step_rewards.extend([first, 0.5 - first])
            await self.tell(envelope, judged, "grader")

    async def tell(self, about: events_pb2.Envelope, payload: Any, source: str) -> None:
        await self.bus.publish(
            new_envelope(
                payload,
                source=source,
                run_id=about.run_id,
                rollout_id=about.rollout_id,
                slot=about.slot,
                attempt=about.attempt,
                clock=time.time,
            )
        )


def _score(what: str, sample_index: int) -> float:
    if what.startswith("="):
        return float(what[1:])
    return 0.5 if what in ("flat", "turns") else sample_index / 2


def _finished(envelope: events_pb2.Envelope, shift: int) -> events_pb2.RolloutFinished:
    version = envelope.rollout_requested.policy_version + shift
    row = t.TokenRow(
        token_ids=(1, 2),
        loss_mask=(False, True),
        logprobs=(0.0, -0.5),
        spans=(t.TokenSpan(start=1, end=2, turn=0, policy_version=version),),
    )
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    record = t.RolloutRecord(
        task=convert.task_from_proto(envelope.rollout_requested.task),
        messages=(),
        tokens=t.TokenRecord(rows=(row,), sampling=t.SamplingParams()),
        stop_reason=t.StopReason.COMPLETED,
        sandbox_id="",
        turns=(),
        grader_json="",
        start_time=moment,
        end_time=moment,
    )
    return events_pb2.RolloutFinished(inline=convert.rollout_record_to_proto(record))


class RecordingCore:
    """Keeps what it was given; its checkpoint outlives the core, as a disk does."""

    def __init__(self, disk: dict[str, Restored]) -> None:
        self.disk = disk
        self.steps: list[list[list[ScoredRollout]]] = []
        self.likelihoods = iter([-1.0] * 100)

    async def restore(self) -> Restored | None:
        return self.disk.get("last")

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        await asyncio.sleep(0)
        self.steps.append([list(group) for group in groups])
        return {"loss": 0.0}

    async def sft_step(
        self, rows: Sequence[int], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        raise AssertionError("not a supervised run")

    async def off_task(self, progress: Callable[[int, int], None]) -> float:
        return next(self.likelihoods)

    async def save(self, restored: Restored) -> None:
        self.disk["last"] = restored

    async def export(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")

    def interrupt(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Report:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.metrics: list[Mapping[str, float]] = []
        self.done: dict[int, Step] = {}
        self.alarms: list[tuple[int, str]] = []

    def progress(self, step: int, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: None

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)
        self.metrics.append(metrics)
        self.done[step] = Step(
            step=step, policy_version=policy_version, end_time=0.0, metrics=metrics
        )

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        self.alarms += [(step, alarm.kind) for alarm in alarms]

    def history(self) -> list[Step]:
        return [self.done[step] for step in sorted(self.done)]


async def context(
    bus: MemoryBus, run_spec: RunSpec, folder: Path, report: Report, life: int = 0
) -> JobContext:
    log = BusRunLog(
        run_id="test-1",
        spec=run_spec_to_proto(run_spec),
        bus=bus,
        blobs=await bus.blobs(),
        clock=time.time,
        rng=random.Random(7),
        temperature=1.0,
        eval_temperature=0.5,
    )
    return JobContext(
        run_id="test-1",
        spec=run_spec,
        log=log,
        report=report,
        stop=asyncio.Event(),
        folder=folder,
        monotonic=time.monotonic,
        history=report.history,
        retry_seconds=0.0,
        life=life,
    )


async def never_measured(run_spec: RunSpec, stop: asyncio.Event) -> DtypeSeconds:
    raise AssertionError("the run file says a number type, or the run has one")


async def events(bus: MemoryBus) -> list[events_pb2.Envelope]:
    return [event.envelope async for event in bus.read(run_id="test-1")]


async def with_world(
    bus: MemoryBus, behave: Behaviour, work: Any, world_type: type[World] = World
) -> World:
    world, stop = world_type(bus, behave), asyncio.Event()
    consumer = asyncio.create_task(
        bus.consume("rollout", ["rollout_requested"], world.handle, stop=stop)
    )
    try:
        async with asyncio.timeout(20):
            await work
    finally:
        stop.set()
        await consumer
    return world


def always(what: str) -> Behaviour:
    return lambda envelope: what
