"""The warm pool: what is made ahead is used once, gives way, never leaks and is not told of before it is somebody's."""

import asyncio
import json
from dataclasses import replace

import pytest

from sandbox.backends.protocol import BackendInfo
from sandbox.fleet.records import Records
from sandbox.types import MIB, BoxFile, Caller, Cause, Feature, Limits, Purpose, Role, Template
from servicekit.errors import ResourceExhausted, Unavailable

LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=64 * MIB, shm_bytes=16 * MIB)
HOST = Template(limits=LIMITS, warm=3)
ONE = replace(HOST, warm=1)
TOOLS = Template(name="tools", limits=LIMITS, env={"LANG": "C.UTF-8"})


@pytest.fixture
async def make(backend, clock, tmp_path, suite_maker):
    """Starts managers over the scripted backend; closes them."""
    made = []

    async def start(**settings):
        settings.setdefault("templates", {"host": HOST, "tools": TOOLS})
        suite = suite_maker(backend, tmp_path, clock, **settings)
        await suite.manager.start()
        made.append(suite)
        return suite

    yield start
    backend.gate.set()
    for box in backend.boxes.values():
        box.claiming.set()
    for suite in made:
        await suite.manager.close()


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def filled(suite, count: int) -> None:
    await suite.fleet.expire()
    await until(lambda: suite.manager.stats().warm_count == count)


async def take(suite, template: Template = HOST, **changes):
    fields = {"template": template, "limits": LIMITS} | changes
    return (await suite.create(suite.rollout_id(), **fields)).info


async def test_a_create_is_answered_from_the_pool_and_the_pool_fills_again(make, backend):
    suite = await make()
    await filled(suite, 3)
    assert [spec.owner for spec in backend.specs] == [None] * 3
    assert suite.events.log == []
    infos = [await take(suite) for _ in range(3)]
    assert len(backend.specs) == 3  # nothing was made for them
    assert {info.sandbox_id for info in infos} == set(backend.boxes)
    assert all(info.warm and info.template == "host" for info in infos)
    cold = await take(suite)
    assert not cold.warm
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.leaked_count) == (4, 4, 0)
    assert (stats.warm_count, stats.warm_hit_count, stats.created_count) == (0, 3, 4)
    await filled(suite, 3)
    assert suite.manager.stats().live_count == 4


async def test_files_env_and_owner_come_with_the_claim(make, backend):
    suite = await make(templates={"host": HOST, "tools": replace(TOOLS, warm=1)})
    await filled(suite, 4)
    files = (BoxFile(path="/work/a", content=b"x"),)
    info = await take(suite, replace(TOOLS, warm=1), files=files, env={"B": "c"})
    assert info.warm
    box = backend.boxes[info.sandbox_id]
    assert box.files == list(files)
    assert [(o.rollout_id, o.run_id, o.purpose) for o in box.owners] == [
        (info.key.rollout_id, "run-1", Purpose.AGENT)
    ]
    env = suite.fleet.find(info.sandbox_id).env
    assert (env["LANG"], env["B"]) == ("C.UTF-8", "c")


async def test_only_what_is_exactly_asked_for_is_taken(make, tmp_path):
    suite = await make()
    await filled(suite, 3)
    snapshot = {"snapshot_id": "before", "snapshot": tmp_path / "before"}
    spec = suite.spec(suite.rollout_id(), template=HOST, limits=LIMITS, **snapshot)
    copy = await suite.fleet.obtain(spec, 1)
    others = [
        await take(suite, TOOLS),
        await take(suite, limits=replace(LIMITS, cpus=2.0)),
        await take(suite, network_profile="open"),
        await take(suite, replace(HOST, rootfs="/other")),
        copy.info,
    ]
    assert [info.warm for info in others] == [False] * 5
    assert suite.manager.stats().warm_count == 3


async def test_a_used_one_never_comes_back(make, backend):
    suite = await make(templates={"host": ONE})
    seen = set()
    for _ in range(5):
        await filled(suite, 1)
        info = await take(suite, ONE)
        assert info.warm
        assert info.sandbox_id not in seen
        seen.add(info.sandbox_id)
        await suite.fleet.end_rollout(info.key.rollout_id)
        assert backend.boxes[info.sandbox_id].destroyed


async def test_one_that_cannot_be_claimed_is_destroyed_and_the_next_is_taken(make, backend):
    suite = await make()
    await filled(suite, 3)
    first, second, third = backend.boxes.values()
    first.spoilt = second.spoilt = True
    info = await take(suite)
    assert info.sandbox_id == third.sandbox_id
    assert first.destroyed and second.destroyed
    assert [what for what, _, _ in suite.events.log] == ["created"]
    assert suite.manager.stats().leaked_count == 0
    assert suite.records.get(first.sandbox_id) is None


async def test_when_none_can_be_claimed_one_is_made(make, backend):
    suite = await make()
    await filled(suite, 3)
    for box in backend.boxes.values():
        box.spoilt = True
    info = await take(suite)
    assert not info.warm
    assert backend.live_count() == 1


async def test_one_that_dies_during_the_claim_is_not_handed_over(make, backend):
    suite = await make(templates={"host": ONE})
    await filled(suite, 1)
    (box,) = backend.boxes.values()
    box.claiming.clear()
    taking = asyncio.ensure_future(take(suite, ONE))
    await until(lambda: box.owners)
    box.on_lost(box.sandbox_id)
    box.claiming.set()
    info = await taking
    assert info.sandbox_id != box.sandbox_id
    assert box.destroyed


async def test_the_dead_are_dropped_and_a_backend_that_fails_is_left_alone(make, backend, clock):
    suite = await make()
    await filled(suite, 3)
    for box in list(backend.boxes.values())[:2]:
        box.on_lost(box.sandbox_id)
    assert suite.manager.stats().warm_count == 1
    tries = len(backend.specs)
    await suite.fleet.expire()
    assert len(backend.specs) == tries  # two failures: a pause of two seconds
    clock.now += 2.0
    await filled(suite, 3)
    assert backend.live_count() == 3
    assert suite.events.log == []
    backend.failures = [Unavailable("no")] * 1000
    backend.boxes[max(backend.boxes)].on_lost(max(backend.boxes))
    for _ in range(300):  # five minutes in which nothing can be made
        clock.now += 1.0
        await suite.fleet.expire()
        for _ in range(20):
            await asyncio.sleep(0)
    assert 4 < len(backend.specs) - tries < 40
    backend.failures.clear()
    clock.now += 60.0
    await filled(suite, 3)


async def test_what_is_asked_for_goes_before_what_is_made_ahead(make, backend):
    suite = await make(parallel_creates=2)
    backend.gate.clear()
    busy = [asyncio.ensure_future(take(suite)) for _ in range(2)]
    await until(lambda: backend.under_way == 2)
    await suite.fleet.expire()  # the pool wants three
    asked = [asyncio.ensure_future(take(suite, TOOLS)) for _ in range(4)]
    await until(lambda: suite.manager.stats().queued_count == 4)
    backend.gate.set()
    await asyncio.gather(*busy, *asked)
    await until(lambda: suite.manager.stats().warm_count == 3)
    owned = [spec.owner is not None for spec in backend.specs]
    assert owned == [True] * 6 + [False] * 3


async def test_the_pool_takes_no_more_than_the_room_and_gives_way(make, backend):
    suite = await make(memory_budget_bytes=5 * LIMITS.memory_bytes)
    await take(suite, TOOLS)
    await filled(suite, 3)
    infos = [await take(suite, TOOLS) for _ in range(3)]  # the last two need the room of warm ones
    assert not any(info.warm for info in infos)
    assert suite.manager.stats().warm_count == 1
    await suite.fleet.expire()
    assert suite.manager.stats().warm_count == 1  # no room to fill
    await take(suite, TOOLS)
    with pytest.raises(ResourceExhausted, match="budget") as caught:
        await take(suite)
    assert caught.value.retry_after_seconds > 0
    stats = suite.manager.stats()
    assert (stats.warm_count, stats.live_count, backend.live_count()) == (0, 5, 5)
    assert [what for what, _, _ in suite.events.log] == ["created"] * 5


async def test_what_is_being_made_ahead_gives_way_too(make, backend):
    suite = await make(memory_budget_bytes=3 * LIMITS.memory_bytes)
    backend.gate.clear()
    await suite.fleet.expire()
    await until(lambda: backend.under_way == 3)
    asking = asyncio.ensure_future(take(suite, TOOLS))
    await until(lambda: any(spec.owner is not None for spec in backend.specs))
    backend.gate.set()
    assert not (await asking).warm


async def test_a_warm_one_whose_end_hangs_does_not_hang_the_create(make, backend):
    suite = await make(
        templates={"host": ONE, "tools": TOOLS},
        memory_budget_bytes=LIMITS.memory_bytes,
        queue_seconds=0.05,
    )
    await filled(suite, 1)
    (box,) = backend.boxes.values()
    ending, destroy = asyncio.Event(), box.destroy

    async def slow() -> None:
        await ending.wait()
        await destroy()

    box.destroy = slow
    async with asyncio.timeout(5):
        with pytest.raises(ResourceExhausted, match="budget"):
            await take(suite, TOOLS)
    ending.set()
    await until(lambda: box.destroyed)
    assert (await take(suite, TOOLS)).template == "tools"


async def test_warm_ones_give_way_where_memory_is_really_short(make, backend):
    free = 1 << 30
    suite = await make(reserve_bytes=1 << 20, available_bytes=lambda: free)
    await filled(suite, 3)
    free = 0
    with pytest.raises(ResourceExhausted, match="memory are free"):
        await take(suite, TOOLS)
    assert backend.live_count() == 0


async def test_a_drained_pool_falls_through_to_a_queue_that_answers(make, backend):
    suite = await make(parallel_creates=1, queue_seconds=0.05)
    await filled(suite, 3)
    assert all([(await take(suite)).warm for _ in range(3)])
    backend.gate.clear()
    first = asyncio.ensure_future(take(suite))
    await until(lambda: backend.under_way == 1)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*(take(suite) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(answer, ResourceExhausted) for answer in answers)
    assert all(answer.retry_after_seconds > 0 for answer in answers)
    backend.gate.set()
    assert not (await first).warm


async def test_a_planned_step_fills_the_pool_which_empties_as_it_is_used(make, clock, backend):
    suite = await make(templates={"host": replace(HOST, warm=0)}, warm_max=6)
    suite.plans.step_planned("plan-1", "run-1", 4, clock.now)
    suite.plans.step_planned("plan-2", "run-2", 4, clock.now)
    await filled(suite, 6)  # eight are needed, six are allowed
    for _ in range(4):
        assert (await take(suite, replace(HOST, warm=0), idle_seconds=600.0)).warm
    await suite.fleet.expire()
    assert suite.manager.stats().warm_count == 2
    await filled(suite, 4)  # what the other run still needs
    clock.now += 121  # a step that does not come
    await suite.fleet.expire()
    await until(lambda: backend.live_count() == 4)
    assert suite.manager.stats().warm_count == 0


async def test_a_finished_run_needs_nothing(make, clock, backend):
    suite = await make(templates={"host": replace(HOST, warm=0)})
    suite.plans.step_planned("plan-3", "run-1", 4, clock.now)
    await filled(suite, 4)
    suite.plans.run_finished("run-1")
    await suite.fleet.expire()
    await until(lambda: backend.live_count() == 0)


async def test_one_that_stood_too_long_is_replaced(make, clock, backend):
    suite = await make()
    await filled(suite, 3)
    old = set(backend.boxes)
    clock.now += 3601
    await suite.fleet.expire()
    await filled(suite, 3)
    assert all(backend.boxes[sandbox_id].destroyed for sandbox_id in old)
    assert backend.live_count() == 3


async def test_a_drain_empties_the_pool_and_turns_the_queue_away(make, backend):
    suite = await make(parallel_creates=1)
    await filled(suite, 3)
    info = await take(suite)
    backend.gate.clear()
    making = asyncio.ensure_future(take(suite, TOOLS))
    await until(lambda: backend.under_way == 1)
    queued = asyncio.ensure_future(take(suite, TOOLS))
    await until(lambda: suite.manager.stats().queued_count == 1)
    draining = asyncio.ensure_future(suite.manager.drain())
    with pytest.raises(Unavailable) as caught:
        await queued
    assert caught.value.reason == "DRAINING"
    await until(lambda: suite.manager.stats().warm_count == 0)
    backend.gate.set()
    await making
    await draining
    await suite.fleet.expire()
    assert backend.live_count() == 0
    assert suite.events.causes(info.sandbox_id) == [Cause.MANAGER_LOST]
    told = {who for _, who, _ in suite.events.log}
    assert len(told) == 2  # the two that were never anybody's were not told of


async def test_a_backend_without_the_feature_gets_no_pool(make, backend, clock):
    async def start() -> BackendInfo:
        features = frozenset(Feature) - {Feature.WARM_POOL}
        return BackendInfo(backend="scripted", isolation="none", features=features)

    backend.start = start
    suite = await make()
    suite.plans.step_planned("plan-4", "run-1", 4, clock.now)
    await suite.fleet.expire()
    assert not (await take(suite)).warm
    assert len(backend.specs) == 1


async def test_the_reaper_knows_the_pools_own(make, backend):
    suite = await make()
    await filled(suite, 3)
    known = []

    async def reap(ids: frozenset[str]) -> int:
        known.append(ids)
        return 0

    backend.reap = reap
    info = await take(suite)
    await suite.fleet.reap()
    assert known == [frozenset(backend.boxes)]
    assert info.sandbox_id in known[0]


@pytest.mark.parametrize("moment", ["filling", "ready", "claiming", "claimed", "gone"])
async def test_a_crash_at_any_moment_pairs_the_events(
    make, backend, clock, tmp_path, suite_maker, moment
):
    suite = await make(templates={"host": replace(HOST, warm=2)})
    if moment == "filling":
        backend.gate.clear()
        await suite.fleet.expire()
        await until(lambda: backend.under_way == 2)
    else:
        await filled(suite, 2)
    info = None
    if moment == "claiming":
        for box in backend.boxes.values():
            box.claiming.clear()
        taking = asyncio.ensure_future(take(suite, replace(HOST, warm=2)))
        await until(lambda: any(box.owners for box in backend.boxes.values()))
    elif moment in ("claimed", "gone"):
        info = await take(suite, replace(HOST, warm=2))
        if moment == "gone":
            await suite.fleet.end_rollout(info.key.rollout_id)
    journal = (tmp_path / "records.jsonl").read_text()  # all that a killed manager leaves behind
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "records.jsonl").write_text(journal)
    after = suite_maker(backend, tmp_path / "after", clock)
    await after.manager.start()
    log = suite.events.log + after.events.log
    created = [who for what, who, _ in log if what == "created"]
    destroyed = [who for what, who, _ in log if what == "destroyed"]
    assert len(destroyed) == len(set(destroyed))
    assert set(created) <= set(destroyed)
    owned = {
        line["sandbox_id"] for line in map(json.loads, journal.splitlines()) if "run_id" in line
    }
    assert set(destroyed) == owned  # whoever had an owner is told gone, nobody else
    assert len(owned) == (moment in ("claiming", "claimed", "gone"))
    if info is not None and moment == "claimed":
        caller = Caller(rollout_id=info.key.rollout_id, epoch=1, role=Role.AGENT)
        with pytest.raises(Unavailable) as caught:
            await after.manager.get(caller, info.key.rollout_id, info.sandbox_id)
        assert caught.value.reason == "SANDBOX_LOST"
    if moment == "claiming":
        taking.cancel()
    await after.manager.close()


async def test_the_record_is_written_before_the_claim_begins(make, backend, tmp_path):
    suite = await make(templates={"host": ONE})
    backend.gate.clear()
    await suite.fleet.expire()
    await until(lambda: backend.under_way == 1)
    (spec,) = backend.specs
    assert (
        f'{{"op": "ahead", "sandbox_id": "{spec.sandbox_id}"}}'
        in (tmp_path / "records.jsonl").read_text()
    )
    backend.gate.set()
    await filled(suite, 1)
    (box,) = backend.boxes.values()
    box.claiming.clear()
    taking = asyncio.ensure_future(take(suite, ONE))
    await until(lambda: box.owners)
    last = json.loads((tmp_path / "records.jsonl").read_text().splitlines()[-1])
    assert (last["op"], last["sandbox_id"]) == ("begin", box.sandbox_id)
    assert isinstance(suite.records, Records)
    box.claiming.set()
    await taking


async def test_500_at_once_from_the_pool_make_nothing_and_wait_for_nobody(make, backend):
    suite = await make(templates={"host": replace(HOST, warm=500)}, parallel_creates=8)
    await filled(suite, 500)
    infos = await asyncio.gather(*(take(suite, replace(HOST, warm=500)) for _ in range(500)))
    assert all(info.warm for info in infos)
    assert len({info.sandbox_id for info in infos}) == 500
    assert len(backend.specs) == 500
    await asyncio.gather(*(suite.fleet.end_rollout(info.key.rollout_id) for info in infos))
    assert backend.live_count() == 0
