"""Turns: bounded, fair between runs, and none lost."""

import asyncio
from collections.abc import Sequence

import pytest

from critic.turns import Turns
from servicekit.errors import ResourceExhausted


async def served(turns: Turns, asked: Sequence[str]) -> list[str]:
    """The order in which runs get their turns when all wait for one holder."""
    order: list[str] = []

    async def take(run_id: str) -> None:
        async with turns.turn(run_id):
            order.append(run_id)

    async with asyncio.TaskGroup() as group, turns.turn("holder"):
        for run_id in asked:
            group.create_task(take(run_id))
        while turns.num_waiting < len(asked):
            await asyncio.sleep(0)
    return order


async def test_runs_take_turns_whatever_one_of_them_queues_first() -> None:
    order = await served(Turns(max_in_flight=1, max_waiting=99), ["big"] * 5 + ["small", "other"])
    assert order == ["big", "small", "other", "big", "big", "big", "big"]


async def test_more_than_may_wait_are_turned_away_with_a_time_to_come_back() -> None:
    turns = Turns(max_in_flight=1, max_waiting=0)
    async with turns.turn("a"):
        with pytest.raises(ResourceExhausted) as caught:
            async with turns.turn("b"):
                raise AssertionError("it was let in")
    assert (caught.value.reason, caught.value.retry_after_seconds) == ("JUDGE_BUSY", 1.0)
    async with turns.turn("b"):
        assert turns.num_waiting == 0


@pytest.mark.parametrize("granted", [False, True])
async def test_turn_of_one_who_left_goes_to_the_next(granted: bool) -> None:
    turns = Turns(max_in_flight=1, max_waiting=9)
    got = asyncio.Event()

    async def take(done: asyncio.Event | None = None) -> None:
        async with turns.turn("r"):
            if done is not None:
                done.set()

    async with asyncio.TaskGroup() as group:
        async with turns.turn("holder"):
            leaver = group.create_task(take())
            group.create_task(take(got))
            while turns.num_waiting < 2:
                await asyncio.sleep(0)
            if not granted:
                leaver.cancel()
        # With `granted`, the turn has just been given to the one who leaves in the same moment.
        leaver.cancel()
        async with asyncio.timeout(5):
            await got.wait()
    assert turns.num_waiting == 0
    async with asyncio.timeout(5), turns.turn("later"):
        pass
