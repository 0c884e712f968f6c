"""reward.assigned: scored outcomes credit what was recalled, once per event."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2
from opentelemetry.context import Context

from eventbus.bus import Delivery, Handler
from eventbus.envelope import new_envelope
from eventbus.errors import RetryLater
from eventbus.memory_bus import MemoryBus
from memory.consumer import consume
from memory.memories import Memories
from memory.records import Credited
from memory.requests import Credit, Recall
from servicekit.errors import InvalidArgument

Add = Callable[..., str]
ROLLOUT = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "0190b5c2-0000-7000-8000-0000000000ff"


class Replay(MemoryBus):
    """Delivers a log from its beginning, whatever was acknowledged before, and ends."""

    def __init__(self, log: Sequence[events_pb2.Envelope]) -> None:
        super().__init__()
        self.log = log

    async def consume(
        self, consumer: str, types: Sequence[str], handler: Handler, **options: Any
    ) -> None:
        for sequence, envelope in enumerate(self.log, start=1):
            assert envelope.WhichOneof("payload") in types
            await handler(
                Delivery(envelope=envelope, sequence=sequence, delivery_count=1, context=Context())
            )


async def act_on(memories: Memories, *log: events_pb2.Envelope) -> None:
    await consume(Replay(log), memories, asyncio.Event())


def judged(rollout_id: str = ROLLOUT, version: str = "g1", **outcome: Any) -> events_pb2.Envelope:
    return new_envelope(
        events_pb2.RewardAssigned(grader_version=version, **outcome),
        source="grader",
        run_id="run_x",
        rollout_id=rollout_id,
        clock=lambda: 1.0,
    )


def scored(score: float, **changes: str) -> events_pb2.Envelope:
    return judged(scored=outcome_pb2.Scored(score=score), **changes)


@pytest.fixture
def used(memories: Memories, remember: Add) -> str:
    """A memory that the rollout recalled, beside one that it did not."""
    one = remember("0.9 used")
    remember("0.1 not used")
    memories.recall(Recall(namespace="ns", query="q", rollout_id=ROLLOUT))
    return one


def learned(memories: Memories) -> list[tuple[float, int]]:
    page = memories.page("ns", "", 0, 100)
    return [(memory.utility, memory.credit_count) for memory in page.memories]


async def test_a_scored_rollout_credits_what_it_recalled_and_nothing_else(
    memories: Memories, used: str
) -> None:
    await act_on(memories, scored(1.0))
    assert learned(memories) == [(0.5, 1), (0.0, 0)]


async def test_masked_rollouts_and_rollouts_that_recalled_nothing_change_nothing(
    memories: Memories, used: str
) -> None:
    masked = outcome_pb2.Masked(kind=outcome_pb2.OUTCOME_KIND_EXTRACTION, reason="unreadable")
    await act_on(memories, judged(masked=masked), scored(1.0, rollout_id=OTHER))
    assert learned(memories) == [(0.0, 0), (0.0, 0)]


async def test_the_whole_log_again_changes_nothing(
    memories: Memories, used: str, remember: Add, open_memories: Callable[..., Memories]
) -> None:
    log = (scored(1.0), scored(1.0, rollout_id=OTHER), scored(0.0, version="g2"))
    await act_on(memories, *log, *log)
    assert learned(memories) == [(0.25, 2), (0.0, 0)]
    # Recalled after its rollout was judged: no replay credits it.
    remember("0.9 late")
    memories.recall(Recall(namespace="ns", query="q", rollout_id=OTHER))
    memories.close()
    restarted = open_memories()
    await act_on(restarted, *log)
    assert learned(restarted) == [(0.25, 2), (0.0, 0), (0.0, 0)]
    restarted.close()


async def test_a_caller_cannot_take_an_events_place(memories: Memories, used: str) -> None:
    event = scored(1.0)
    memories.credit(Credit(credit_id=event.event_id, reward=0.0, rollout_id=ROLLOUT))
    await act_on(memories, event)
    assert learned(memories)[0] == (0.5, 2)


async def test_a_file_that_cannot_be_used_brings_the_event_back_and_credits_once(
    memories: Memories, used: str, file: Path
) -> None:
    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("credited", "away")
    with pytest.raises(RetryLater, match="no such table"):
        await act_on(memories, scored(1.0))
    rename("away", "credited")
    assert learned(memories) == [(0.0, 0), (0.0, 0)]
    await act_on(memories, scored(1.0))
    assert learned(memories) == [(0.5, 1), (0.0, 0)]


async def test_a_damaged_file_brings_the_event_back(
    memories: Memories, used: str, damage: Callable[[str], None], open_memories: Any
) -> None:
    memories.close()
    damage("credits")
    damaged = open_memories()
    with pytest.raises(RetryLater, match="is damaged"):
        await act_on(damaged, scored(1.0))
    damaged.close()


async def test_an_event_of_no_rollout_names_that_field(memories: Memories) -> None:
    event = scored(1.0)
    event.rollout_id = ""
    with pytest.raises(InvalidArgument, match="rollout_id: found nothing"):
        await act_on(memories, event)


async def test_a_score_that_is_no_number_is_refused(memories: Memories, used: str) -> None:
    with pytest.raises(InvalidArgument, match="reward: found nan"):
        await act_on(memories, scored(float("nan")))
    assert learned(memories) == [(0.0, 0), (0.0, 0)]


class Watched(Memories):
    """Keeps the first credit waiting for a second one, and the order in which they end."""

    def __init__(self, inner: Memories) -> None:
        self.inner = inner
        self.entered: list[float] = []
        self.ended: list[float] = []
        self.second = threading.Event()

    def credit(self, credit: Credit) -> tuple[Credited, ...]:
        self.entered.append(credit.reward)
        if len(self.entered) == 1:
            self.second.wait(0.5)
        else:
            self.second.set()
        credited = self.inner.credit(credit)
        self.ended.append(credit.reward)
        return credited


async def test_events_are_credited_in_the_order_of_the_log(memories: Memories, used: str) -> None:
    bus, stop, watched = MemoryBus(), asyncio.Event(), Watched(memories)
    rewards = [1.0, -1.0, 0.25]
    for number, reward in enumerate(rewards):
        await bus.publish(scored(reward, version=f"g{number}"))
    working = asyncio.create_task(consume(bus, watched, stop))
    async with asyncio.timeout(10):
        while len(watched.ended) < len(rewards):
            await asyncio.sleep(0.005)
    stop.set()
    await working
    assert watched.ended == rewards
    assert learned(memories)[0] == (((0.5 - 1) / 2 + 0.25) / 2, 3)


async def test_events_of_the_bus_are_consumed_until_told_to_stop(
    memories: Memories, used: str
) -> None:
    bus, stop = MemoryBus(), asyncio.Event()
    working = asyncio.create_task(consume(bus, memories, stop))
    await bus.publish(scored(1.0))
    await bus.publish(scored(1.0))
    async with asyncio.timeout(10):
        while learned(memories)[0][1] == 0:
            await asyncio.sleep(0.005)
    stop.set()
    await working
    assert learned(memories) == [(0.5, 1), (0.0, 0)]
