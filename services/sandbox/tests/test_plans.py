"""What planned steps will need, from the events that tell it."""

import asyncio

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hone.common.v1 import run_spec_pb2
from hone.events.v1 import events_pb2

from eventbus.envelope import new_envelope
from eventbus.memory_bus import MemoryBus
from sandbox.fleet.plans import Plans, RunNeeds
from sandbox.publisher import consume

USES = RunNeeds(uses_sandboxes=True, template="")


@pytest.fixture
def plans(clock) -> Plans:
    return Plans(default_template="host", most=100, seconds=120.0, clock=clock)


def test_needs_add_up_and_are_bounded(plans, clock):
    plans.step_planned("plan-1", "a", 30, clock.now)
    plans.step_planned("plan-2", "b", 40, clock.now)
    assert plans.need("host") == 70
    plans.step_planned("plan-3", "b", 40, clock.now)
    assert plans.need("host") == 100
    assert plans.need("tools") == 0


def test_a_run_says_what_it_uses(plans, clock):
    plans.run_started("a", RunNeeds(uses_sandboxes=False, template=""))
    plans.run_started("b", RunNeeds(uses_sandboxes=True, template="tools"))
    for run_id in ("a", "b", "unknown"):
        plans.step_planned(f"plan-{run_id}", run_id, 3, clock.now)
    assert (plans.need("host"), plans.need("tools")) == (3, 3)


def test_a_need_is_used_up_oldest_step_first(plans, clock):
    plans.step_planned("plan-5", "a", 2, clock.now)
    clock.now += 100
    plans.step_planned("plan-6", "a", 3, clock.now)
    for _ in range(3):
        plans.used("a")
    assert plans.need("host") == 2
    clock.now += 30  # the first step's time is over, which matters no more
    assert plans.need("host") == 2
    for _ in range(9):
        plans.used("a")
    assert plans.need("host") == 0


def test_a_need_fades_and_an_old_one_never_counts(plans, clock):
    plans.step_planned("plan-7", "a", 5, clock.now - 119)
    plans.step_planned("plan-8", "b", 7, clock.now - 120)  # told again after a restart
    assert plans.need("host") == 5
    clock.now += 1
    assert plans.need("host") == 0


def test_a_plan_that_is_told_again_counts_once(plans, clock):
    plans.step_planned("plan", "a", 2, clock.now)
    plans.step_planned("plan", "a", 2, clock.now)
    assert plans.need("host") == 2
    plans.used("a")
    plans.used("a")
    plans.step_planned("plan", "a", 2, clock.now)
    assert plans.need("host") == 0


def test_a_finished_run_needs_nothing(plans, clock):
    plans.step_planned("plan-9", "a", 5, clock.now)
    plans.run_finished("a")
    assert plans.need("host") == 0


async def test_the_events_of_a_run_become_needs(suite, clock):
    bus, stop = MemoryBus(), asyncio.Event()
    consuming = asyncio.ensure_future(consume(bus, suite.fleet, suite.plans, stop))

    async def tell(payload, run_id: str, age: float = 0.0) -> None:
        event = new_envelope(
            payload, source="learner", run_id=run_id, rollout_id="", clock=lambda: clock.now - age
        )
        assert isinstance(event.create_time, Timestamp)
        await bus.publish(event)

    async def becomes(template: str, count: int) -> None:
        async with asyncio.timeout(5):
            while suite.plans.need(template) != count:
                await asyncio.sleep(0.001)

    def started(*tools: str, template: str = "") -> events_pb2.RunStarted:
        rollout = run_spec_pb2.RolloutSpec(tools=tools, sandbox_template=template)
        return events_pb2.RunStarted(spec=run_spec_pb2.RunSpec(rollout=rollout))

    def planned(tasks: int, group: int, step: int = 1) -> events_pb2.RunStepPlanned:
        ids = [f"t{number}" for number in range(tasks)]
        return events_pb2.RunStepPlanned(phase=2, step=step, task_ids=ids, group_size=group)

    await tell(planned(2, 4), "run-old", age=500.0)
    await tell(started(), "run-talk")
    await tell(planned(2, 4), "run-talk")
    await tell(started("bash", template="tools"), "run-tools")
    await tell(planned(2, 3), "run-tools")
    await tell(started("bash"), "run-a")
    await tell(planned(2, 4), "run-a")
    await becomes("host", 8)
    await becomes("tools", 6)
    async with asyncio.timeout(5):
        while suite.manager.stats().warm_count != 8:  # without waiting for the next tick
            await asyncio.sleep(0.001)
    await suite.create(suite.rollout_id(), run_id="run-a")
    assert suite.plans.need("host") == 7
    await tell(events_pb2.RunFinished(end=1), "run-a")
    await becomes("host", 0)
    assert suite.plans.need("tools") == 6
    stop.set()
    await consuming
