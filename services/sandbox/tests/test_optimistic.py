"""Shared environments over the real embedded backend: who is polluted, who is not, and who gets a fresh one."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.optimistic.backend import OptimisticBackend, SharedBox
from sandbox.backends.optimistic.room import Room
from sandbox.backends.state.backend import StateBackend
from sandbox.settings import OptimisticOptions, SandboxSettings, StateOptions
from sandbox.types import MIB, Cause, Command, Limits, Purpose, Termination
from servicekit.errors import FailedPrecondition, NotFound, Unavailable

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager_over_shared(tmp_path_factory, suite_maker, starter):
    """A manager whose rollouts share environments, at most four in one."""
    folder = tmp_path_factory.mktemp("optimistic")
    backend = OptimisticBackend(LocalBackend(folder), folder, OptimisticOptions(share=4))
    made = suite_maker(backend, folder, time.time)
    await starter(made)
    yield made
    await made.manager.close()
    assert backend.live_count() == 0


@pytest_asyncio.fixture(loop_scope="module")
async def suite(manager_over_shared):
    """It, without sandboxes before and after."""
    yield manager_over_shared
    await manager_over_shared.fleet.destroy_all(Cause.CANCELLED)
    stats = manager_over_shared.manager.stats()
    assert stats.live_count == stats.expected_count == 0


@pytest_asyncio.fixture(loop_scope="module")
async def join(suite, use):
    """Give a rollout of its own a place."""

    async def make(**changes):
        return use(suite, (await suite.create(suite.rollout_id(), **changes)).info)

    return make


async def _polluted(box) -> bool:
    info = await box.suite.manager.get(box.caller, box.info.key.rollout_id, box.info.sandbox_id)
    return info.polluted


async def _end(box) -> bool:
    """Destroy it; return what the record, and so the event, says."""
    rollout_id, sandbox_id = box.info.key.rollout_id, box.info.sandbox_id
    await box.suite.manager.destroy(box.caller, rollout_id, sandbox_id)
    return box.suite.records.get(sandbox_id).polluted


def _room(box):
    return box.suite.fleet.find(box.info.sandbox_id).box.room


async def test_the_level_says_what_it_is(suite, join):
    box = await join()
    stats = suite.manager.stats()
    assert stats.backend == box.info.backend == "optimistic"
    assert stats.isolation == box.info.isolation
    assert stats.isolation.startswith("optimistic(ns-")


async def test_rollouts_that_only_look_share_and_are_clean(join):
    boxes = [await join() for _ in range(4)]
    assert len({_room(box).room_id for box in boxes}) == 1
    outcomes = await asyncio.gather(
        *(box.sh("ls -lR /work /etc; cat /etc/passwd") for box in boxes)
    )
    assert all(outcome.exit_code == 0 for outcome in outcomes)
    assert [await _polluted(box) for box in boxes] == [False] * 4
    fifth = await join()  # there is no room for it
    assert _room(fifth) is not _room(boxes[0])
    assert [await _end(box) for box in [*boxes, fifth]] == [False] * 5


async def test_one_that_writes_pollutes_all_that_overlap_itself_too_and_the_third_is_clean(join):
    writer, reader = await join(), await join()
    assert _room(writer) is _room(reader)
    assert (await writer.sh("echo 42 >/work/answer")).exit_code == 0
    assert (await reader.sh("cat /work/answer")).stdout == b"42\n"  # it is what it looks like
    assert await _polluted(writer)
    assert await _polluted(reader)
    third = await join()
    assert _room(third) is not _room(writer)
    assert (await third.sh("ls -A /work")).stdout == b""
    assert not await _polluted(third)
    assert [await _end(box) for box in (writer, reader, third)] == [True, True, False]


async def test_one_that_is_alone_may_write_and_the_next_gets_a_fresh_environment(join):
    first = await join()
    await first.sh("echo mine >/work/x")
    second = await join()
    assert _room(second) is not _room(first)
    await second.sh("echo mine >/work/x")
    assert [await _end(first), await _end(second)] == [False, False]


async def test_a_change_after_everybody_else_left_is_the_last_ones_own(join):
    first, second = await join(), await join()
    assert _room(first) is _room(second)
    assert not await _end(first)
    await second.sh("echo mine >/work/x")
    assert not await _end(second)


async def test_a_change_of_one_that_left_is_held_against_those_who_stay(join):
    first, second = await join(), await join()
    await first.sh("echo x >/tmp/x")
    assert await _end(first)
    assert await _end(second)


async def test_who_joins_after_a_change_is_not_polluted_by_it(join):
    writer, reader = await join(), await join()
    await writer.sh("echo x >/work/x")
    late = await join()
    await writer.sh("echo y >/work/y")
    assert [await _end(box) for box in (late, writer, reader)] == [False, True, True]


@pytest.mark.parametrize(
    "change",
    [
        "touch /work/empty",
        "mkdir /root/folder",
        "ln -s x /home/link",
        "echo '127.0.0.1 evil' >>/etc/hosts",
        "chmod 700 /var/log",
        "rm /etc/hostname",
        "echo x >/dev/shm/x",
        "touch -d @1 /etc/passwd",
        "touch /top",
        "echo x >/work/x; rm /work/x",  # the folder's time tells
        "rm -rf --no-preserve-root / 2>/dev/null; true",
    ],
)
async def test_every_kind_of_change_is_seen(join, change):
    writer, reader = await join(), await join()
    await writer.sh(change)
    assert await _polluted(reader)


async def test_same_size_and_time_do_not_hide_a_change(join):
    first = await join()
    await first.sh("printf aaaa >/work/f; touch -d @1000 /work/f /work")
    room = _room(first)
    before = await room._observer.mark(room.box, is_quiet=True)
    await first.sh("printf bbbb >/work/f; touch -d @1000 /work/f /work")
    assert (await room._observer.mark(room.box, is_quiet=True)).differs(before)


async def test_looking_itself_changes_nothing(join):
    room = _room(await join())
    marks = [await room._observer.mark(room.box, is_quiet=True) for _ in range(3)]
    assert not any(mark.differs(marks[0]) for mark in marks)


async def test_a_write_by_the_files_call_counts(join):
    writer, reader = await join(), await join()
    await writer.write("/work/x", b"x")
    assert await _polluted(reader)


async def test_nothing_that_a_command_started_outlives_it(join):
    first, second = await join(), await join()
    await first.sh("setsid sleep 774 >/dev/null 2>&1 &")
    assert (await second.sh("pgrep -c sleep || true")).stdout == b"0\n"
    assert not await _polluted(second)


async def test_a_command_under_way_is_no_change(join):
    first, second = await join(), await join()
    running = asyncio.ensure_future(first.sh("exec sleep 60", exec_id="long"))
    async with asyncio.timeout(10):
        while (await second.sh("pgrep -c sleep || true")).stdout != b"1\n":
            pass
        assert not await _polluted(second)
        assert not await _end(second)
        assert not await _end(first)
        with pytest.raises(NotFound, match="was destroyed"):
            await running


async def test_a_command_is_killed_with_its_rollout_and_the_neighbours_is_not(join):
    first, second = await join(), await join()
    mine = asyncio.ensure_future(first.sh("exec sleep 60", exec_id="same"))
    others = asyncio.ensure_future(second.sh("exec sleep 60", exec_id="same"))
    watcher = await join()
    async with asyncio.timeout(10):
        while (await watcher.sh("pgrep -c sleep || true")).stdout != b"2\n":
            pass
        caller, rollout_id = first.caller, first.info.key.rollout_id
        await first.suite.manager.kill_exec(caller, rollout_id, first.info.sandbox_id, "same")
        assert (await mine).termination is Termination.KILLED
        assert (await watcher.sh("pgrep -c sleep || true")).stdout == b"1\n"
    others.cancel()


async def test_other_limits_and_grading_have_environments_of_their_own(suite, join):
    agent = await join()
    large = await join(
        limits=Limits(memory_bytes=300 * MIB, disk_bytes=64 * MIB, shm_bytes=16 * MIB)
    )
    grading = (await suite.create(suite.rollout_id(), purpose=Purpose.GRADE)).info
    rooms = {_room(agent).room_id, _room(large).room_id}
    rooms.add(suite.fleet.find(grading.sandbox_id).box.room.room_id)
    assert len(rooms) == 3


async def test_an_environment_that_dies_is_lost_for_all_in_it(suite, join):
    first, second = await join(), await join()
    os.kill(_room(first).box.keeper_pid, signal.SIGKILL)
    for box in (first, second):
        async with asyncio.timeout(10):
            while not suite.events.causes(box.info.sandbox_id):
                await asyncio.sleep(0.01)
        assert suite.events.causes(box.info.sandbox_id) == ["manager_lost"]
    third = await join()
    assert (await third.sh("true")).exit_code == 0


async def test_an_empty_environment_that_dies_is_cleared(suite, join):
    box = await join()
    room = _room(box)
    await _end(box)
    assert list(suite.backend._rooms.values()) == [room]
    os.kill(room.box.keeper_pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while room.is_usable:
            await asyncio.sleep(0.01)
    await suite.backend.reap(frozenset())
    assert suite.backend._rooms == {}


async def test_an_environment_that_was_ended_lets_nobody_in(suite, join):
    agent = await join()
    grading = (await suite.create(suite.rollout_id(), purpose=Purpose.GRADE)).info
    room = suite.fleet.find(grading.sandbox_id).box.room
    await _end(agent)
    await suite.fleet.destroy_all(Cause.CANCELLED)
    assert room.room_id not in suite.backend._rooms
    assert not await room.join("late")


class _Stubborn:
    """An environment in which nothing can be killed at present."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def run(self, command, env, emit):
        self.started.set()
        await asyncio.Event().wait()

    async def kill(self, exec_id):
        raise Unavailable("no answer")


async def test_a_rollout_whose_command_cannot_be_killed_leaves_all_the_same():
    left = asyncio.Event()

    async def leave(member: str, room: Room) -> None:
        left.set()

    room = Room("room", (), _Stubborn(), None, share=2, end=1e9)
    box = SharedBox("one", room, leave)
    running = asyncio.ensure_future(box.run(Command(exec_id="e", argv=("x",)), {}, None))
    async with asyncio.timeout(10):
        await room.box.started.wait()
        await box.destroy()
    assert left.is_set()
    running.cancel()


async def test_many_come_and_go_and_nothing_is_left(suite, join):
    boxes = await asyncio.gather(*(join() for _ in range(24)))
    assert len({_room(box).room_id for box in boxes}) == 6
    await asyncio.gather(*(box.sh("true") for box in boxes))
    assert suite.backend.live_count() == 24
    assert [await _end(box) for box in boxes] == [False] * 24
    assert suite.backend.live_count() == 0
    assert len(suite.backend._rooms) == 1  # a clean one is kept for who comes next


async def test_files_that_are_too_large_to_compare_count_as_changed(
    tmp_path, suite_maker, starter, use
):
    options = OptimisticOptions(max_archive_mib=1)
    backend = OptimisticBackend(LocalBackend(tmp_path), tmp_path, options)
    suite = suite_maker(backend, tmp_path, time.time)
    await starter(suite)
    try:
        writer, reader = [
            use(suite, (await suite.create(suite.rollout_id())).info) for _ in range(2)
        ]
        await writer.sh("head -c 3000000 /dev/zero >/work/big")
        assert await _polluted(reader)
    finally:
        await suite.manager.close()


async def test_a_backend_without_files_cannot_be_shared(tmp_path):
    backend = OptimisticBackend(
        StateBackend(tmp_path, StateOptions()), tmp_path, OptimisticOptions()
    )
    with pytest.raises(FailedPrecondition, match="archives, files"):
        await backend.start()
    await backend.close()


async def test_it_is_chosen_by_name_alone(monkeypatch):
    assert SandboxSettings().backend == "local"
    monkeypatch.setenv("HONE_SANDBOX_BACKEND", "optimistic")
    monkeypatch.setenv("HONE_SANDBOX_OPTIMISTIC__SHARE", "3")
    settings = SandboxSettings()
    assert (settings.backend, settings.optimistic.inner, settings.optimistic.share) == (
        "optimistic",
        "local",
        3,
    )


async def test_what_would_be_everybodys_is_not_offered(suite, join):
    box = await join()
    with pytest.raises(FailedPrecondition) as caught:
        await suite.fleet.find(box.info.sandbox_id).box.snapshot(Path("/nowhere"))
    assert caught.value.reason == "UNSUPPORTED"
