"""Wires the executor to the event log: requests in, facts out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from google.protobuf.message import Message
from hone.common.v1 import identity_pb2
from hone.events.v1 import events_pb2

from eventbus.blobs import Blobs
from eventbus.bus import Delivery, EventBus, PublishAck
from eventbus.envelope import new_envelope
from eventbus.errors import LogTruncated
from rollout.convert import (
    adapter_from_proto,
    adapter_to_proto,
    job_from_proto,
    model_from_proto,
)
from rollout.engines.base import EngineError, PolicyKey
from rollout.executor import Executor
from rollout.failures import failure
from rollout.jobs import AdapterRef, RolloutJob
from rollout.policies import Policies
from servicekit.errors import HoneError
from trajectory import convert, outcome_convert
from trajectory.types import Attribution, Failure, FailureKind, RolloutRecord, TurnRecord

_LOG = logging.getLogger("hone.rollout")

SOURCE = "rollout"
CONSUMER = "rollout"
MAX_INLINE_BYTES = 512 * 1024
FAILURES = ("rollout_failed",)
ENDS = ("rollout_finished", *FAILURES)
MAX_DELIVER = 10


class BusReporter:
    """Publishes what happened to rollouts."""

    def __init__(self, bus: EventBus, blobs: Blobs, clock: Callable[[], float]) -> None:
        """Takes the bus."""
        self._bus = bus
        self._blobs = blobs
        self._clock = clock

    async def started(self, job: RolloutJob, epoch: int, owner: str, sandbox_id: str) -> None:
        """Publishes rollout.started."""
        payload = events_pb2.RolloutStarted(owner=owner, sandbox_id=sandbox_id)
        await self._publish(job, epoch, payload)

    async def turn(self, job: RolloutJob, epoch: int, turn: TurnRecord) -> None:
        """Publishes turn.taken."""
        payload = events_pb2.RolloutTurn(
            turn=turn.turn,
            policy_version=turn.policy_version,
            prompt_token_count=turn.prompt_token_count,
            sampled_token_count=turn.sampled_token_count,
            tool_call_count=len(turn.tool_calls),
            duration=convert.duration_to_proto(turn.generate_seconds + turn.tools_seconds),
        )
        await self._publish(job, epoch, payload)

    async def finished(self, job: RolloutJob, epoch: int, record: RolloutRecord) -> None:
        """Publishes rollout.finished, with the record inline or, if it is large, as a blob."""
        message = convert.rollout_record_to_proto(record)
        data = message.SerializeToString()
        if len(data) < MAX_INLINE_BYTES:
            payload = events_pb2.RolloutFinished(inline=message)
        else:
            name = f"rollouts/{job.run_id}/{job.rollout_id}/record"
            payload = events_pb2.RolloutFinished(blob=await self._blobs.put(name, data))
        await self._publish_end(job, epoch, payload)

    async def failed(self, job: RolloutJob, epoch: int, failure: Failure) -> None:
        """Publishes rollout.failed."""
        payload = events_pb2.RolloutFailed(failure=outcome_convert.failure_to_proto(failure))
        await self._publish_end(job, epoch, payload)

    async def refused(self, envelope: events_pb2.Envelope, reason: str) -> None:
        """Publishes rollout.failed for a request that cannot be read."""
        bad = failure(FailureKind.BAD_TASK, reason, retryable=False, blame=Attribution.CLIENT)
        await self._bus.publish(
            new_envelope(
                events_pb2.RolloutFailed(failure=outcome_convert.failure_to_proto(bad)),
                source=SOURCE,
                run_id=envelope.run_id,
                rollout_id=envelope.rollout_id,
                slot=envelope.slot,
                attempt=envelope.attempt,
                clock=self._clock,
            )
        )

    async def has_ended(self, job: RolloutJob, since_sequence: int) -> bool:
        """Looks for the end of the attempt behind its request; a purged log means a sealed run."""
        return await self._find(ENDS, job, since_sequence)

    async def was_given_up(self, job: RolloutJob, since_sequence: int) -> bool:
        """As `has_ended`, for failures alone: they are small, and records are not."""
        return await self._find(FAILURES, job, since_sequence)

    async def _find(self, types: Sequence[str], job: RolloutJob, since_sequence: int) -> bool:
        try:
            async with aclosing(
                self._bus.read(types, run_id=job.run_id, start_sequence=since_sequence)
            ) as events:
                async for event in events:
                    if event.envelope.rollout_id == job.rollout_id:
                        return True
        except LogTruncated:
            return True
        return False

    async def _publish_end(self, job: RolloutJob, epoch: int, payload: Message) -> None:
        ack = await self._publish(job, epoch, payload)
        extra = {"rollout_id": job.rollout_id, "sequence": ack.sequence, "duplicate": ack.duplicate}
        if ack.duplicate:
            _LOG.warning("end not told: the log holds an end of this attempt", extra=extra)
        else:
            _LOG.info("end told", extra=extra)

    async def _publish(self, job: RolloutJob, epoch: int, payload: Message) -> PublishAck:
        slot: identity_pb2.Slot = convert.slot_to_proto(job.slot)
        return await self._bus.publish(
            new_envelope(
                payload,
                source=SOURCE,
                run_id=job.run_id,
                rollout_id=job.rollout_id,
                slot=slot,
                attempt=job.attempt,
                epoch=epoch,
                clock=self._clock,
            )
        )


class BusBlobFetcher:
    """Fetches adapters from the object store."""

    def __init__(self, blobs: Blobs) -> None:
        """Takes the store."""
        self._blobs = blobs

    async def fetch(self, ref: AdapterRef, destination: Path) -> None:
        """Writes a blob to a file once its size and sha256 are right."""
        await self._blobs.get(adapter_to_proto(ref), destination)


async def consume_requests(
    bus: EventBus,
    executor: Executor,
    reporter: BusReporter,
    *,
    stop: asyncio.Event,
    max_in_flight: int,
    ack_wait_seconds: float,
) -> None:
    """Handles rollout.requested events until told to stop."""

    async def handle(delivery: Delivery) -> None:
        try:
            job = job_from_proto(delivery.envelope)
        except ValueError as error:
            _LOG.warning(
                "request refused",
                extra={"rollout_id": delivery.envelope.rollout_id, "reason": str(error)},
            )
            await reporter.refused(delivery.envelope, f"rollout request: {error}")
            return
        await executor.execute(job, delivery.sequence)

    await bus.consume(
        CONSUMER,
        ["rollout_requested"],
        handle,
        stop=stop,
        max_in_flight=max_in_flight,
        ack_wait_seconds=ack_wait_seconds,
        max_deliver=MAX_DELIVER,
    )


async def follow_policies(bus: EventBus, policies: Policies, *, stop: asyncio.Event) -> None:
    """Loads what is published for models that run here, before the first rollout asks for it.

    Every replica reads the log for itself; a policy that is missed is loaded on demand.
    """
    async with aclosing(bus.read(["policy_published"], follow=True, stop=stop)) as events:
        async for event in events:
            published = event.envelope.policy_published
            policy = PolicyKey(event.envelope.run_id, published.policy_version)
            try:
                model = model_from_proto(published.model)
                adapter = (
                    adapter_from_proto(published.adapter) if published.HasField("adapter") else None
                )
                if policies.serves(model):
                    await policies.load(model, policy, adapter)
            except (EngineError, HoneError, ValueError) as error:
                _LOG.warning(
                    "published policy not loaded",
                    extra={
                        "run_id": policy.run_id,
                        "version": policy.version,
                        "error": str(error),
                    },
                )
