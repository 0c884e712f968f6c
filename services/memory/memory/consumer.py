"""Acts on reward.assigned: a scored rollout credits the memories that it recalled, once per event.

The event's id is recorded in the transaction that changes the utilities, so that replaying the whole stream changes
nothing. It is recorded for rollouts that recalled nothing too: what they recall later is not credited by a replay.
Masked rollouts say nothing about what they recalled, and failed ones have no such event.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from eventbus.bus import Delivery, EventBus
from eventbus.errors import RetryLater
from memory import checks
from memory.memories import Memories
from memory.requests import Credit
from servicekit.errors import DataLoss, Unavailable

log = logging.getLogger(__name__)

CONSUMER = "memory"
"""Name of the durable consumer."""
_RETRY_SECONDS = 5.0


async def follow(
    connect: Callable[[], Awaitable[EventBus]],
    memories: Memories,
    stop: asyncio.Event,
) -> None:
    """Consume until told to stop, once the bus is there."""
    connecting = asyncio.ensure_future(connect())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([connecting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not connecting.done():
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            await connecting
        return
    bus = connecting.result()
    try:
        await consume(bus, memories, stop)
    finally:
        await bus.close()


async def consume(bus: EventBus, memories: Memories, stop: asyncio.Event) -> None:
    """Credit what scored rollouts recalled, until told to stop."""

    async def act(delivery: Delivery) -> None:
        envelope = delivery.envelope
        if envelope.reward_assigned.WhichOneof("outcome") != "scored":
            return
        checks.name("rollout_id", envelope.rollout_id)
        credit = Credit(
            credit_id=envelope.event_id,
            source="event",
            rollout_id=envelope.rollout_id,
            reward=envelope.reward_assigned.scored.score,
        )
        try:
            credited = await asyncio.to_thread(memories.credit, credit)
        except (Unavailable, DataLoss) as err:
            raise RetryLater(_RETRY_SECONDS, reason=err.message) from err
        if credited:
            log.info(
                "credited",
                extra={
                    "rollout_id": envelope.rollout_id,
                    "reward": credit.reward,
                    "memory_ids": [item.memory_id for item in credited],
                },
            )

    # One at a time: a moving average depends on the order of the rewards, which is the log's.
    await bus.consume(CONSUMER, ["reward_assigned"], act, stop=stop, max_in_flight=1)
