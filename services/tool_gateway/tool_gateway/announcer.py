"""Tells tool.called events to the log without making a call wait for it.

The events are for people: when the log is away for so long that too many wait, further ones are dropped and counted.
"""

import asyncio
import logging
from collections.abc import Callable

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from eventbus.bus import EventBus
from eventbus.envelope import new_envelope
from servicekit.errors import HoneError
from tool_gateway.convert import fact_to_event
from tool_gateway.gateway import CallFact

_LOG = logging.getLogger("hone.tool_gateway")


class Announcer:
    """A queue of facts and the task that publishes them."""

    def __init__(self, bus: EventBus, clock: Callable[[], float], *, max_waiting: int) -> None:
        """Queue at most `max_waiting` facts."""
        self._bus = bus
        self._clock = clock
        self._waiting: asyncio.Queue[tuple[CallFact, Context] | None] = asyncio.Queue(max_waiting)
        self.dropped_count = 0

    def announce(self, fact: CallFact) -> None:
        """Queue a fact with the current trace context."""
        try:
            self._waiting.put_nowait((fact, otel_context.get_current()))
        except asyncio.QueueFull:
            self.dropped_count += 1
            _LOG.warning(
                "tool.called dropped: the event log is not taking events",
                extra={"rollout_id": fact.rollout_id, "dropped_count": self.dropped_count},
            )

    async def run(self) -> None:
        """Publish facts until `drain` has seen the last one out."""
        while (waiting := await self._waiting.get()) is not None:
            try:
                await self._publish(*waiting)
            finally:
                self._waiting.task_done()

    async def drain(self) -> None:
        """Wait until everything queued is published, then end `run`."""
        await self._waiting.join()
        await self._waiting.put(None)

    async def _publish(self, fact: CallFact, context: Context) -> None:
        mark = otel_context.attach(context)
        try:
            envelope = new_envelope(
                fact_to_event(fact),
                source="tool_gateway",
                run_id=fact.run_id,
                rollout_id=fact.rollout_id,
                epoch=fact.epoch,
                clock=self._clock,
            )
            await self._bus.publish(envelope)
        except HoneError as err:
            self.dropped_count += 1
            _LOG.warning(
                "tool.called could not be told",
                extra={"rollout_id": fact.rollout_id, "error": err.message},
            )
        finally:
            otel_context.detach(mark)
