"""Rollouts beside training: how much is asked for, how old what is trained may be, and that no death changes either."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hone.events.v1 import events_pb2
from learner_world import (
    TASKS,
    RecordingCore,
    Report,
    always,
    context,
    events,
    spec,
    with_world,
)

from eventbus.memory_bus import MemoryBus
from learner.jobs.reinforce import ReinforcementJob
from learner.ports import Restored, ScoredRollout

TRAIN = 2
"""PHASE_TRAIN on the wire."""


def steps_open_at_requests(log: Sequence[events_pb2.Envelope]) -> dict[int, int]:
    """By step: the most steps that were asked for and not trained when one of its rollouts was requested."""
    asked: set[int] = set()
    trained: set[int] = set()
    most: dict[int, int] = {}
    for event in log:
        if event.HasField("run_step_trained"):
            trained.add(event.run_step_trained.step)
        elif event.HasField("rollout_requested") and event.slot.phase == TRAIN:
            asked.add(event.slot.step)
            step = event.slot.step
            most[step] = max(most.get(step, 0), len(asked - trained))
    return most


def assert_exact(log: Sequence[events_pb2.Envelope], *, steps: int, max_staleness: int) -> None:
    """Each slot asked for once per attempt and trained at most once, in order, and nothing older than allowed."""
    attempts = Counter(
        (e.slot.phase, e.slot.step, e.slot.group_index, e.slot.sample_index, e.attempt)
        for e in log
        if e.HasField("rollout_requested")
    )
    assert set(attempts.values()) == {1}
    tasks: dict[tuple[int, int, int], set[str]] = {}
    for e in log:
        if e.HasField("rollout_requested"):
            group = (e.slot.phase, e.slot.step, e.slot.group_index)
            tasks.setdefault(group, set()).add(e.rollout_requested.task.task_id)
    assert all(len(found) == 1 for found in tasks.values())
    trained = [e.run_step_trained for e in log if e.HasField("run_step_trained")]
    assert [step.step for step in trained] == list(range(steps))
    assert [step.policy_version for step in trained] == list(range(1, steps + 1))
    slots = {e.rollout_id: e.slot for e in log if e.HasField("rollout_requested")}
    acted = {
        e.rollout_id: e.rollout_requested.policy_version
        for e in log
        if e.HasField("rollout_requested")
    }
    ids = [rollout_id for step in trained for rollout_id in step.trained_rollout_ids]
    used = Counter(
        (slots[i].step, slots[i].group_index, slots[i].sample_index, slots[i].phase) for i in ids
    )
    assert set(used.values()) == {1}
    for step in trained:
        for rollout_id in step.trained_rollout_ids:
            assert slots[rollout_id].step == step.step
            assert 0 <= step.step - acted[rollout_id] <= max_staleness
    published = [e.policy_published.policy_version for e in log if e.HasField("policy_published")]
    assert published == sorted(published)
    assert max(steps_open_at_requests(log).values()) <= max_staleness + 1


class WaitingCore(RecordingCore):
    """Ends no update before the log holds a request of the step that is `ahead`, where there will be one."""

    def __init__(self, bus: MemoryBus, *, ahead: int, steps: int) -> None:
        super().__init__({})
        self.bus = bus
        self.ahead = ahead
        self.last = steps - 1

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        step = min(len(self.steps) + self.ahead, self.last)
        while not any(
            e.HasField("rollout_requested") and e.slot.step == step for e in await events(self.bus)
        ):
            await asyncio.sleep(0)
        return await super().rollout_step(groups, progress)


@pytest.mark.parametrize("max_staleness", [1, 2])
async def test_rollouts_go_on_while_a_step_trains_and_never_of_more_steps_than_allowed(
    bus: MemoryBus, tmp_path: Path, max_staleness: int
) -> None:
    steps = 6
    core, report = WaitingCore(bus, ahead=max_staleness, steps=steps), Report()
    run_spec = spec(max_steps=steps, max_staleness=max_staleness)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, always("score"), job.run())
    log = await events(bus)
    assert_exact(log, steps=steps, max_staleness=max_staleness)
    assert max(steps_open_at_requests(log).values()) == max_staleness + 1
    assert [m["staleness/max"] for m in report.metrics] == [
        min(step, max_staleness) for step in range(steps)
    ]
    assert report.metrics[-1]["staleness/mean"] == max_staleness
    assert all(m["rollouts/too_stale"] == 0 for m in report.metrics)
    assert all(0 <= m["overlap/share"] <= 1 for m in report.metrics)


async def test_synchronous_run_asks_for_a_step_only_when_the_one_before_is_trained(
    bus: MemoryBus, tmp_path: Path
) -> None:
    report = Report()
    job = ReinforcementJob(
        await context(bus, spec(), tmp_path, report), RecordingCore({}), TASKS, []
    )
    await with_world(bus, always("score"), job.run())
    log = await events(bus)
    assert_exact(log, steps=3, max_staleness=0)
    assert all(m["staleness/max"] == 0 for m in report.metrics)


@pytest.mark.parametrize(
    ("what", "figure"),
    [("stale", "rollouts/too_stale"), ("future", "rollouts/unknown_version")],
)
async def test_rollout_of_a_version_that_does_not_count_is_counted_and_its_slot_tried_again(
    bus: MemoryBus, tmp_path: Path, what: str, figure: str
) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        odd = envelope.slot.step == 1 and envelope.slot.sample_index == 0
        return what if odd and envelope.attempt == 0 else "score"

    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=2, group_size=3)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, behave, job.run())
    assert [m[figure] for m in report.metrics] == [0.0, 2.0]
    assert [[len(group) for group in step] for step in core.steps] == [[3, 3], [3, 3]]
    assert_exact(await events(bus), steps=2, max_staleness=0)


async def test_engine_that_only_acts_with_old_weights_never_has_a_vote(
    bus: MemoryBus, tmp_path: Path
) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        return "stale" if envelope.slot.step == 1 and envelope.slot.sample_index == 0 else "score"

    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=2, group_size=3)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, behave, job.run())
    assert [[len(group) for group in step] for step in core.steps] == [[3, 3], [2, 2]]
    assert report.metrics[1]["rollouts/abandoned"] == 2.0


async def test_groups_without_spread_are_replaced_by_groups_of_other_tasks(
    bus: MemoryBus, tmp_path: Path
) -> None:
    def behave(envelope: events_pb2.Envelope) -> str:
        return "flat" if envelope.slot.group_index in (1, 2) else "score"

    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=2, max_resampled_groups=3)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, behave, job.run())
    log = await events(bus)
    assert_exact(log, steps=2, max_staleness=0)
    for step in range(2):
        tasks = {
            e.slot.group_index: e.rollout_requested.task.task_id
            for e in log
            if e.HasField("rollout_requested") and e.slot.step == step
        }
        assert sorted(tasks) == [0, 1, 2, 3]
        assert len(set(tasks.values())) == 4
        assert [{r.score for r in group} for group in core.steps[step]] == [{0.0, 0.5}] * 2
        assert report.metrics[step]["groups/resampled"] == 2.0
        assert report.metrics[step]["frac_reward_zero_std"] == 0.5


@pytest.mark.parametrize("turn_rewards", [True, False])
async def test_group_whose_turns_differ_teaches_where_turns_are_rewarded(
    bus: MemoryBus, tmp_path: Path, turn_rewards: bool
) -> None:
    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=1, max_resampled_groups=1, turn_rewards=turn_rewards)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    await with_world(bus, always("turns"), job.run())
    assert report.metrics[0]["groups/resampled"] == (0.0 if turn_rewards else 1.0)
    assert [len(group) for group in core.steps[0]] == ([2, 2] if turn_rewards else [])


async def test_resampling_ends_at_its_bound(bus: MemoryBus, tmp_path: Path) -> None:
    core, report = RecordingCore({}), Report()
    run_spec = spec(max_steps=1, max_resampled_groups=3)
    job = ReinforcementJob(await context(bus, run_spec, tmp_path, report), core, TASKS, [])
    world = await with_world(bus, always("flat"), job.run())
    assert len(world.requested) == (2 + 3) * 2
    assert core.steps == [[]]
    assert report.metrics[0]["groups/resampled"] == 3.0


class Fate:
    """Lets a run die at its nth call of the log or the core, before or after the call has had its effect."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0
        self.died = asyncio.Event()

    def wrap(self, inner: Any) -> Any:
        return Mortal(inner, self)


class Mortal:
    """Passes calls on until fate strikes; then nothing that the process does reaches anything any more."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("facts", "interrupt") or not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._pass()
            result = await found(*args, **kwargs)
            await self._pass()
            return result

        return call

    async def _pass(self) -> None:
        self._fate.calls += 1
        if self._fate.died.is_set() or self._fate.calls == self._fate.at:
            self._fate.died.set()
            await asyncio.Event().wait()


def restless(seed: int) -> Callable[[events_pb2.Envelope], str]:
    """Behaviour that hangs on the slot and the attempt alone: faults, groups without spread, poison."""

    def behave(envelope: events_pb2.Envelope) -> str:
        slot = envelope.slot
        task = envelope.rollout_requested.task.task_id
        if task == "t3":
            return "data"
        rng = random.Random(f"{seed}/{slot.step}/{slot.group_index}/{slot.sample_index}")
        if envelope.attempt == 0 and rng.random() < 0.3:
            return "infra"
        flat = random.Random(f"{seed}/{slot.step}/{slot.group_index}").random() < 0.4
        return "flat" if flat else "score"

    return behave


async def one_life(
    bus: MemoryBus, folder: Path, train: dict[str, Any], disk: dict[str, Restored], fate: Fate
) -> bool:
    """Runs until the end or the death; says whether it came to the end."""
    made = await context(bus, spec(**train), folder, Report())
    mortal = type(made)(
        **{name: getattr(made, name) for name in made.__slots__} | {"log": fate.wrap(made.log)}
    )
    job = ReinforcementJob(mortal, fate.wrap(RecordingCore(disk)), TASKS, [])
    work = asyncio.create_task(job.run())
    death = asyncio.create_task(fate.died.wait())
    await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, death):
        if not task.done():
            task.cancel()
    ended, _ = await asyncio.gather(work, death, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended
    return not isinstance(ended, BaseException)


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1, 2])
async def test_run_that_dies_at_any_call_goes_on_exactly(
    tmp_path: Path, max_staleness: int
) -> None:
    train = {"max_steps": 3, "max_staleness": max_staleness, "max_resampled_groups": 2}
    at, whole = 0, False
    while not whole:
        at += 1
        bus = MemoryBus()
        disk: dict[str, Restored] = {}

        async def lives(
            bus: MemoryBus = bus, disk: dict[str, Restored] = disk, at: int = at
        ) -> None:
            nonlocal whole
            whole = await one_life(bus, tmp_path, train, disk, Fate(at))
            if not whole:
                assert await one_life(bus, tmp_path, train, disk, Fate(0))

        await with_world(bus, restless(5), lives())
        assert_exact(await events(bus), steps=3, max_staleness=max_staleness)
        await bus.close()
    assert at > 60


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("seed", range(8))
async def test_run_that_dies_again_and_again_goes_on_exactly(
    bus: MemoryBus, tmp_path: Path, seed: int, max_staleness: int
) -> None:
    rng = random.Random(seed)
    train = {"max_steps": 6, "max_staleness": max_staleness, "max_resampled_groups": 2}
    disk: dict[str, Restored] = {}

    async def lives() -> None:
        for _ in range(12):
            if await one_life(bus, tmp_path, train, disk, Fate(rng.randint(1, 60))):
                return
        assert await one_life(bus, tmp_path, train, disk, Fate(0))

    await with_world(bus, restless(seed), lives())
    assert_exact(await events(bus), steps=6, max_staleness=max_staleness)


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_rollouts_of_weights_that_were_given_up_are_made_again(
    bus: MemoryBus, tmp_path: Path, max_staleness: int
) -> None:
    train = {"max_steps": 4, "max_staleness": max_staleness}
    disk: dict[str, Restored] = {}
    saves = 0

    class Stops(RecordingCore):
        async def rollout_step(self, *args: Any) -> dict[str, float]:
            if saves == 2:
                fate.died.set()
                await asyncio.Event().wait()
            return await super().rollout_step(*args)

        async def save(self, restored: Restored) -> None:
            nonlocal saves
            saves = restored.step
            await super().save(restored)

    fate = Fate(0)
    made = await context(bus, spec(**train), tmp_path, Report())

    async def lives() -> None:
        # The first life ends when every rollout of step 2 is there; then the run is taken back.
        work = asyncio.create_task(ReinforcementJob(made, Stops(disk), TASKS, []).run())
        await fate.died.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        last = disk["last"]
        assert last.step == 2
        gap = max_staleness + 1
        disk["last"] = replace(last, policy_version=last.policy_version + gap)
        again = await context(bus, spec(**train), tmp_path, report)
        await ReinforcementJob(again, core, TASKS, []).run()

    core, report = RecordingCore(disk), Report()
    await with_world(bus, always("score"), lives())
    acted = {
        e.rollout_id: e.rollout_requested.policy_version
        for e in await events(bus)
        if e.HasField("rollout_requested")
    }
    assert [[len(group) for group in step] for step in core.steps] == [[2, 2], [2, 2]]
    trained = [r.rollout_id for step in core.steps for group in step for r in group]
    assert {acted[i] for i in trained} <= {2 + max_staleness + 1, 2 + max_staleness + 2}
    assert report.metrics[-2]["rollouts/too_stale"] == 4.0
