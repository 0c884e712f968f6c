"""Runs and their health: alarms, steps that are not finite, scores of versions, and going on after a rollback."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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

from eventbus.memory_bus import MemoryBus
from learner.health.run_health import AlarmStop
from learner.jobs.nonfinite import StepNotFinite
from learner.jobs.reinforce import ReinforcementJob
from learner.jobs.rows import RowJob, RowSteps
from learner.ports import Restored, ScoredRollout, Stopped
from learner.runs.checkpoints import RolledBack, Scores
from learner.training.errors import NonFiniteStep
from runspec.schema import EvalSpec, HealthSpec, RunSpec


def with_health(run_spec: RunSpec, **health: Any) -> RunSpec:
    return run_spec.model_copy(update={"health": HealthSpec(**health)})


def by_step(*scores: float) -> Callable[[events_pb2.Envelope], str]:
    return lambda envelope: f"={scores[envelope.slot.step]}"


class SpoiltCore(RecordingCore):
    """Cannot take the steps that hold a rollout of some group and sample."""

    def __init__(self, disk: dict[str, Restored], in_step: int) -> None:
        super().__init__(disk)
        self.in_step = in_step

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        ids = [rollout.rollout_id for group in groups for rollout in group]
        if len(self.steps) == self.in_step and ids:
            raise NonFiniteStep("the loss is nan", ids)
        return await super().rollout_step(groups, progress)


async def test_alarm_stops_the_run_after_a_step_that_is_saved_and_a_resume_goes_on(
    bus: MemoryBus, tmp_path: Path
) -> None:
    scores = [0.8] * 8 + [0.1] * 8
    run_spec = with_health(spec(max_steps=16), on_alarm="stop", window=3)
    disk: dict[str, Restored] = {}
    report = Report()

    async def stops() -> None:
        made = await context(bus, run_spec, tmp_path, report)
        with pytest.raises(AlarmStop, match="reward_collapse: the mean reward"):
            await ReinforcementJob(made, RecordingCore(disk), TASKS, []).run()

    await with_world(bus, by_step(*scores), stops())
    ((step, kind),) = report.alarms
    assert kind == "reward_collapse"
    assert disk["last"].step == step + 1 == len(report.steps)
    assert report.metrics[-1]["alarms/reward_collapse"] == 1.0
    made = await context(bus, run_spec, tmp_path, report, life=1)
    job = ReinforcementJob(made, RecordingCore(disk), TASKS, [])
    await with_world(bus, by_step(*scores), job.run())
    assert disk["last"].step == 16
    assert report.alarms[1:] == [(step, kind)]  # told again, which the run's file takes for one
    told = [e.run_step_trained.metrics for e in await events(bus) if e.HasField("run_step_trained")]
    assert sum("alarms/reward_collapse" in metrics for metrics in told) == 1


class KilledCore(RecordingCore):
    """Its process is killed once a step with an alarm is on disk and not told yet."""

    async def save(self, restored: Restored) -> None:
        await super().save(restored)
        if restored.state["last"] and restored.state["last"]["alarms"]:
            raise ConnectionError("killed")


async def test_alarm_stops_the_run_also_where_the_learner_was_killed_before_it_could(
    bus: MemoryBus, tmp_path: Path
) -> None:
    scores = [0.8] * 8 + [0.1] * 8
    run_spec = with_health(spec(max_steps=16), on_alarm="stop", window=3)
    disk: dict[str, Restored] = {}
    report = Report()

    async def lives() -> None:
        made = await context(bus, run_spec, tmp_path, report)
        with pytest.raises(ConnectionError, match="killed"):
            await ReinforcementJob(made, KilledCore(disk), TASKS, []).run()
        step = disk["last"].step
        for _ in range(2):
            # Killed again before the run's file said that it was stopped.
            made = await context(bus, run_spec, tmp_path, report)
            with pytest.raises(AlarmStop, match=f"in step {step}: reward_collapse"):
                await ReinforcementJob(made, RecordingCore(disk), TASKS, []).run()
        made = await context(bus, run_spec, tmp_path, report, life=1)
        await ReinforcementJob(made, RecordingCore(disk), TASKS, []).run()

    await with_world(bus, by_step(*scores), lives())
    assert disk["last"].step == 16


class KilledOverRows(RecordingCore):
    """The same over rows, which are forgotten as fast."""

    def __init__(self, disk: dict[str, Restored]) -> None:
        super().__init__(disk)
        self.likelihoods = iter([-1.0, -1.0, -2.0, -2.0])

    async def save(self, restored: Restored) -> None:
        await super().save(restored)
        if restored.state["pending"][-1]["alarms"]:
            raise ConnectionError("killed")


async def test_alarm_stops_a_run_over_rows_also_where_the_learner_was_killed_before_it_could(
    bus: MemoryBus, tmp_path: Path
) -> None:
    async def step(rows: Sequence[int], progress: Callable[[int, int], None]) -> dict[str, float]:
        return {"loss": 1.0}

    run_spec = with_health(
        spec(max_steps=6, checkpoint_every_steps=1), on_alarm="stop", off_task="x", every_steps=1
    )
    disk: dict[str, Restored] = {}
    steps = RowSteps(num_rows=8, step=step)
    made = await context(bus, run_spec, tmp_path, Report())
    with pytest.raises(ConnectionError, match="killed"):
        await RowJob(made, KilledOverRows(disk), steps).run()
    with pytest.raises(AlarmStop, match="in step 3: forgetting"):
        await RowJob(made, RecordingCore(disk), steps).run()
    assert disk["last"].step == 3


async def test_entropy_falls_without_an_alarm_where_rows_are_imitated(
    bus: MemoryBus, tmp_path: Path
) -> None:
    entropies = iter([1.5] * 3 + [0.1] * 5)

    async def step(rows: Sequence[int], progress: Callable[[int, int], None]) -> dict[str, float]:
        return {"entropy": next(entropies)}

    run_spec = with_health(spec(max_steps=8), on_alarm="stop", window=3)
    report = Report()
    made = await context(bus, run_spec.model_copy(update={"algorithm": "sft"}), tmp_path, report)
    await RowJob(made, RecordingCore({}), RowSteps(num_rows=8, step=step)).run()
    assert report.alarms == []


async def test_alarm_only_warns_by_default(bus: MemoryBus, tmp_path: Path) -> None:
    report = Report()
    run_spec = with_health(spec(max_steps=12), window=3)
    job = ReinforcementJob(
        await context(bus, run_spec, tmp_path, report), RecordingCore({}), TASKS, []
    )
    await with_world(bus, by_step(*[0.8] * 6, *[0.1] * 6), job.run())
    assert [kind for _, kind in report.alarms] == ["reward_collapse"]
    assert report.steps == list(range(12))


async def test_off_task_rows_are_measured_before_after_and_between_and_forgetting_is_told(
    bus: MemoryBus, tmp_path: Path
) -> None:
    report = Report()
    core = RecordingCore({})
    core.likelihoods = iter([-2.0, -2.02, -2.05, -2.2])
    run_spec = with_health(spec(max_steps=6), off_task="sft-x", every_steps=2)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    final: dict[str, float] = {}

    async def work() -> None:
        final.update(await job.run())

    await with_world(bus, always("score"), work())
    name = "health/off_task/logprob"
    assert [m.get(name) for m in report.metrics] == [-2.0, None, -2.02, None, -2.05, None]
    assert final[name] == -2.2
    assert final["health/off_task/change"] == pytest.approx(-0.1)
    assert report.alarms == [(6, "forgetting")]


async def test_step_that_is_not_finite_names_its_rollouts_and_a_resume_goes_on_without_them(
    bus: MemoryBus, tmp_path: Path
) -> None:
    disk: dict[str, Restored] = {}

    async def fails() -> None:
        made = await context(bus, spec(), tmp_path, Report())
        with pytest.raises(StepNotFinite) as caught:
            await ReinforcementJob(made, SpoiltCore(disk, 1), TASKS, []).run()
        spoilt = json.loads((tmp_path / "nonfinite.json").read_text())[0]["members"]
        assert len(spoilt) == 4
        assert all(rollout_id in str(caught.value) for rollout_id in spoilt)
        assert "step 2 is not finite: the loss is nan" in str(caught.value)

    world = await with_world(bus, always("score"), fails())
    assert disk["last"].step == 1
    spoilt = {e.rollout_id for e in world.requested if e.slot.step == 1}
    # The same life takes the step as it is, as after a crash; someone who resumes gives the rollouts up.
    again = await context(bus, spec(), tmp_path, Report())
    with pytest.raises(StepNotFinite):
        await ReinforcementJob(again, SpoiltCore(disk, 0), TASKS, []).run()
    resumed = await context(bus, spec(), tmp_path, Report(), life=1)
    core = SpoiltCore(disk, 0)
    await with_world(bus, always("score"), ReinforcementJob(resumed, core, TASKS, []).run())
    assert [sum(map(len, groups)) for groups in core.steps] == [0, 4]
    assert disk["last"].step == 3
    trained = [e.run_step_trained for e in await events(bus) if e.HasField("run_step_trained")]
    assert [step.step for step in trained] == [0, 1, 2]
    assert not spoilt & {i for step in trained for i in step.trained_rollout_ids}


async def test_versions_are_scored_by_what_they_earned(bus: MemoryBus, tmp_path: Path) -> None:
    run_spec = spec(max_steps=4).model_copy(update={"eval": EvalSpec(every_steps=2, samples=1)})

    def behave(envelope: events_pb2.Envelope) -> str:
        held_out = envelope.slot.phase == 3
        return f"={0.5 - envelope.slot.step / 10 if held_out else envelope.slot.step / 10}"

    made = await context(bus, run_spec, tmp_path, Report())
    job = ReinforcementJob(made, RecordingCore({}), TASKS, TASKS[:2])
    await with_world(bus, behave, job.run())
    scores = Scores(tmp_path / "checkpoints")
    assert [scores.of(version) for version in range(5)] == pytest.approx([0.5, 0.1, 0.3, 0.3, 0.1])
    assert scores.best(range(5)) == 0
    assert scores.best([1, 3]) == 3  # none of them was held out


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_run_goes_on_after_a_rollback_with_rising_versions_and_no_rollout_of_the_old_ones(
    bus: MemoryBus, tmp_path: Path, max_staleness: int
) -> None:
    run_spec = spec(max_steps=5, max_staleness=max_staleness).model_copy(
        update={"eval": EvalSpec(every_steps=3, samples=1)}
    )
    disk: dict[str, Restored] = {}
    report = Report()
    first = await context(bus, run_spec, tmp_path, report)

    async def until_the_fourth_step_is_under_way() -> None:
        job = asyncio.create_task(
            ReinforcementJob(first, RecordingCore(disk), TASKS, TASKS[:1]).run()
        )
        while not any(
            e.HasField("reward_assigned") and e.slot.step == 3 for e in await events(bus)
        ):
            await asyncio.sleep(0)
        first.stop.set()
        with pytest.raises(Stopped):
            await job

    def slow_in_step_3(envelope: events_pb2.Envelope) -> str:
        waits = envelope.slot.step == 3 and envelope.slot.sample_index == 1
        return "silent" if waits else "score"

    await with_world(bus, slow_in_step_3, until_the_fourth_step_is_under_way())
    last = disk["last"]
    assert last.step == 3
    rolled = RolledBack(
        request_id="r",
        step=3,
        version=last.policy_version + max_staleness + 1,
        from_version=last.policy_version,
        to_step=1,
        to_version=1,
    )
    state = {**last.state, "rollbacks": [asdict(rolled)]}
    disk["last"] = replace(last, policy_version=rolled.version, state=state)
    second = await context(bus, run_spec, tmp_path, report)
    core = RecordingCore(disk)
    job = ReinforcementJob(second, core, TASKS, TASKS[:1])

    # Those that were left hanging end now.
    late = World(bus, always("score"))
    for envelope in await events(bus):
        if envelope.HasField("rollout_requested") and slow_in_step_3(envelope) == "silent":
            await late.handle(_Delivery(envelope))
    await with_world(bus, always("score"), job.run())
    found = await events(bus)
    trained = [e.run_step_trained for e in found if e.HasField("run_step_trained")]
    assert [step.step for step in trained] == [0, 1, 2, 3, 4]
    versions = [step.policy_version for step in trained]
    assert versions == [1, 2, 3, rolled.version + 1, rolled.version + 2]
    acted = {
        e.rollout_id: e.rollout_requested.policy_version
        for e in found
        if e.HasField("rollout_requested")
    }
    for step in trained[3:]:
        assert all(acted[i] >= rolled.version for i in step.trained_rollout_ids)
    (told,) = [e.run_rolled_back for e in found if e.HasField("run_rolled_back")]
    assert (told.policy_version, told.to_policy_version, told.to_step) == (rolled.version, 1, 1)
    published = [e.policy_published.policy_version for e in found if e.HasField("policy_published")]
    assert published == sorted(published)
    assert len(trained[4].trained_rollout_ids) == 4


@dataclass
class _Delivery:
    envelope: events_pb2.Envelope
