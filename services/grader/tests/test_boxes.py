"""Grading boxes: the contract of rooms over the stand-in and a real sandbox service, and what only that has."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from local_rooms import LocalRooms
from real_rooms import RealSuite, real, running_service, service

from grader.clients.boxes import SandboxRooms
from grader.instruments.boxes import BoxSpec, FileTooLargeError, Origin, Rooms
from grader.results import GradingFaultError
from servicekit.errors import Unavailable
from trajectory.types import GraderErrorKind

__all__ = ["real", "service"]

Leave = Callable[[Mapping[str, bytes]], Awaitable[Origin]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Rooms under test, and an agent."""

    rooms: Rooms
    leave: Leave


@pytest.fixture(params=["local", pytest.param("real", marks=pytest.mark.slow)])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "local":
        rooms = LocalRooms(tmp_path)
        numbers = itertools.count()

        async def leave(files: Mapping[str, bytes]) -> Origin:
            return rooms.leave(f"agent-{next(numbers)}", files)

        yield Subject(rooms=rooms, leave=leave)
    else:
        suite = RealSuite(request.getfixturevalue("service"))
        yield Subject(rooms=suite.rooms, leave=suite.leave)
        await suite.channel.close()


async def test_a_command_ends_with_its_exit_code_and_output(subject: Subject) -> None:
    async with subject.rooms.room(None) as room, room.box(BoxSpec()) as box:
        ran = await box.run(
            ("sh", "-c", "cat; echo $WORD >&2; exit 3"),
            timeout_seconds=10,
            stdin=b"given",
            env={"WORD": "said"},
        )
        assert (ran.exit_code, ran.stopped_by, ran.stdout, ran.stderr) == (
            3,
            "",
            b"given",
            b"said\n",
        )
        slow = await box.run(("sleep", "60"), timeout_seconds=0.2)
        assert (slow.exit_code, slow.stopped_by) == (None, "timeout")


async def test_files_are_written_read_and_looked_for(subject: Subject) -> None:
    spec = BoxSpec(files={"/work/a/b.txt": b"text"})
    async with subject.rooms.room(None) as room, room.box(spec) as box:
        await box.write({"/work/more": b"x" * 100})
        assert await box.read("/work/a/b.txt") == b"text"
        assert await box.read("/work/none") is None
        assert await box.read("/work/a") is None
        with pytest.raises(FileTooLargeError):
            await box.read("/work/more", max_bytes=99)
        found = [await box.exists(path) for path in ("/work/a", "/work/more", "/work/none")]
        assert found == [True, True, False]


async def test_two_boxes_of_a_room_are_apart(subject: Subject) -> None:
    full = BoxSpec(files={"/work/x": b"1"})
    async with subject.rooms.room(None) as room, room.box(full), room.box(BoxSpec()) as other:
        assert await other.read("/work/x") is None


async def test_a_box_from_the_agent_has_its_files_and_leaves_them_alone(subject: Subject) -> None:
    origin = await subject.leave({"/work/x": b"1", "/root/y": b"2"})
    async with subject.rooms.room(origin) as room:
        async with room.box(BoxSpec(from_agent=True)) as box:
            assert await box.read("/root/y") == b"2"
            await box.write({"/work/x": b"changed"})
        async with room.box(BoxSpec(from_agent=True)) as again:
            assert await again.read("/work/x") == b"1"


async def test_a_clean_box_gets_the_agents_folders_and_nothing_else(subject: Subject) -> None:
    origin = await subject.leave({"/work/deep/x": b"1", "/root/y": b"2"})
    spec = BoxSpec(agent_folders=("/work", "/srv/none"))
    async with subject.rooms.room(origin) as room, room.box(spec) as box:
        assert await box.read("/work/deep/x") == b"1"
        assert await box.read("/root/y") is None


@pytest.mark.parametrize("spec", [BoxSpec(from_agent=True), BoxSpec(agent_folders=("/work",))])
async def test_a_record_without_its_sandbox_is_a_fault_that_no_retry_mends(
    subject: Subject, spec: BoxSpec
) -> None:
    async with subject.rooms.room(None) as room:
        with pytest.raises(GradingFaultError, match="files are gone") as caught:
            async with room.box(spec):
                pass
    fault = caught.value
    assert (fault.kind, fault.retryable, fault.client) == (GraderErrorKind.SANDBOX, False, False)


async def test_a_record_that_needs_no_box_needs_no_service() -> None:
    def connect() -> NoReturn:
        raise Unavailable("names no sandbox")

    rooms = SandboxRooms(connect, lambda *_: "token", clock=time.time, rng=random.Random())
    async with rooms.room(None) as room:
        with pytest.raises(GradingFaultError, match="names no sandbox") as caught:
            async with room.box(BoxSpec()):
                pass
    assert (caught.value.kind, caught.value.retryable) == (GraderErrorKind.SANDBOX, True)


@pytest.mark.slow
async def test_nothing_is_left_of_a_room(real: RealSuite) -> None:
    origin = await real.leave({"/work/x": b"1"})
    carried, whole = BoxSpec(agent_folders=("/work",)), BoxSpec(from_agent=True)
    async with real.rooms.room(origin) as room, room.box(carried), room.box(whole):
        assert len(await real.grading_boxes()) == 2
    assert await real.grading_boxes() == []


@pytest.mark.slow
async def test_nothing_is_left_of_a_room_that_is_cancelled(real: RealSuite) -> None:
    origin = await real.leave({"/work/x": b"1"})
    running = asyncio.Event()

    async def grade() -> None:
        async with real.rooms.room(origin) as room, room.box(BoxSpec(from_agent=True)) as box:
            running.set()
            await box.run(("sleep", "60"), timeout_seconds=60)

    async def make() -> None:
        async with real.rooms.room(None) as room, room.box(BoxSpec()):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(grade()), *(asyncio.create_task(make()) for _ in range(5))]
    async with asyncio.timeout(20):
        await running.wait()
        for task in tasks:  # the others at whatever point of being made they are
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await real.grading_boxes() == []


@pytest.mark.slow
async def test_a_grading_that_is_tried_again_gets_boxes_of_its_own(real: RealSuite) -> None:
    origin = await real.leave({"/work/x": b"1"})
    async with AsyncExitStack() as stack:
        boxes = []
        for _ in range(2):
            room = await stack.enter_async_context(real.rooms.room(origin))
            boxes.append(await stack.enter_async_context(room.box(BoxSpec())))
        await boxes[0].write({"/work/mine": b"1"})
        assert await boxes[1].read("/work/mine") is None


@pytest.mark.slow
async def test_a_box_that_is_lost_is_a_fault_that_may_be_tried_again(real: RealSuite) -> None:
    origin = await real.leave({})
    async with real.rooms.room(origin) as room, room.box(BoxSpec()) as box:
        (lost,) = await real.grading_boxes()
        await real.destroy(lost.sandbox_id, lost.rollout_id, "grader")
        for call in (box.run(("true",), timeout_seconds=5), box.read("/x"), box.exists("/x")):
            with pytest.raises(GradingFaultError) as caught:
                await call
            assert (caught.value.kind, caught.value.retryable) == (GraderErrorKind.SANDBOX, True)


@pytest.mark.slow
async def test_an_agents_sandbox_that_is_gone_is_a_fault_that_no_retry_mends(
    real: RealSuite,
) -> None:
    origin = await real.leave({"/work/x": b"1"})
    await real.destroy(origin.sandbox_id, origin.rollout_id, "agent")
    async with real.rooms.room(origin) as room:
        with pytest.raises(GradingFaultError, match="files are gone") as caught:
            async with room.box(BoxSpec(from_agent=True)):
                pass
    assert not caught.value.retryable


@pytest.mark.slow
async def test_a_box_is_waited_for_while_there_is_no_room(tmp_path: Path) -> None:
    with running_service(tmp_path, max_sandboxes=1) as small:
        suite = RealSuite(small)

        async def work() -> int | None:
            async with suite.rooms.room(None) as room, room.box(BoxSpec()) as box:
                return (await box.run(("true",), timeout_seconds=5)).exit_code

        async with asyncio.timeout(60):
            assert await asyncio.gather(*(work() for _ in range(3))) == [0, 0, 0]
        await suite.channel.close()


@pytest.mark.slow
async def test_limits_that_cannot_be_are_the_definitions_fault(real: RealSuite) -> None:
    async with real.rooms.room(None) as room:
        with pytest.raises(GradingFaultError, match="memory_bytes") as caught:
            async with room.box(BoxSpec(memory_bytes=1 << 40)):
                pass
    assert (caught.value.retryable, caught.value.client) == (False, True)
