"""Acts on rollout.finished: grade, write the judgement, tell it, exactly once per attempt.

A late attempt is graded like any other; the learner decides what counts. The judgement is written before it is told
(see `store`), and its event id is derived, so neither a redelivery nor a crash in between can tell it twice.

What a grader needs may be away for a while: the event then goes back to the log with a growing delay, so that other
rollouts are graded meanwhile, and ends in rollout.failed only after the patience of `patience`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Protocol

from hone.events.v1 import events_pb2
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from eventbus.bus import Delivery, EventBus
from eventbus.envelope import new_envelope
from eventbus.errors import RetryLater
from eventbus.outgoing import MAX_EVENT_BYTES, checked
from grader.convert import record_from_proto, verdict_to_event
from grader.desk import GradingDesk, Verdict
from grader.grading import failure_of
from grader.instruments.boxes import Origin
from grader.patience import LONGEST_DELAY_SECONDS, Fault, Patience, fault_of
from grader.results import GradingFaultError
from grader.store import Judged, JudgedStore
from servicekit import attributes
from servicekit.errors import HoneError, InvalidArgument
from trajectory.types import (
    SHARED_ISOLATION,
    GraderErrorKind,
    Masked,
    OutcomeKind,
    RolloutRecord,
    Scored,
)

_LOG = logging.getLogger("hone.grader")
CONSUMER = "grader"
"""Name of the durable consumer that all replicas share."""


class Leases(Protocol):
    """The agent's sandbox while its rollout is being graded."""

    def held(
        self, sandbox_id: str, rollout_id: str, epoch: int
    ) -> AbstractAsyncContextManager[None]:
        """Keep one sandbox alive inside the block."""
        ...

    async def keep(self, sandbox_id: str, rollout_id: str, epoch: int, seconds: float) -> None:
        """Keep one sandbox alive for a while, until grading begins again."""
        ...

    async def pollution(self, sandbox_id: str, rollout_id: str, epoch: int) -> str:
        """Say why a rollout's shared environment makes its result worthless; empty if it does not."""
        ...


class FinishedConsumer:
    """Judges finished rollouts."""

    def __init__(
        self,
        *,
        bus: EventBus,
        store: JudgedStore,
        desk: GradingDesk,
        leases: Leases,
        patience: Patience,
        tracer: trace.Tracer,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """Consume nothing yet."""
        self._bus = bus
        self._store = store
        self._desk = desk
        self._leases = leases
        self._patience = patience
        self._tracer = tracer
        self._clock = clock
        self._rng = rng

    async def run(self, stop: asyncio.Event, *, max_in_flight: int) -> None:
        """Tell what an earlier process left untold, then judge until told to stop."""
        for judged in await asyncio.to_thread(self._store.unpublished):
            await self._tell_again(judged)
        await self._bus.consume(
            CONSUMER, ["rollout_finished"], self.handle, stop=stop, max_in_flight=max_in_flight
        )

    async def handle(self, delivery: Delivery) -> None:
        """Judge one finished rollout.

        Raises:
            RetryLater: grading could not be done, or told, and will be tried again.
        """
        try:
            await self._handle(delivery)
        except HoneError as err:
            if not err.retryable:
                raise
            # The judgement cannot be written or told now, which is no attempt to judge.
            raise RetryLater(LONGEST_DELAY_SECONDS, reason=err.message) from err

    async def _handle(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        known = await asyncio.to_thread(self._store.find, envelope.event_id)
        if known is None:
            await self._judge_and_tell(delivery)
        elif not known.published:
            await self._tell_again(known)

    async def _judge_and_tell(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        with self._span(envelope) as span:
            verdict = await self._verdict(delivery)
            try:
                event = self._event(envelope, verdict)
            except (ValueError, InvalidArgument) as err:
                # What is written and cannot be told would come back at each start.
                verdict = _untellable(verdict, err)
                event = self._event(envelope, verdict)
            _describe(span, verdict)
            judged = Judged(
                finished_event_id=envelope.event_id,
                rollout_id=envelope.rollout_id,
                attempt=envelope.attempt,
                grader_version=verdict.grader_version,
                event=event.SerializeToString(),
                trace_parent=_trace_parent(),
            )
            added = await asyncio.to_thread(self._store.add, judged, self._clock())
            if added:
                await self._tell(judged)
        _LOG.info(
            "graded",
            extra={
                "rollout_id": envelope.rollout_id,
                "attempt": envelope.attempt,
                "outcome": type(verdict.outcome).__name__.lower(),
                "score": verdict.outcome.score if isinstance(verdict.outcome, Scored) else None,
                "grader_version": verdict.grader_version,
            },
        )

    def _span(self, envelope: events_pb2.Envelope) -> AbstractContextManager[trace.Span]:
        """A span under the rollout's; none where the event came without a trace."""
        if not trace.get_current_span().get_span_context().is_valid:
            return nullcontext(trace.INVALID_SPAN)
        return self._tracer.start_as_current_span(
            attributes.SPAN_GRADE,
            attributes={
                attributes.ROLLOUT_ID: envelope.rollout_id,
                attributes.RUN_ID: envelope.run_id,
                attributes.ATTEMPT: envelope.attempt,
            },
            record_exception=False,
            set_status_on_exception=False,
        )

    async def _verdict(self, delivery: Delivery) -> Verdict:
        """Grade, or decide that grading cannot be done.

        Raises:
            RetryLater: it cannot be done yet.
        """
        envelope = delivery.envelope
        record: RolloutRecord | None = None
        grader_json = ""
        try:
            message = await self._record(envelope.rollout_finished)
            grader_json = message.grader_json
            record = record_from_proto(message)
            return await self._judged(record, grader_json, envelope)
        # Whatever breaks in grading must end in an outcome: the slot waits for exactly one.
        except Exception as err:
            fault = fault_of(err)
            if not isinstance(err, GradingFaultError | HoneError):
                _LOG.exception("grading broke", extra={"rollout_id": envelope.rollout_id})
        await self._wait(fault, delivery, record)
        version = self._desk.version_of(grader_json)
        return Verdict(outcome=failure_of(fault.error), grader_version=version)

    async def _judged(
        self, record: RolloutRecord, grader_json: str, envelope: events_pb2.Envelope
    ) -> Verdict:
        async with self._leases.held(record.sandbox_id, envelope.rollout_id, envelope.epoch):
            origin = Origin(
                rollout_id=envelope.rollout_id,
                run_id=envelope.run_id,
                epoch=envelope.epoch,
                sandbox_id=record.sandbox_id,
            )
            verdict = await self._desk.judge(record, grader_json, origin)
            return await self._unless_polluted(verdict, record, envelope)

    async def _wait(self, fault: Fault, delivery: Delivery, record: RolloutRecord | None) -> None:
        """Give the event back if trying again may help; the agent's sandbox lives until then."""
        envelope = delivery.envelope
        waited = self._clock() - envelope.create_time.ToMicroseconds() / 1e6
        delay = self._patience.delay_seconds(fault, delivery.delivery_count, waited, self._rng)
        if delay is None:
            return
        if record is not None and record.sandbox_id:
            await self._leases.keep(record.sandbox_id, envelope.rollout_id, envelope.epoch, delay)
        raise RetryLater(delay, reason=fault.error.detail) from fault.error

    async def _unless_polluted(
        self, verdict: Verdict, record: RolloutRecord, envelope: events_pb2.Envelope
    ) -> Verdict:
        """Take the vote from a rollout in a shared environment that others may have changed."""
        shared = record.sandbox_isolation.startswith(SHARED_ISOLATION)
        if not shared or not isinstance(verdict.outcome, Scored | Masked):
            return verdict
        reason = await self._leases.pollution(
            record.sandbox_id, envelope.rollout_id, envelope.epoch
        )
        if not reason:
            return verdict
        masked = Masked(kind=OutcomeKind.POLLUTED, reason=reason)
        return Verdict(outcome=masked, grader_version=verdict.grader_version)

    async def _record(self, finished: events_pb2.RolloutFinished) -> events_pb2.RolloutRecord:
        if finished.WhichOneof("record") == "inline":
            return finished.inline
        blobs = await self._bus.blobs()
        return events_pb2.RolloutRecord.FromString(await blobs.get(finished.blob))

    def _event(self, finished: events_pb2.Envelope, verdict: Verdict) -> events_pb2.Envelope:
        """Return the event that tells a verdict.

        Raises:
            ValueError: a text holds what no event can.
            InvalidArgument: it is larger than an event may be.
        """
        event = new_envelope(
            verdict_to_event(verdict),
            source="grader",
            run_id=finished.run_id,
            rollout_id=finished.rollout_id,
            slot=finished.slot if finished.HasField("slot") else None,
            attempt=finished.attempt,
            epoch=finished.epoch,
            grader_version=verdict.grader_version,
            clock=self._clock,
        )
        checked(event, MAX_EVENT_BYTES)
        return event

    async def _tell_again(self, judged: Judged) -> None:
        """Tell a judgement in the trace context of the span that made it."""
        parent = propagate.extract({"traceparent": judged.trace_parent})
        mark = otel_context.attach(parent)
        try:
            await self._tell(judged)
        finally:
            otel_context.detach(mark)

    async def _tell(self, judged: Judged) -> None:
        await self._bus.publish(events_pb2.Envelope.FromString(judged.event))
        await asyncio.to_thread(self._store.mark_published, judged.finished_event_id)


def _untellable(verdict: Verdict, err: Exception) -> Verdict:
    """Return the failure to tell instead, under the same event id."""
    fault = GradingFaultError(
        f"the judgement cannot be told: {err}",
        kind=GraderErrorKind.INTERNAL,
        retryable=True,
        client=False,
    )
    return Verdict(outcome=failure_of(fault), grader_version=verdict.grader_version)


def _trace_parent() -> str:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")


def _describe(span: trace.Span, verdict: Verdict) -> None:
    outcome = verdict.outcome
    span.set_attribute(attributes.OUTCOME, type(outcome).__name__.lower())
    if isinstance(outcome, Scored):
        span.set_attribute(attributes.SCORE, outcome.score)
        label = outcome.kind.value if outcome.kind is not None else "success"
        for reward in outcome.rewards:
            span.add_event(
                "gen_ai.evaluation.result",
                {
                    attributes.GEN_AI_EVALUATION_NAME: reward.name,
                    attributes.GEN_AI_EVALUATION_SCORE: reward.value,
                },
            )
        span.set_attribute(
            attributes.GEN_AI_EVALUATION_NAME, ",".join(reward.name for reward in outcome.rewards)
        )
        span.set_attribute(attributes.GEN_AI_EVALUATION_SCORE, outcome.score)
        span.set_attribute(attributes.GEN_AI_EVALUATION_LABEL, label)
    elif isinstance(outcome, Masked):
        span.set_attribute(
            attributes.GEN_AI_EVALUATION_LABEL, f"masked {outcome.kind or ''}".strip()
        )
    else:
        span.set_attribute(attributes.ERROR_KIND, outcome.kind.value)
        span.set_status(trace.Status(trace.StatusCode.ERROR, outcome.detail))
