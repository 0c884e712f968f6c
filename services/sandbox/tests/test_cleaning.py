"""The ways in which a sandbox ends, each with its cause, and what happens to creates that are not done yet."""

import asyncio
import json

import pytest

from sandbox.fleet.reaper import tend
from sandbox.types import BoxFile, Caller, Command, Purpose, Role
from servicekit.errors import FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable

OPERATOR = Caller(rollout_id="", epoch=0, role=Role.OPERATOR)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def _ended_with(suite, backend, info, cause: str) -> None:
    assert backend.boxes[info.sandbox_id].destroyed
    assert suite.events.causes(info.sandbox_id) == [cause]
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.leaked_count) == (0, 0, 0)
    lines = map(json.loads, (suite.records._path).read_text().splitlines())
    (finish, told) = [line for line in lines if line["op"] == "finish"]
    assert (finish["cause"], finish["told"], told["told"]) == (cause, False, True)


async def test_destroyed_1_when_the_outcome_is_told(suite, backend):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    await suite.fleet.end_rollout(rollout_id)
    await _ended_with(suite, backend, info, "outcome")


async def test_destroyed_2_on_cancel_of_its_run(suite, backend):
    info = (await suite.create(suite.rollout_id())).info
    assert await suite.manager.destroy_by_run(OPERATOR, "run-1") == 1
    await _ended_with(suite, backend, info, "cancelled")


async def test_destroyed_2_on_request(suite, backend):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    owner = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    await suite.manager.destroy(owner, rollout_id, info.sandbox_id)
    await _ended_with(suite, backend, info, "requested")


async def test_destroyed_3_when_the_idle_lease_runs_out(suite, backend, clock):
    info = (await suite.create(suite.rollout_id(), idle_seconds=60.0)).info
    clock.now += 59.9
    await suite.fleet.expire()
    assert not backend.boxes[info.sandbox_id].destroyed
    clock.now += 0.1
    await suite.fleet.expire()
    await _ended_with(suite, backend, info, "idle")


async def test_destroyed_4_when_its_lifetime_is_over_however_busy(suite, backend, clock):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id, lifetime_seconds=100.0)).info
    owner = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    for number in range(4):
        clock.now += 24.9
        command = Command(exec_id=str(number), argv=("true",))
        await suite.manager.run(owner, rollout_id, info.sandbox_id, command)
        suite.manager.extend(owner, rollout_id, info.sandbox_id, 1000.0)
        await suite.fleet.expire()
    assert not backend.boxes[info.sandbox_id].destroyed
    clock.now += 0.5
    await suite.fleet.expire()
    await _ended_with(suite, backend, info, "lifetime")
    assert suite.manager.stats().rollout_timeout_rate == 1.0


async def test_destroyed_5_with_the_manager(suite, backend):
    info = (await suite.create(suite.rollout_id())).info
    await suite.manager.drain()
    await _ended_with(suite, backend, info, "manager_lost")


async def test_destroyed_5_with_what_held_it(suite, backend):
    info = (await suite.create(suite.rollout_id())).info
    backend.boxes[info.sandbox_id].on_lost(info.sandbox_id)
    await until(lambda: suite.events.causes(info.sandbox_id))
    await _ended_with(suite, backend, info, "manager_lost")


async def test_the_leak_gauge_is_live_minus_expected(suite, backend):
    await suite.create(suite.rollout_id())
    box = (await suite.create(suite.rollout_id())).info
    await suite.fleet.end_rollout(box.key.rollout_id)
    backend.boxes[box.sandbox_id].destroyed = False  # a destruction that did not take
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.leaked_count) == (2, 1, 1)


async def test_the_cancel_of_a_run_reaches_creates_that_wait_and_that_are_under_way(
    backend, clock, tmp_path, suite_maker
):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=1)
    await suite.manager.start()
    done = (await suite.create(suite.rollout_id(), run_id="run-a")).info
    backend.gate.clear()
    under_way = asyncio.ensure_future(suite.create(suite.rollout_id(), run_id="run-a"))
    await until(lambda: backend.under_way == 1)
    again = suite.rollout_id()
    queued = asyncio.ensure_future(suite.create(again, run_id="run-a"))
    other = asyncio.ensure_future(suite.create(suite.rollout_id(), run_id="run-b"))
    await until(lambda: suite.manager.stats().queued_count == 2)
    assert await suite.manager.destroy_by_run(OPERATOR, "run-a") == 3
    for stopped in (under_way, queued):
        with pytest.raises(FailedPrecondition) as caught:
            await stopped
        assert caught.value.reason == "RUN_CANCELLED"
    backend.gate.set()
    assert (await other).created
    assert suite.events.causes(done.sandbox_id) == ["cancelled"]
    assert backend.live_count() == 1
    assert suite.manager.stats().leaked_count == 0
    assert (await suite.create(again, run_id="run-a")).created  # nothing was ever made for it
    await suite.manager.close()


async def test_the_cancel_of_a_run_reaches_a_create_that_is_being_told(suite, backend):
    suite.events.gate.clear()
    creating = asyncio.ensure_future(suite.create(suite.rollout_id(), run_id="run-a"))
    await until(lambda: suite.events.being_told == 1)
    assert await suite.manager.destroy_by_run(OPERATOR, "run-a") == 1
    suite.events.gate.set()
    with pytest.raises(FailedPrecondition) as caught:
        await creating
    assert caught.value.reason == "RUN_CANCELLED"
    assert backend.live_count() == 0


async def test_an_outcome_takes_its_create_out_of_the_queue(backend, clock, tmp_path, suite_maker):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=1)
    await suite.manager.start()
    backend.gate.clear()
    first = asyncio.ensure_future(suite.create(suite.rollout_id()))
    await until(lambda: backend.under_way == 1)
    ended = suite.rollout_id()
    queued = asyncio.ensure_future(suite.create(ended))
    await until(lambda: suite.manager.stats().queued_count == 1)
    await suite.fleet.end_rollout(ended)
    with pytest.raises(FailedPrecondition) as caught:
        await queued
    assert caught.value.reason == "ROLLOUT_ENDED"
    assert suite.manager.stats().queued_count == 0
    backend.gate.set()
    await first
    assert len(backend.specs) == 1
    await suite.manager.close()


async def test_a_create_leaves_the_queue_with_the_last_caller_that_wants_it(
    backend, clock, tmp_path, suite_maker
):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=1)
    await suite.manager.start()
    backend.gate.clear()
    first = asyncio.ensure_future(suite.create(suite.rollout_id()))
    await until(lambda: backend.under_way == 1)
    wanted = suite.rollout_id()
    callers = [asyncio.ensure_future(suite.create(wanted)) for _ in range(2)]
    await until(lambda: suite.manager.stats().queued_count == 1)
    callers[0].cancel()
    await asyncio.wait([callers[0]])
    assert suite.manager.stats().queued_count == 1  # the other caller still wants it
    callers[1].cancel()
    await asyncio.wait([callers[1]])
    await until(lambda: suite.manager.stats().queued_count == 0)
    back = asyncio.ensure_future(suite.create(wanted))
    first.cancel()  # has begun: goes on without its caller
    backend.gate.set()
    assert (await back).created
    assert backend.live_count() == 2
    assert [what for what, _, _ in suite.events.log] == ["created"] * 2
    await suite.manager.close()


async def test_a_create_that_failed_may_be_repeated(suite, backend):
    rollout_id = suite.rollout_id()
    backend.failures.append(ResourceExhausted("429", retry_after_seconds=1))
    with pytest.raises(ResourceExhausted):
        await suite.create(rollout_id)
    with pytest.raises(Unavailable):
        await suite.create(rollout_id, files=(BoxFile(path="/work/refused", content=b""),))
    assert (await suite.create(rollout_id)).created
    assert [what for what, _, _ in suite.events.log] == ["created"]


async def test_one_that_dies_while_its_files_are_written_is_not_handed_over(suite, backend):
    rollout_id = suite.rollout_id()
    backend.gate.clear()
    creating = asyncio.ensure_future(suite.create(rollout_id))
    await until(lambda: backend.under_way == 1)
    backend.dies_at_birth = True
    backend.gate.set()
    with pytest.raises(Unavailable) as caught:
        await creating
    assert caught.value.reason == "SANDBOX_LOST"
    assert backend.live_count() == 0
    assert suite.manager.stats().expected_count == 0


async def test_pollution_is_told_with_the_end(suite, backend):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id, purpose=Purpose.GRADE)).info
    backend.boxes[info.sandbox_id].is_polluted = True
    await suite.fleet.end_rollout(rollout_id)
    assert suite.records.get(info.sandbox_id).polluted
    assert suite.manager.stats().polluted_count == 1


async def test_a_backend_that_refuses_to_be_reaped_does_not_end_the_reaper(suite, backend):
    backend.reap_failures = [
        PermissionDenied("nothing is listed for us"),
        Unavailable("no answer"),
    ]
    before, stop = backend.reaped, asyncio.Event()
    tending = asyncio.ensure_future(tend(suite.fleet, stop, sweep_seconds=0.01, reap_seconds=0.01))
    async with asyncio.timeout(5):
        while backend.reaped < before + 3:
            await asyncio.sleep(0.01)
    stop.set()
    await tending
    assert not backend.reap_failures
