"""Whole runs over the in-process bus: a scripted world acts and judges, a recording core trains."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hone.events.v1 import events_pb2
from learner_world import (
    TASKS,
    RecordingCore,
    Report,
    World,
    always,
    context,
    events,
    spec,
    with_world,
)

from eventbus.envelope import dead_letter, new_envelope
from eventbus.memory_bus import MemoryBus
from learner.jobs.evaluate import run_evaluate
from learner.jobs.reinforce import ReinforcementJob
from learner.ports import Restored, Stopped
from runspec.schema import EvalSpec, RunSpec
from servicekit.errors import FailedPrecondition, Unavailable
from trajectory import types as t


async def test_run_trains_every_slot_once_and_tells_it_in_order(
    bus: MemoryBus, tmp_path: Path
) -> None:
    core, report = RecordingCore({}), Report()
    job = ReinforcementJob(await context(bus, spec(), tmp_path, report), core, TASKS, [])
    await with_world(bus, always("score"), job.run())
    assert report.steps == [0, 1, 2]
    trained = [r.rollout_id for step in core.steps for group in step for r in group]
    assert len(trained) == len(set(trained)) == 12
    kinds = [e.WhichOneof("payload") for e in await events(bus)]
    assert kinds[0] == "run_started"
    assert kinds.count("policy_published") == 4
    versions = [
        e.policy_published.policy_version
        for e in await events(bus)
        if e.HasField("policy_published")
    ]
    assert versions == [0, 1, 2, 3]
    told = [e.run_step_trained for e in await events(bus) if e.HasField("run_step_trained")]
    assert [set(step.trained_rollout_ids) for step in told] == [
        {r.rollout_id for group in step for r in group} for step in core.steps
    ]


async def test_infrastructure_fault_is_retried_in_the_slot_and_never_a_reward(
    bus: MemoryBus, tmp_path: Path
) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        return "infra" if envelope.attempt == 0 and envelope.slot.sample_index == 1 else "score"

    core, report = RecordingCore({}), Report()
    job = ReinforcementJob(await context(bus, spec(max_steps=1), tmp_path, report), core, TASKS, [])
    world = await with_world(bus, behave, job.run())
    assert Counter(e.attempt for e in world.requested) == {0: 4, 1: 2}
    assert [len(group) for group in core.steps[0]] == [2, 2]
    assert report.metrics[0]["rollouts/failed/sandbox"] == 2.0
    assert report.metrics[0]["rollouts/ok"] == 4.0


async def test_masked_and_lost_members_have_no_vote(bus: MemoryBus, tmp_path: Path) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        if envelope.slot.group_index == 0:
            return "mask" if envelope.slot.sample_index == 0 else "score"
        return "infra" if envelope.slot.sample_index == 0 else "score"

    core, report = RecordingCore({}), Report()
    job = ReinforcementJob(await context(bus, spec(max_steps=1), tmp_path, report), core, TASKS, [])
    await with_world(bus, behave, job.run())
    assert [[r.score for r in group] for group in core.steps[0]] == [[0.5], [0.5]]
    assert report.metrics[0]["rollouts/masked"] == 1.0
    assert report.metrics[0]["rollouts/abandoned"] == 1.0


async def test_poison_task_is_quarantined_and_stays_so(bus: MemoryBus, tmp_path: Path) -> None:
    poisoned: set[str] = set()

    def behave(envelope: events_pb2.Envelope) -> str:
        task = envelope.rollout_requested.task.task_id
        if envelope.slot.step == 0 and envelope.slot.group_index == 0:
            poisoned.add(task)
        return "data" if task in poisoned else "score"

    disk: dict[str, Restored] = {}
    core = RecordingCore(disk)
    job = ReinforcementJob(
        await context(bus, spec(max_steps=6), tmp_path, Report()), core, TASKS, []
    )
    world = await with_world(bus, behave, job.run())
    later = [e for e in world.requested if e.slot.step > 0]
    assert later
    assert not poisoned & {e.rollout_requested.task.task_id for e in later}
    assert disk["last"].state["quarantined"] == list(poisoned)


@pytest.mark.parametrize("seed", range(12))
async def test_learner_killed_anywhere_goes_on_without_asking_or_training_twice(
    bus: MemoryBus, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    disk: dict[str, Restored] = {}
    cores: list[RecordingCore] = []
    requests = 0

    def behave(envelope: events_pb2.Envelope) -> str:
        nonlocal requests
        requests += 1
        return "infra" if envelope.attempt == 0 and rng.random() < 0.3 else "score"

    async def live_and_die() -> None:
        for life in range(40):
            core = RecordingCore(disk)
            cores.append(core)
            job = ReinforcementJob(await context(bus, spec(), tmp_path, Report()), core, TASKS, [])
            work = asyncio.create_task(job.run())
            limit = rng.uniform(0, 0.05) if life < 8 else None
            done, _ = await asyncio.wait([work], timeout=limit)
            if done:
                await work
                return
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    await with_world(bus, behave, live_and_die())
    found = await events(bus)
    trained = [e.run_step_trained for e in found if e.HasField("run_step_trained")]
    assert [step.step for step in trained] == [0, 1, 2]
    ids = [i for step in trained for i in step.trained_rollout_ids]
    assert len(ids) == len(set(ids)) == 12
    attempts = Counter(
        (e.slot.step, e.slot.group_index, e.slot.sample_index, e.attempt)
        for e in found
        if e.HasField("rollout_requested")
    )
    assert set(attempts.values()) == {1}


async def test_stopped_run_keeps_what_it_asked_for(bus: MemoryBus, tmp_path: Path) -> None:
    disk: dict[str, Restored] = {}
    report = Report()
    first = await context(bus, spec(max_steps=1), tmp_path, report)
    job = asyncio.create_task(ReinforcementJob(first, RecordingCore(disk), TASKS, []).run())
    async with asyncio.timeout(10):
        while sum(e.HasField("rollout_requested") for e in await events(bus)) < 4:
            await asyncio.sleep(0)
        first.stop.set()
        with pytest.raises(Stopped):
            await job
    second = await context(bus, spec(max_steps=1), tmp_path, report)
    core = RecordingCore(disk)
    world = await with_world(bus, always("score"), ReinforcementJob(second, core, TASKS, []).run())
    assert len(world.requested) == 4
    assert len(core.steps) == 1


async def test_group_closes_at_its_deadline_and_the_late_attempt_is_ended(
    bus: MemoryBus, tmp_path: Path
) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        return "silent" if envelope.slot.sample_index == 2 else "score"

    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=1, group_size=3, group_timeout=0.3)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, behave, job.run())
    assert [len(group) for group in core.steps[0]] == [2, 2]
    ends = [e for e in await events(bus) if e.HasField("rollout_failed")]
    assert {e.source for e in ends} == {"learner"}
    assert len(ends) == 2


def evaluation(samples: int) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "test",
            "algorithm": "evaluate",
            "model": {"path": "none"},
            "data": {"eval": "tasks-x"},
            "eval": {"samples": samples},
            "train": {"group_size": 2},
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
        }
    )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "tasks.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


async def test_evaluation_measures_every_task_and_trains_nothing(
    bus: MemoryBus, tmp_path: Path
) -> None:
    figures: dict[str, float] = {}

    async def work() -> None:
        made = await context(bus, evaluation(2), tmp_path, Report())
        figures.update(await run_evaluate(made, TASKS, None))

    world = await with_world(bus, always("score"), work())
    assert len(world.requested) == 10
    assert figures["reward/mean"] == 0.25
    assert figures["rollouts/ok"] == 10.0
    assert figures["pass@1"] == figures["success_rate"]
    assert (figures["tasks/spread_share"], figures["reward/best_of_k"]) == (1.0, 0.5)
    assert figures["groups/informative_share"] == 0.5  # of two draws of two scores


async def test_evaluation_writes_a_line_for_each_task_whatever_became_of_its_samples(
    bus: MemoryBus, tmp_path: Path
) -> None:
    ends = {"t0": "=1", "t1": "=0", "t2": "score", "t3": "=0.3", "t4": "mask"}

    def behave(envelope: events_pb2.Envelope) -> str:
        return ends[envelope.rollout_requested.task.task_id]

    figures: dict[str, float] = {}

    async def work() -> None:
        made = await context(bus, evaluation(3), tmp_path, Report())
        figures.update(await run_evaluate(made, TASKS, None))

    await with_world(bus, behave, work())
    lines = lines_of(tmp_path)
    assert [(line["task_id"], line["class"]) for line in lines] == [
        ("t0", "always_right"),
        ("t1", "always_wrong"),
        ("t2", "spread"),
        ("t3", "constant"),
        ("t4", "too_few_samples"),
    ]
    assert lines[2] == {
        "task_id": "t2",
        "scores": [0.0, 0.5, 1.0],
        "num_right": 3,
        "mean": 0.5,
        "best": 1.0,
        "variance": pytest.approx(1 / 6),
        "variance_sample": 0.25,
        "class": "spread",
    }
    assert (lines[4]["scores"], lines[4]["mean"], lines[4]["variance"]) == ([], None, None)
    assert (figures["tasks/measured"], figures["tasks/too_few_samples"]) == (4.0, 1.0)
    assert figures["tasks/always_wrong_share"] == 0.25


async def test_evaluation_of_single_samples_tells_no_spread(bus: MemoryBus, tmp_path: Path) -> None:
    figures: dict[str, float] = {}

    async def work() -> None:
        made = await context(bus, evaluation(1), tmp_path, Report())
        figures.update(await run_evaluate(made, TASKS, None))

    await with_world(bus, always("=1"), work())
    assert not any(name.startswith(("pass@", "tasks/", "groups/")) for name in figures)
    assert {line["class"] for line in lines_of(tmp_path)} == {"too_few_samples"}
    assert [line["mean"] for line in lines_of(tmp_path)] == [1.0] * 5


async def test_evaluation_killed_anywhere_has_each_task_once(
    bus: MemoryBus, tmp_path: Path
) -> None:
    rng = random.Random(3)

    async def live_and_die() -> None:
        for life in range(40):
            made = await context(bus, evaluation(4), tmp_path, Report())
            work = asyncio.create_task(run_evaluate(made, TASKS, None))
            limit = rng.uniform(0, 0.03) if life < 8 else None
            done, _ = await asyncio.wait([work], timeout=limit)
            if done:
                await work
                if life >= 10:
                    return  # also lives after the file was written, as of a learner killed before it said so
                continue
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    world = await with_world(bus, always("score"), live_and_die())
    assert [line["task_id"] for line in lines_of(tmp_path)] == [task.task_id for task in TASKS]
    assert {tuple(line["scores"]) for line in lines_of(tmp_path)} == {(0.0, 0.5, 1.0, 1.5)}
    assert len(world.requested) == 20
    assert not list(tmp_path.glob(".tasks.jsonl*"))


async def test_step_lost_to_infrastructure_stops_the_run_and_a_resume_grants_new_attempts(
    bus: MemoryBus, tmp_path: Path
) -> None:
    disk: dict[str, Restored] = {}
    core = RecordingCore(disk)
    first = await context(bus, spec(max_steps=1), tmp_path, Report())

    async def fails() -> None:
        with pytest.raises(Unavailable, match="4 of 4 rollouts were lost"):
            await ReinforcementJob(first, core, TASKS, []).run()

    world = await with_world(bus, always("infra"), fails())
    assert len(world.requested) == 4 * 6
    assert core.steps == []
    assert disk["last"].step == 0
    second = await context(bus, spec(max_steps=1), tmp_path, Report(), life=1)
    world = await with_world(bus, always("score"), ReinforcementJob(second, core, TASKS, []).run())
    assert [e.attempt for e in world.requested] == [6] * 4
    assert len(core.steps) == 1


async def test_retries_after_an_outage_wait_longer_each_time(
    bus: MemoryBus, tmp_path: Path
) -> None:
    times: dict[tuple[int, int], list[float]] = {}

    def behave(envelope: events_pb2.Envelope) -> str:
        slot = (envelope.slot.group_index, envelope.slot.sample_index)
        times.setdefault(slot, []).append(time.monotonic())
        return "infra" if envelope.attempt < 3 else "score"

    made = replace(await context(bus, spec(max_steps=1), tmp_path, Report()), retry_seconds=0.05)
    await with_world(bus, behave, ReinforcementJob(made, RecordingCore({}), TASKS, []).run())
    assert len(times) == 4
    for asked in times.values():
        waits = [later - earlier for earlier, later in itertools.pairwise(asked)]
        assert waits[0] >= 0.05
        assert waits[1] >= 0.1
        assert waits[2] >= 0.2


async def test_event_that_the_grader_gave_up_on_is_tried_again(
    bus: MemoryBus, tmp_path: Path
) -> None:
    class GivesUp(World):
        async def tell(self, about: events_pb2.Envelope, payload: Any, source: str) -> None:
            if source == "grader" and about.attempt == 0 and about.slot.sample_index == 0:
                letter = dead_letter(
                    about,
                    consumer="grader",
                    sequence=about.slot.group_index + 1,
                    subject="hone.v1.rollout.finished.test-1",
                    delivery_count=6,
                    reason="the process ended",
                    clock=time.time,
                )
                await self.bus.publish(letter)
                return
            await super().tell(about, payload, source)

    core = RecordingCore({})
    job = ReinforcementJob(
        await context(bus, spec(max_steps=1), tmp_path, Report()), core, TASKS, []
    )
    await with_world(bus, always("score"), job.run(), world_type=GivesUp)
    assert [len(group) for group in core.steps[0]] == [2, 2]


async def test_evaluation_draws_at_its_own_temperature_and_the_last_policy_is_measured(
    bus: MemoryBus, tmp_path: Path
) -> None:
    run_spec = spec(max_steps=2).model_copy(update={"eval": EvalSpec(every_steps=2, samples=1)})
    job = ReinforcementJob(
        await context(bus, run_spec, tmp_path, Report()), RecordingCore({}), TASKS, TASKS[:2]
    )
    world = await with_world(bus, always("score"), job.run())
    drawn = {
        (
            t.Phase.EVALUATE if e.slot.phase == 3 else t.Phase.TRAIN
        ): e.rollout_requested.sampling.temperature
        for e in world.requested
    }
    assert drawn == {t.Phase.EVALUATE: 0.5, t.Phase.TRAIN: 1.0}
    assert sorted({e.slot.step for e in world.requested if e.slot.phase == 3}) == [0, 2]


async def test_evaluation_between_steps_tells_which_tasks_have_spread(
    bus: MemoryBus, tmp_path: Path
) -> None:
    run_spec = spec(max_steps=2).model_copy(update={"eval": EvalSpec(every_steps=1, samples=2)})
    report = Report()
    job = ReinforcementJob(
        await context(bus, run_spec, tmp_path, report), RecordingCore({}), TASKS, TASKS[:2]
    )
    await with_world(bus, always("score"), job.run())
    for metrics in report.metrics:
        assert (metrics["eval/pass@2"], metrics["eval/tasks/spread_share"]) == (1.0, 1.0)
        assert "pass@1" not in metrics


async def test_full_log_takes_no_new_work(tmp_path: Path) -> None:
    small = MemoryBus(max_bytes=40_000)
    made = await context(small, spec(max_steps=1, batch_size=8, group_size=16), tmp_path, Report())
    filler = spec_filler()
    while (await small.usage()).fraction < 0.8:
        await small.publish(next(filler))
    job = asyncio.create_task(ReinforcementJob(made, RecordingCore({}), TASKS, []).run())
    async with asyncio.timeout(10):
        while not any(e.HasField("run_step_planned") for e in await events(small)):
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
    assert not any(e.HasField("rollout_requested") for e in await events(small))
    made.stop.set()
    with pytest.raises(Stopped):
        await job
    await small.close()


def spec_filler() -> Iterator[events_pb2.Envelope]:
    for step in itertools.count():
        yield new_envelope(
            events_pb2.RunStepTrained(step=step, trained_rollout_ids=["x" * 500]),
            source="test",
            run_id="other",
            clock=time.time,
        )


async def test_run_of_which_nothing_can_be_carried_out_says_why(
    bus: MemoryBus, tmp_path: Path
) -> None:
    core = RecordingCore({})
    made = await context(bus, spec(max_steps=2), tmp_path, Report())

    async def fails() -> None:
        with pytest.raises(FailedPrecondition, match="none of 4 rollouts could be carried out"):
            await ReinforcementJob(made, core, TASKS, []).run()

    await with_world(bus, always("data"), fails())
    assert core.steps == []
