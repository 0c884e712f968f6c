"""The event log as the run controller sees it, over eventbus: facts out, requests and announcements in."""

import asyncio
import logging
import random
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf.message import DecodeError, Message
from hone.common.v1 import blob_pb2, identity_pb2, outcome_pb2, run_spec_pb2
from hone.events.v1 import events_pb2
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from eventbus.blobs import Blobs
from eventbus.bus import EventBus, LoggedEvent
from eventbus.envelope import new_envelope
from eventbus.errors import LogTruncated
from learner.ports import LogGone
from learner.rollouts.facts import Ended, Fact, Finished, Policy, Requested
from learner.rollouts.ledger import Wanted
from learner.runs.checkpoints import RolledBack
from servicekit import attributes
from servicekit.errors import DataLoss, NotFound
from servicekit.identity import new_rollout_id, rollout_scope
from trajectory import convert, outcome_convert
from trajectory.types import Attribution, Failure, FailureKind, Outcome, Phase, Slot, Task

log = logging.getLogger(__name__)

SOURCE = "learner"
FACT_TYPES = (
    "rollout_requested",
    "rollout_finished",
    "rollout_failed",
    "reward_assigned",
    "dead_lettered",
)
DECIDING_CONSUMERS = {"rollout": FailureKind.INTERNAL, "grader": FailureKind.GRADER}
"""Consumers without whom an attempt never ends; what they gave up on is a failure of ours."""

ADMISSION_LIMIT = 0.8
"""Share of the stream beyond which no rollouts are requested: results of those under way must still fit."""

ENDS = {
    "completed": events_pb2.RUN_END_COMPLETED,
    "stopped": events_pb2.RUN_END_STOPPED,
    "failed": events_pb2.RUN_END_FAILED,
}


class BusRunLog:
    """The log of one run; implements `facts.RunLog`."""

    def __init__(
        self,
        *,
        run_id: str,
        spec: run_spec_pb2.RunSpec,
        bus: EventBus,
        blobs: Blobs,
        clock: Callable[[], float],
        rng: random.Random,
        temperature: float,
        eval_temperature: float,
    ) -> None:
        """Tells and reads as the learner of `run_id`; evaluation draws at a temperature of its own."""
        self.run_id = run_id
        self._spec = spec
        self._bus = bus
        self._blobs = blobs
        self._clock = clock
        self._rng = rng
        self._temperature = temperature
        self._eval_temperature = eval_temperature
        self._tracer = trace.get_tracer("hone.learner")

    async def facts(self, after_sequence: int, *, follow: bool) -> AsyncGenerator[Fact, None]:
        """Yields what the log tells of this run after a position, in order."""
        events = self._bus.read(
            types=FACT_TYPES,
            run_id=self.run_id,
            start_sequence=after_sequence + 1,
            follow=follow,
        )
        async with aclosing(events):
            try:
                async for event in events:
                    fact = await self._fact(event)
                    if fact is not None:
                        yield fact
            except LogTruncated as error:
                raise LogGone(max(0, error.first_sequence - 1)) from error

    async def _fact(self, event: LoggedEvent) -> Fact | None:
        envelope, sequence = event.envelope, event.sequence
        rollout_id = envelope.rollout_id
        match envelope.WhichOneof("payload"):
            case "rollout_requested":
                slot = convert.slot_from_proto(envelope.slot)
                return Requested(
                    sequence=sequence, slot=slot, rollout_id=rollout_id, attempt=envelope.attempt
                )
            case "rollout_finished":
                finished = envelope.rollout_finished
                return await self._finished(sequence, rollout_id, finished, event.context)
            case "dead_lettered":
                letter = envelope.dead_lettered
                if letter.consumer not in DECIDING_CONSUMERS or not rollout_id:
                    return None
                outcome: Outcome = Failure(
                    kind=DECIDING_CONSUMERS[letter.consumer],
                    retryable=True,
                    attributable=Attribution.INFRA,
                    detail=f"{letter.consumer} gave up on {letter.subject}: {letter.reason}",
                )
            case "rollout_failed":
                outcome = outcome_convert.failure_from_proto(envelope.rollout_failed.failure)
            case "reward_assigned" if envelope.reward_assigned.HasField("scored"):
                outcome = outcome_convert.scored_from_proto(envelope.reward_assigned.scored)
            case "reward_assigned":
                outcome = outcome_convert.masked_from_proto(envelope.reward_assigned.masked)
            case _:
                return None
        return Ended(
            sequence=sequence, rollout_id=rollout_id, outcome=outcome, context=event.context
        )

    async def _finished(
        self, sequence: int, rollout_id: str, finished: events_pb2.RolloutFinished, context: Context
    ) -> Fact:
        try:
            record = convert.rollout_record_from_proto(await self._record(finished))
        except (ValueError, DecodeError, NotFound, DataLoss) as error:
            # A record that is gone or breaks the token contract is never trained on; a new attempt can be sound.
            log.error("rollout record refused: %s", error, extra={"rollout_id": rollout_id})
            failure = Failure(
                kind=FailureKind.INTERNAL,
                retryable=True,
                attributable=Attribution.INFRA,
                detail=f"record refused: {error}",
            )
            return Ended(sequence=sequence, rollout_id=rollout_id, outcome=failure, context=context)
        return Finished(sequence=sequence, rollout_id=rollout_id, record=record)

    async def _record(self, finished: events_pb2.RolloutFinished) -> events_pb2.RolloutRecord:
        if finished.WhichOneof("record") != "blob":
            return finished.inline
        with tempfile.TemporaryDirectory() as folder:
            path = await self._blobs.get(finished.blob, Path(folder) / "record")
            return events_pb2.RolloutRecord.FromString(path.read_bytes())

    async def request(self, wanted: Wanted, task: Task, policy: Policy, seed: int) -> str:
        """Asks for an attempt; the root span of its trace is the request."""
        rollout_id = new_rollout_id(self._clock, self._rng)
        rollout = self._spec.rollout
        deadline = self._clock() + convert.duration_from_proto(rollout.timeout)
        payload = events_pb2.RolloutRequested(
            task=convert.task_to_proto(task),
            rollout=rollout,
            model=self._spec.model,
            policy_version=policy.version,
            adapter=_blob(policy),
            grader_json=self._spec.grader_json,
            deadline_time=convert.time_to_proto(datetime.fromtimestamp(deadline, UTC)),
        )
        evaluating = wanted.slot.phase is Phase.EVALUATE
        payload.sampling.temperature = self._eval_temperature if evaluating else self._temperature
        payload.sampling.max_new_tokens = rollout.max_new_tokens
        payload.sampling.seed = seed
        slot = wanted.slot
        span_attributes: dict[str, str | int] = {
            attributes.ROLLOUT_ID: rollout_id,
            attributes.RUN_ID: self.run_id,
            attributes.TASK_ID: task.task_id,
            attributes.STEP: slot.step,
            attributes.GROUP_INDEX: slot.group_index,
            attributes.SAMPLE_INDEX: slot.sample_index,
            attributes.ATTEMPT: wanted.attempt,
            attributes.POLICY_VERSION: policy.version,
        }
        with (
            rollout_scope(rollout_id),
            self._tracer.start_as_current_span(
                attributes.SPAN_REQUEST_ROLLOUT,
                context=Context(),
                kind=SpanKind.PRODUCER,
                attributes=span_attributes,
            ),
        ):
            await self._publish(
                payload,
                rollout_id=rollout_id,
                slot=convert.slot_to_proto(slot),
                attempt=wanted.attempt,
            )
        return rollout_id

    async def has_room(self) -> bool:
        """Says whether the stream is less full than the admission limit."""
        return (await self._bus.usage()).fraction < ADMISSION_LIMIT

    async def abandon(self, slot: Slot, rollout_id: str, attempt: int, reason: str) -> None:
        """Ends an attempt under the id that its executor would use, so that the stream admits one end only."""
        failure = outcome_pb2.Failure(
            kind=outcome_pb2.FAILURE_KIND_DEADLINE,
            retryable=False,
            attributable=outcome_pb2.ATTRIBUTION_INFRA,
            detail=reason,
        )
        await self._publish(
            events_pb2.RolloutFailed(failure=failure),
            rollout_id=rollout_id,
            slot=convert.slot_to_proto(slot),
            attempt=attempt,
        )

    async def store_adapter(self, version: int, folder: Path) -> object:
        """Packs the folder without times and owners, so that equal weights give an equal blob.

        Whole models are large: as many are kept as may act at once, and a newer one takes the oldest one's place. Who
        still asks for that one finds that the digest is another.
        """
        name = f"adapters/{self.run_id}/v{version}"
        if self._spec.train.weights == "full":
            name = f"weights/{self.run_id}/{version % (self._spec.train.max_staleness + 2)}"
        with tempfile.TemporaryDirectory() as temporary:
            packed = Path(temporary) / "adapter.tar"
            await asyncio.to_thread(_pack, folder, packed)
            return await self._blobs.put(name, packed)

    async def publish_policy(self, policy: Policy) -> None:
        """Tells that a version serves from now on."""
        await self._publish(
            events_pb2.PolicyPublished(
                policy_version=policy.version, adapter=_blob(policy), model=self._spec.model
            )
        )

    async def started(self) -> int:
        """Tells that the run began; returns the position of the event."""
        return await self._publish(events_pb2.RunStarted(spec=self._spec))

    async def planned(self, phase: str, step: int, task_ids: Sequence[str], group: int) -> None:
        """Tells which tasks a step samples."""
        await self._publish(
            events_pb2.RunStepPlanned(
                phase=identity_pb2.Phase.Value(f"PHASE_{phase.upper()}"),
                step=step,
                task_ids=task_ids,
                group_size=group,
            )
        )

    async def trained(
        self, step: int, version: int, rollout_ids: Sequence[str], metrics: Mapping[str, float]
    ) -> None:
        """Tells that an update is done and saved."""
        await self._publish(
            events_pb2.RunStepTrained(
                step=step,
                policy_version=version,
                trained_rollout_ids=rollout_ids,
                metrics=metrics,
            )
        )

    async def rolled_back(self, rolled: RolledBack) -> None:
        """Tells that the weights of an earlier version are the run's again, as a new version."""
        await self._publish(
            events_pb2.RunRolledBack(
                policy_version=rolled.version,
                to_policy_version=rolled.to_version,
                to_step=rolled.to_step,
                step=rolled.step,
            )
        )

    async def finished(
        self, end: str, detail: str, metrics: Mapping[str, float], life: int
    ) -> None:
        """Tells how the run ended."""
        payload = events_pb2.RunFinished(end=ENDS[end], detail=detail, metrics=metrics)
        await self._publish(payload, ordinal=life * len(ENDS) + ENDS[end])

    async def _publish(
        self,
        payload: Message,
        *,
        rollout_id: str = "",
        slot: identity_pb2.Slot | None = None,
        attempt: int = 0,
        ordinal: int | None = None,
    ) -> int:
        ack = await self._bus.publish(
            new_envelope(
                payload,
                source=SOURCE,
                run_id=self.run_id,
                rollout_id=rollout_id,
                slot=slot,
                attempt=attempt,
                ordinal=ordinal,
                clock=self._clock,
            )
        )
        return ack.sequence


def _blob(policy: Policy) -> blob_pb2.BlobRef | None:
    assert policy.adapter is None or isinstance(policy.adapter, blob_pb2.BlobRef)
    return policy.adapter


def _pack(folder: Path, destination: Path) -> None:
    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with tarfile.open(destination, "w") as archive:
        for path in sorted(p for p in folder.iterdir() if p.is_file()):
            archive.add(path, arcname=path.name, filter=plain)
