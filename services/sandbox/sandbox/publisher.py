"""Tells the suite about sandboxes over the event bus, and hears from it what ends and what is about to begin."""

import asyncio
from collections.abc import Callable

from hone.events.v1 import events_pb2
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context

from eventbus.bus import Delivery, EventBus
from eventbus.envelope import new_envelope
from sandbox import convert
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.plans import Plans, RunNeeds
from sandbox.fleet.records import SandboxRecord
from sandbox.types import SandboxInfo
from servicekit import attributes
from servicekit.errors import Unavailable

SOURCE = "sandbox"
CONSUMER = "sandbox"
ENDINGS = ("reward_assigned", "rollout_failed")
"""Events after which nothing needs a rollout's sandboxes."""
PLANS = ("run_started", "run_step_planned", "run_finished")
"""Events from which it shows how many sandboxes are about to be needed."""

TELL_SECONDS = 5.0
"""How long one try to tell a destruction may take; it is tried again until it succeeds."""


class BusEvents:
    """Keeps `sandbox.fleet.events.Events` over an event bus."""

    def __init__(self, bus: EventBus, tracer: trace.Tracer, clock: Callable[[], float]) -> None:
        """Publishes on `bus`."""
        self._bus = bus
        self._tracer = tracer
        self._clock = clock

    async def created(self, info: SandboxInfo) -> None:
        """Tell that a sandbox is ready."""
        payload = events_pb2.SandboxCreated(
            sandbox_id=info.sandbox_id,
            backend=info.backend,
            isolation=info.isolation,
            rootfs_digest=info.rootfs_digest,
            duration=convert.duration(info.provision_seconds),
            template=info.template,
            warm=info.warm,
        )
        await self._bus.publish(
            new_envelope(
                payload,
                source=SOURCE,
                run_id=info.run_id,
                rollout_id=info.key.rollout_id,
                epoch=info.epoch,
                clock=self._clock,
            )
        )

    async def destroyed(self, record: SandboxRecord) -> None:
        """Tell that nothing is left of a sandbox, in the trace in which it was made."""
        payload = events_pb2.SandboxDestroyed(
            sandbox_id=record.sandbox_id, cause=str(record.cause), polluted=record.polluted
        )
        envelope = new_envelope(
            payload,
            source=SOURCE,
            run_id=record.run_id,
            rollout_id=record.key.rollout_id,
            epoch=record.epoch,
            clock=self._clock,
        )
        parent = Context()
        if record.trace_parent:
            parent = propagate.extract({"traceparent": record.trace_parent}, Context())
        mark = otel_context.attach(parent)
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._publish_destroyed(envelope, record)
        except TimeoutError as error:
            raise Unavailable(f"the log did not answer within {TELL_SECONDS:g} s") from error
        finally:
            otel_context.detach(mark)

    async def _publish_destroyed(
        self, envelope: events_pb2.Envelope, record: SandboxRecord
    ) -> None:
        if not trace.get_current_span().get_span_context().is_valid:
            await self._bus.publish(envelope)
            return
        named = {
            attributes.ROLLOUT_ID: record.key.rollout_id,
            attributes.SANDBOX_ID: record.sandbox_id,
            attributes.SANDBOX_CAUSE: str(record.cause),
        }
        with self._tracer.start_as_current_span(attributes.SPAN_SANDBOX_DESTROY, attributes=named):
            await self._bus.publish(envelope)


async def consume(bus: EventBus, fleet: Fleet, plans: Plans, stop: asyncio.Event) -> None:
    """Act on what the suite tells; seeing an ending again changes nothing, and an old plan counts no more.

    Destroys the sandboxes of every rollout whose outcome is told, and notes what a planned step will need.
    """

    async def act(delivery: Delivery) -> None:
        envelope = delivery.envelope
        if envelope.WhichOneof("payload") in ENDINGS:
            await fleet.end_rollout(envelope.rollout_id)
        else:
            _note(plans, envelope)
            fleet.prepare()

    await bus.consume(CONSUMER, [*ENDINGS, *PLANS], act, stop=stop, max_in_flight=64)


def _note(plans: Plans, envelope: events_pb2.Envelope) -> None:
    match envelope.WhichOneof("payload"):
        case "run_started":
            rollout = envelope.run_started.spec.rollout
            needs = RunNeeds(uses_sandboxes=bool(rollout.tools), template=rollout.sandbox_template)
            plans.run_started(envelope.run_id, needs)
        case "run_step_planned":
            planned = envelope.run_step_planned
            count = len(planned.task_ids) * max(1, planned.group_size)
            told_time = envelope.create_time.ToNanoseconds() / 1e9
            plans.step_planned(envelope.event_id, envelope.run_id, count, told_time)
        case "run_finished":
            plans.run_finished(envelope.run_id)
