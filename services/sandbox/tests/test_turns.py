"""Whose turn it is: fair between runs, no holes, deadlines, honest estimates."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from sandbox.figures.rates import Gaps, Window
from sandbox.fleet.admission import Admission
from sandbox.fleet.turns import Turns
from sandbox.settings import SandboxSettings
from sandbox.types import MIB, Limits
from servicekit.errors import ResourceExhausted


class Line:
    """People who wait for turns, and the order in which they had them."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, name: str, run_id: str = "", wait: float | None = None) -> None:
        async def go() -> None:
            turn = self.turns.turn(run_id, wait) if run_id else self.turns.idle_turn()
            async with turn:
                self.served.append(name)

        self.tasks[name] = asyncio.ensure_future(go())
        await asyncio.sleep(0)

    async def all_served(self) -> None:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_runs_take_turns_and_within_a_run_the_first_comes_first(clock):
    turns = Turns(1, 10.0, clock)
    line = Line(turns)
    async with turns.turn("busy", None):
        for number in range(4):
            await line.join(f"a{number}", "a")
        for number in range(2):
            await line.join(f"b{number}", "b")
        await line.join("c0", "c")
        assert turns.queued_count == 7
    await line.all_served()
    assert line.served == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert turns.queued_count == 0


async def test_a_thousand_of_one_run_delay_another_by_one(clock):
    turns = Turns(1, 10.0, clock)
    line = Line(turns)
    async with turns.turn("busy", None):
        for number in range(1000):
            await line.join(f"a{number}", "a")
        await line.join("b", "b")
    await line.all_served()
    assert line.served.index("b") == 1


async def test_who_gives_up_leaves_no_hole(clock):
    turns = Turns(2, 10.0, clock)
    line = Line(turns)
    async with AsyncExitStack() as held:
        await held.enter_async_context(turns.turn("busy", None))
        await held.enter_async_context(turns.turn("busy", None))
        for name in ("a0", "a1", "a2"):
            await line.join(name, "a")
        await line.join("b0", "b")
        line.tasks["a0"].cancel()
        line.tasks["b0"].cancel()
        await asyncio.sleep(0)
        assert turns.queued_count == 2
    await line.all_served()
    assert line.served == ["a1", "a2"]
    async with turns.turn("x", 0.01), turns.turn("y", 0.01):
        pass  # both turns are free again


async def test_a_turn_that_comes_to_one_who_is_just_giving_up_goes_to_the_next(clock):
    turns = Turns(1, 10.0, clock)
    line = Line(turns)
    async with turns.turn("busy", None):
        await line.join("a0", "a")
        await line.join("a1", "a")
    line.tasks["a0"].cancel()  # its turn was given to it when the block ended, it has not run since
    await line.all_served()
    assert line.served == ["a1"]
    async with turns.turn("x", 0.01):
        pass


async def test_a_turn_is_not_given_to_one_who_was_just_cancelled(clock):
    turns = Turns(1, 10.0, clock)
    line = Line(turns)
    async with turns.turn("busy", None):
        await line.join("a0", "a")
        await line.join("a1", "a")
        await line.join("ahead")
        line.tasks["a0"].cancel()  # it has not run since
    await line.all_served()
    assert line.served == ["a1", "ahead"]
    async with turns.turn("x", 0.01):
        pass


async def test_what_is_made_ahead_waits_for_everybody_else(clock):
    turns = Turns(1, 10.0, clock)
    line = Line(turns)
    async with turns.turn("busy", None):
        await line.join("ahead")
        await line.join("a0", "a")
        await line.join("b0", "b")
        assert turns.queued_count == 2  # what is made ahead was not asked for
    await line.all_served()
    assert line.served == ["a0", "b0", "ahead"]


async def test_the_shorter_of_the_callers_and_the_queues_deadline_counts(clock):
    for queue_seconds, wait in ((0.02, None), (0.02, 60.0), (60.0, 0.02)):
        turns = Turns(1, queue_seconds, clock)
        async with turns.turn("busy", None):
            begun = asyncio.get_running_loop().time()
            with pytest.raises(ResourceExhausted) as caught:
                async with turns.turn("a", wait):
                    raise AssertionError("there is no turn")
            assert asyncio.get_running_loop().time() - begun < 5
        assert caught.value.reason == "QUEUE_TIMEOUT"
        assert "waited 0.02 s" in caught.value.message
        assert turns.queued_count == 0


async def test_the_wait_that_is_told_follows_from_the_measured_rate_and_the_queue(clock):
    turns = Turns(4, 10.0, clock)
    assert turns.wait_estimate() == 1.0  # nothing is measured yet
    for _ in range(10):
        async with turns.turn("a", None):
            clock.now += 0.8  # four at once: five a second
    assert turns.wait_estimate() == pytest.approx(0.2)
    line = Line(turns)
    async with AsyncExitStack() as held:
        for _ in range(4):
            await held.enter_async_context(turns.turn("busy", None))
        for number in range(49):
            await line.join(f"a{number}", "a")
        assert turns.wait_estimate() == pytest.approx(50 * 0.8 / 4)
    await line.all_served()


def test_the_wait_for_room_follows_from_how_often_sandboxes_end(clock):
    admission = Admission(
        max_sandboxes=3,
        memory_budget_bytes=1 << 40,
        reserve_bytes=100,
        available_bytes=lambda: 1 << 30,
        clock=clock,
    )
    for _ in range(3):
        admission.reserve(1)
    with pytest.raises(ResourceExhausted, match="3 sandboxes are alive") as caught:
        admission.reserve(1)
    assert caught.value.retry_after_seconds == 1.0
    for _ in range(5):  # one ends every 4 seconds
        admission.release(1)
        admission.reserve(1)
        clock.now += 4.0
    waits = []
    for _ in range(3):
        with pytest.raises(ResourceExhausted) as caught:
            admission.reserve(1)
        waits.append(caught.value.retry_after_seconds)
    assert waits == pytest.approx([4.0, 8.0, 12.0])


def test_really_free_memory_is_looked_at(clock):
    free = 99
    admission = Admission(
        max_sandboxes=3,
        memory_budget_bytes=1 << 40,
        reserve_bytes=100,
        available_bytes=lambda: free,
        clock=clock,
    )
    with pytest.raises(ResourceExhausted, match="99 bytes of memory are free, 100 must stay so"):
        admission.reserve(1)
    free = 100
    admission.reserve(1)


def test_the_defaults_admit_500_sandboxes_on_a_machine_of_24_gib(clock):
    settings, machine = SandboxSettings(), 24 << 30
    admission = Admission(
        max_sandboxes=settings.max_sandboxes,
        memory_budget_bytes=int(settings.memory_overcommit * machine),
        reserve_bytes=settings.reserve_mib * MIB,
        available_bytes=lambda: 1 << 30,
        clock=clock,
    )
    for _ in range(500):
        admission.reserve(Limits().memory_bytes)


def test_a_window_forgets_what_is_too_old(clock):
    window = Window(600.0, clock)
    assert window.share() == 0.0
    for _ in range(3):
        window.add(counted=True)
    clock.now += 300
    for _ in range(9):
        window.add(counted=False)
    assert (window.counts(), window.share()) == ((3, 12), 0.25)
    clock.now += 299
    assert window.counts() == (3, 12)
    clock.now += 1
    assert window.counts() == (0, 9)
    clock.now += 600
    assert window.counts() == (0, 0)


def test_gaps_count_the_time_since_the_last(clock):
    gaps = Gaps(clock)
    assert gaps.mean() is None
    for _ in range(4):
        gaps.add()
        clock.now += 2.0
    assert gaps.mean() == pytest.approx(2.0)
    clock.now += 8.0
    assert gaps.mean() == pytest.approx(4.0)
