"""Creation, destruction and their order, over a scripted backend and a clock that the test moves."""

import asyncio

import pytest

from sandbox.types import BoxFile, Caller, Cause, Command, Purpose, Role
from servicekit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)


async def test_a_repeated_create_returns_the_first(suite, backend):
    rollout_id = suite.rollout_id()
    first, second = await asyncio.gather(suite.create(rollout_id), suite.create(rollout_id))
    third = await suite.create(rollout_id)
    assert first.info.sandbox_id == second.info.sandbox_id == third.info.sandbox_id
    assert [first.created, second.created, third.created] == [True, False, False]
    assert len(backend.boxes) == 1
    assert [what for what, _, _ in suite.events.log] == ["created"]


async def test_purpose_and_sequence_make_other_sandboxes(suite):
    rollout_id = suite.rollout_id()
    made = [
        await suite.create(rollout_id),
        await suite.create(rollout_id, purpose=Purpose.GRADE),
        await suite.create(rollout_id, purpose=Purpose.GRADE, sequence=1),
    ]
    assert len({one.info.sandbox_id for one in made}) == 3


async def test_the_outcome_destroys_and_forbids_another(suite, backend):
    rollout_id, other = suite.rollout_id(), suite.rollout_id()
    made = await suite.create(rollout_id)
    kept = await suite.create(other)
    await suite.fleet.end_rollout(rollout_id)
    await suite.fleet.end_rollout(rollout_id)
    assert suite.events.causes(made.info.sandbox_id) == ["outcome"]
    assert not backend.boxes[kept.info.sandbox_id].destroyed
    with pytest.raises(FailedPrecondition) as caught:
        await suite.create(rollout_id, epoch=2)
    assert caught.value.reason == "ROLLOUT_ENDED"


async def test_an_outcome_during_creation_undoes_it(suite, backend):
    backend.gate.clear()
    rollout_id = suite.rollout_id()
    creating = asyncio.ensure_future(suite.create(rollout_id))
    while not backend.under_way:
        await asyncio.sleep(0)
    ending = asyncio.ensure_future(suite.fleet.end_rollout(rollout_id))
    await asyncio.sleep(0)
    backend.gate.set()
    await ending
    with pytest.raises(FailedPrecondition) as caught:
        await creating
    assert caught.value.reason == "ROLLOUT_ENDED"
    assert backend.live_count() == 0


async def test_an_idle_sandbox_goes_and_every_call_renews(suite, clock):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id, idle_seconds=60.0)).info
    caller = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    for number in range(3):
        clock.now += 50
        await suite.manager.run(
            caller, rollout_id, info.sandbox_id, Command(exec_id=str(number), argv=("true",))
        )
        await suite.fleet.expire()
    suite.manager.extend(caller, rollout_id, info.sandbox_id, 300.0)
    await suite.manager.run(  # a call makes no lease shorter
        caller, rollout_id, info.sandbox_id, Command(exec_id="extended", argv=("true",))
    )
    clock.now += 200
    await suite.fleet.expire()
    assert suite.events.causes(info.sandbox_id) == []
    clock.now += 101
    await suite.fleet.expire()
    assert suite.events.causes(info.sandbox_id) == ["idle"]
    with pytest.raises(NotFound, match="idle"):
        await suite.manager.get(caller, rollout_id, info.sandbox_id)
    with pytest.raises(FailedPrecondition) as caught:
        await suite.create(rollout_id)
    assert caught.value.reason == "SANDBOX_ENDED"


async def test_a_destruction_that_takes_long_keeps_no_other_lease_from_ending(
    suite, backend, clock
):
    slow = (await suite.create(suite.rollout_id(), idle_seconds=10.0)).info
    next_one = (await suite.create(suite.rollout_id(), idle_seconds=20.0)).info
    backend.boxes[slow.sandbox_id].ending.clear()
    async with asyncio.timeout(10):
        clock.now += 11
        await suite.fleet.expire()
        clock.now += 11
        await suite.fleet.expire()
    assert suite.events.causes(next_one.sandbox_id) == ["idle"]
    assert suite.events.causes(slow.sandbox_id) == []
    backend.boxes[slow.sandbox_id].ending.set()
    async with asyncio.timeout(10):
        while not suite.events.causes(slow.sandbox_id):
            await asyncio.sleep(0)
    assert suite.events.causes(slow.sandbox_id) == ["idle"]


@pytest.mark.parametrize("whole", [True, False])
async def test_who_destroys_all_waits_for_those_that_are_being_ended(suite, backend, whole):
    made = (await suite.create(suite.rollout_id(), run_id="run-a")).info
    ending = backend.boxes[made.sandbox_id].ending
    ending.clear()
    first = asyncio.ensure_future(
        suite.fleet.destroy(suite.fleet.find(made.sandbox_id), Cause.REQUESTED)
    )
    await asyncio.sleep(0)
    doing = suite.fleet.destroy_all(Cause.CANCELLED) if whole else suite.fleet.cancel_run("run-a")
    second = asyncio.ensure_future(doing)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not second.done()
    ending.set()
    async with asyncio.timeout(10):
        await second
    assert suite.manager.stats().expected_count == 0
    assert suite.events.causes(made.sandbox_id) == ["requested"]
    await first


async def test_a_running_command_keeps_the_lease_but_not_the_lifetime(suite, backend, clock):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id, idle_seconds=10.0, lifetime_seconds=100.0)).info
    box = backend.boxes[info.sandbox_id]
    box.release.clear()
    caller = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    command = Command(exec_id="long", argv=("sleep",))
    running = asyncio.ensure_future(suite.manager.run(caller, rollout_id, info.sandbox_id, command))
    while not box.commands:
        await asyncio.sleep(0)
    clock.now += 50
    await suite.fleet.expire()
    assert not box.destroyed
    clock.now += 50
    await suite.fleet.expire()
    assert suite.events.causes(info.sandbox_id) == ["lifetime"]
    with pytest.raises(FailedPrecondition) as caught:
        await running
    assert caught.value.reason == "ROLLOUT_TIMEOUT"


async def test_destroy_is_idempotent_and_only_for_the_owner(suite):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    owner = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    stranger = Caller(rollout_id=suite.rollout_id(), epoch=1, role=Role.AGENT)
    with pytest.raises(PermissionDenied):
        await suite.manager.destroy(stranger, stranger.rollout_id, info.sandbox_id)
    await asyncio.gather(
        *(suite.manager.destroy(owner, rollout_id, info.sandbox_id) for _ in range(3))
    )
    await suite.manager.destroy(owner, rollout_id, info.sandbox_id)
    await suite.manager.destroy(owner, rollout_id, "sbx_never_was")
    assert suite.events.causes(info.sandbox_id) == ["requested"]
    with pytest.raises(NotFound):
        await suite.manager.get(owner, rollout_id, info.sandbox_id)


async def test_destroy_by_run_takes_the_run_alone(suite, backend):
    mine = [await suite.create(suite.rollout_id(), run_id="run-a") for _ in range(3)]
    other = await suite.create(suite.rollout_id(), run_id="run-b")
    operator = Caller(rollout_id="", epoch=0, role=Role.OPERATOR)
    assert await suite.manager.destroy_by_run(operator, "run-a") == 3
    assert await suite.manager.destroy_by_run(operator, "run-a") == 0
    assert all(suite.events.causes(one.info.sandbox_id) == ["cancelled"] for one in mine)
    assert [one.sandbox_id for one in suite.manager.list(operator, "")] == [other.info.sandbox_id]


async def test_creation_is_bounded_and_in_order(backend, clock, tmp_path, suite_maker):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=2)
    await suite.manager.start()
    made = await asyncio.gather(*(suite.create(suite.rollout_id()) for _ in range(10)))
    assert backend.most_under_way <= 2
    ids = [one.info.sandbox_id for one in made]
    assert ids == sorted(ids)
    await suite.manager.close()


async def test_who_waits_too_long_for_a_turn_is_told_to_come_back(
    backend, clock, tmp_path, suite_maker
):
    suite = suite_maker(backend, tmp_path, clock, parallel_creates=1, queue_seconds=0.05)
    await suite.manager.start()
    backend.gate.clear()
    first = asyncio.ensure_future(suite.create(suite.rollout_id()))
    while not backend.under_way:
        await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted) as caught:
        await suite.create(suite.rollout_id())
    assert caught.value.reason == "QUEUE_TIMEOUT"
    assert caught.value.retry_after_seconds
    backend.gate.set()
    await first
    await suite.create(suite.rollout_id())
    await suite.manager.close()


async def test_memory_and_count_are_admitted(backend, clock, tmp_path, suite_maker):
    budget = 700 * 1024 * 1024
    suite = suite_maker(backend, tmp_path, clock, memory_budget_bytes=budget)
    await suite.manager.start()
    first = await suite.create(suite.rollout_id())
    await suite.create(suite.rollout_id())
    refused = suite.rollout_id()
    with pytest.raises(ResourceExhausted, match="budget") as caught:
        await suite.create(refused)
    assert (caught.value.reason, caught.value.retryable) == ("NO_ROOM", True)
    await suite.fleet.end_rollout(first.info.key.rollout_id)
    assert (await suite.create(refused)).created
    await suite.manager.close()


async def test_a_creation_that_hangs_ends_with_nothing_left(backend, clock, tmp_path, suite_maker):
    suite = suite_maker(backend, tmp_path, clock, provision_seconds=0.05)
    await suite.manager.start()
    backend.gate.clear()
    rollout_id = suite.rollout_id()
    with pytest.raises(DeadlineExceeded) as caught:
        await suite.create(rollout_id)
    assert (caught.value.reason, caught.value.retryable) == ("PROVISION_TIMEOUT", True)
    assert suite.manager.stats().expected_count == 0
    assert suite.events.log == []
    backend.gate.set()
    await suite.manager.close()


async def test_a_creation_that_fails_is_retryable_and_gives_its_room_back(suite, backend):
    operator = Caller(rollout_id="", epoch=0, role=Role.OPERATOR)
    for error in (Unavailable("no"), ResourceExhausted("429", retry_after_seconds=1)):
        backend.failures.append(error)
        with pytest.raises(type(error)) as caught:
            await suite.create(suite.rollout_id())
        assert caught.value.retryable
    refused = (BoxFile(path="/work/refused", content=b""),)
    with pytest.raises(Unavailable):
        await suite.create(suite.rollout_id(), files=refused)
    assert backend.live_count() == 0
    assert suite.manager.list(operator, "") == []
    assert suite.manager.stats().expected_count == 0


async def test_a_sandbox_that_cannot_be_told_is_not_handed_over(suite, backend):
    suite.events.reachable = False
    rollout_id = suite.rollout_id()
    with pytest.raises(Unavailable):
        await suite.create(rollout_id)
    assert backend.live_count() == 0
    assert len(suite.records.untold()) == 1
    suite.events.reachable = True
    await suite.fleet.reap()
    assert suite.records.untold() == []
    assert [cause for _, _, cause in suite.events.log] == ["manager_lost"]
    with pytest.raises(Unavailable) as caught:  # our fault, so it stays one when it is repeated
        await suite.create(rollout_id)
    assert caught.value.reason == "SANDBOX_LOST"


async def test_a_destruction_that_was_not_told_is_told_later(suite):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    suite.events.reachable = False
    await suite.fleet.end_rollout(rollout_id)
    assert suite.events.causes(info.sandbox_id) == []
    suite.events.reachable = True
    await suite.fleet.reap()
    await suite.fleet.reap()
    assert suite.events.causes(info.sandbox_id) == ["outcome"]


async def test_a_lost_sandbox_says_so_and_its_rollout_gets_no_other(suite, backend):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    box = backend.boxes[info.sandbox_id]
    box.on_lost(info.sandbox_id)
    caller = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    while suite.manager.stats().expected_count:
        await asyncio.sleep(0)
    for call in (
        lambda: suite.create(rollout_id),
        lambda: suite.manager.run(
            caller, rollout_id, info.sandbox_id, Command(exec_id="x", argv=("true",))
        ),
    ):
        with pytest.raises(Unavailable) as caught:
            await call()
        assert caught.value.reason == "SANDBOX_LOST"
    await suite.manager.destroy(caller, rollout_id, info.sandbox_id)


async def test_a_drain_lets_calls_finish_then_destroys(suite, backend):
    rollout_id = suite.rollout_id()
    info = (await suite.create(rollout_id)).info
    box = backend.boxes[info.sandbox_id]
    box.release.clear()
    caller = Caller(rollout_id=rollout_id, epoch=1, role=Role.AGENT)
    running = asyncio.ensure_future(
        suite.manager.run(caller, rollout_id, info.sandbox_id, Command(exec_id="x", argv=("true",)))
    )
    while not box.commands:
        await asyncio.sleep(0)
    draining = asyncio.ensure_future(suite.manager.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    with pytest.raises(Unavailable) as caught:
        await suite.create(suite.rollout_id())
    assert caught.value.reason == "DRAINING"
    box.release.set()
    await draining
    assert (await running).stdout == b"1"
    assert suite.events.causes(info.sandbox_id) == [Cause.MANAGER_LOST]


async def test_what_a_dead_manager_owned_is_lost_and_told_once(
    backend, clock, tmp_path, suite_maker
):
    first = suite_maker(backend, tmp_path, clock)
    await first.manager.start()
    rollout_id, ended = first.rollout_id(), first.rollout_id()
    info = (await first.create(rollout_id, epoch=7)).info
    await first.create(ended)
    await first.fleet.end_rollout(ended)
    first.records.close()  # as if killed: nothing is destroyed, nothing more is written
    second = suite_maker(backend, tmp_path, clock)
    await second.manager.start()
    assert second.events.log == [("destroyed", info.sandbox_id, "manager_lost")]
    with pytest.raises(Unavailable) as lost:
        await second.create(rollout_id, epoch=7)
    assert lost.value.reason == "SANDBOX_LOST"
    with pytest.raises(FailedPrecondition) as old:
        await second.create(rollout_id, epoch=6)
    assert old.value.reason == "EPOCH_OLD"
    with pytest.raises(FailedPrecondition) as over:
        await second.create(ended, epoch=2)
    assert over.value.reason == "ROLLOUT_ENDED"
    second.records.close()
    third = suite_maker(backend, tmp_path, clock)
    await third.manager.start()
    assert third.events.log == []
    await third.manager.close()


async def test_a_grading_box_can_be_made_again_after_a_request_ended_it(suite):
    rollout_id = suite.rollout_id()
    grader = Caller(rollout_id=rollout_id, epoch=1, role=Role.GRADER)
    first = await suite.create(rollout_id, purpose=Purpose.GRADE)
    await suite.manager.destroy(grader, rollout_id, first.info.sandbox_id)
    second = await suite.create(rollout_id, purpose=Purpose.GRADE)
    assert second.created
    assert second.info.sandbox_id != first.info.sandbox_id


async def test_stats_count_and_measure(suite):
    for _ in range(3):
        await suite.create(suite.rollout_id())
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.created_count) == (3, 3, 3)
    assert stats.create_p50_seconds >= 0.0
    await suite.fleet.destroy_all(Cause.CANCELLED)
    stats = suite.manager.stats()
    assert (stats.live_count, stats.expected_count, stats.destroyed_count) == (0, 0, 3)
