"""The consumer on the in-process bus: one judgement per attempt, whatever is replayed or breaks."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hone.common.v1 import blob_pb2, identity_pb2, outcome_pb2
from hone.events.v1 import events_pb2
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.bus import Delivery
from eventbus.envelope import new_envelope
from eventbus.errors import RetryLater
from eventbus.memory_bus import MemoryBus
from grader.clients.leases import NoLeases
from grader.consumer import FinishedConsumer
from grader.desk import GradingDesk, Verdict
from grader.instruments.boxes import Origin
from grader.patience import Patience
from grader.results import GradingFaultError
from grader.store import JudgedStore
from servicekit.errors import HoneError, Unavailable
from trajectory.convert import rollout_record_to_proto
from trajectory.types import GraderErrorKind, Masked, Outcome, RolloutRecord

MakeRecord = Callable[..., RolloutRecord]
ROLLOUT_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER_ROLLOUT_ID = "0190b5c2-0000-7000-8000-0000000000ff"
RUN_ID = "run_x"


IMPATIENT = Patience(seconds=0, min_tries=3, first_delay_seconds=0.001)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class FaultyDesk:
    """Fails a number of times before it grades; each try takes a while."""

    def __init__(
        self,
        desk: GradingDesk,
        fault: Exception,
        times: int,
        clock: Clock | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.desk, self.fault, self.left = desk, fault, times
        self.clock, self.seconds = clock or Clock(), seconds
        self.judged = 0

    async def judge(
        self, record: RolloutRecord, grader_json: str, origin: Origin | None = None
    ) -> Verdict:
        self.judged += 1
        self.clock.now += self.seconds
        if self.left:
            self.left -= 1
            raise self.fault
        return await self.desk.judge(record, grader_json, origin)

    def version_of(self, grader_json: str) -> str:
        return self.desk.version_of(grader_json)


class RecordingLeases(NoLeases):
    def __init__(self, *answers: str | HoneError) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.kept: list[tuple[str, str, int, float]] = []
        self.answers = list(answers)
        """What is said of the environment, one after the other."""

    @asynccontextmanager
    async def held(self, sandbox_id: str, rollout_id: str, epoch: int) -> AsyncIterator[None]:
        self.asked.append((sandbox_id, rollout_id, epoch))
        yield

    async def keep(self, sandbox_id: str, rollout_id: str, epoch: int, seconds: float) -> None:
        self.kept.append((sandbox_id, rollout_id, epoch, seconds))

    async def pollution(self, sandbox_id: str, rollout_id: str, epoch: int) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, HoneError):
            raise answer
        return answer


def _finished(finished: events_pb2.RolloutFinished) -> events_pb2.Envelope:
    return new_envelope(
        finished,
        source="rollout",
        run_id=RUN_ID,
        rollout_id=ROLLOUT_ID,
        slot=identity_pb2.Slot(run_id=RUN_ID, phase=identity_pb2.PHASE_TRAIN, step=2),
        attempt=1,
        epoch=3,
        clock=lambda: 1.0,
    )


def _inline(record: RolloutRecord) -> events_pb2.RolloutFinished:
    return events_pb2.RolloutFinished(inline=rollout_record_to_proto(record))


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


@pytest.fixture
def store(tmp_path: Path) -> JudgedStore:
    return JudgedStore(tmp_path / "grader.sqlite")


MakeConsumer = Callable[..., FinishedConsumer]


@pytest.fixture
def make_consumer(desk: GradingDesk, store: JudgedStore, tracer: trace.Tracer) -> MakeConsumer:
    def make(bus: MemoryBus, **parts: object) -> FinishedConsumer:
        defaults: dict[str, object] = {
            "store": store,
            "desk": desk,
            "leases": NoLeases(),
            "patience": IMPATIENT,
            "tracer": tracer,
            "clock": lambda: 2.0,
            "rng": random.Random(0),
        }
        return FinishedConsumer(bus=bus, **{**defaults, **parts})  # type: ignore[arg-type]

    return make


async def _judgements(
    bus: MemoryBus, consumer: FinishedConsumer, wanted: int = 1, max_in_flight: int = 4
) -> list[events_pb2.Envelope]:
    """Run the consumer until the log holds that many judgements."""
    stop = asyncio.Event()
    running = asyncio.create_task(consumer.run(stop, max_in_flight=max_in_flight))
    found: list[events_pb2.Envelope] = []
    async with asyncio.timeout(10):
        reading = bus.read(["reward_assigned", "rollout_failed"], follow=True, stop=stop)
        async for event in reading:
            found.append(event.envelope)
            if len(found) == wanted:
                stop.set()
        await running
    return found


async def test_finished_rollout_gets_its_reward(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus, leases = MemoryBus(), RecordingLeases()
    await bus.publish(_finished(_inline(make_record(calls=2))))
    (told,) = await _judgements(bus, make_consumer(bus, leases=leases))
    assert (told.source, told.run_id, told.rollout_id, told.attempt, told.epoch) == (
        "grader",
        RUN_ID,
        ROLLOUT_ID,
        1,
        3,
    )
    assert told.slot.step == 2
    scored = told.reward_assigned.scored
    assert scored.score == pytest.approx(0.85)
    assert [reward.name for reward in scored.rewards] == ["reward", "accuracy"]
    assert told.reward_assigned.grader_version.startswith("1.2.3+")
    assert leases.asked == [("", ROLLOUT_ID, 3)]


def _shared(record: RolloutRecord) -> events_pb2.RolloutFinished:
    return _inline(replace(record, sandbox_id="sbx_1", sandbox_isolation="optimistic(ns-root)"))


@pytest.mark.parametrize("text", ["Final Answer: 72", "Final Answer: 71", "Final Answer: x^(1"])
async def test_a_polluted_rollout_never_has_a_vote(
    make_consumer: MakeConsumer, make_record: MakeRecord, text: str
) -> None:
    bus = MemoryBus()
    await bus.publish(_finished(_shared(make_record(text))))
    (told,) = await _judgements(bus, make_consumer(bus, leases=RecordingLeases("polluted")))
    assert told.reward_assigned.WhichOneof("outcome") == "masked"
    masked = told.reward_assigned.masked
    assert (masked.kind, masked.reason) == (outcome_pb2.OUTCOME_KIND_POLLUTED, "polluted")
    assert told.reward_assigned.grader_version.startswith("1.2.3+")


async def test_a_shared_environment_that_stayed_clean_is_scored(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus, leases = MemoryBus(), RecordingLeases("")
    await bus.publish(_finished(_shared(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, leases=leases))
    assert told.reward_assigned.WhichOneof("outcome") == "scored"
    assert leases.answers == []


async def test_an_environment_of_ones_own_is_not_asked_about(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus, leases = MemoryBus(), RecordingLeases("polluted")
    record = replace(make_record(), sandbox_id="sbx_1", sandbox_isolation="ns-root")
    await bus.publish(_finished(_inline(record)))
    (told,) = await _judgements(bus, make_consumer(bus, leases=leases))
    assert told.reward_assigned.WhichOneof("outcome") == "scored"
    assert leases.answers == ["polluted"]


async def test_no_reward_is_told_before_the_environment_was_asked_about(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus, leases = MemoryBus(), RecordingLeases(Unavailable("away"), "polluted")
    await bus.publish(_finished(_shared(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, leases=leases))
    assert told.reward_assigned.WhichOneof("outcome") == "masked"


async def test_an_environment_that_cannot_be_asked_about_is_an_infrastructure_fault(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus, leases = MemoryBus(), RecordingLeases(*[Unavailable("away") for _ in range(3)])
    await bus.publish(_finished(_shared(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, leases=leases))
    assert told.rollout_failed.failure.attributable == outcome_pb2.ATTRIBUTION_INFRA
    assert told.rollout_failed.failure.retryable


class SayingDesk:
    """Judges as it is told."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    async def judge(
        self, record: RolloutRecord, grader_json: str, origin: Origin | None = None
    ) -> Verdict:
        return Verdict(outcome=self.outcome, grader_version="1+a")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Masked(kind=None, reason="\ud800"), "surrogates not allowed"),
        (Masked(kind=None, reason="a" * 1_000_000), "more than the 921600"),
    ],
)
async def test_a_judgement_that_no_event_can_hold_is_told_as_a_failure(
    make_consumer: MakeConsumer,
    make_record: MakeRecord,
    store: JudgedStore,
    outcome: Outcome,
    said: str,
) -> None:
    """Written and not told, it would keep the service from starting."""
    bus = MemoryBus()
    await bus.publish(_finished(_inline(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, desk=SayingDesk(outcome)))
    failure = told.rollout_failed.failure
    assert failure.kind == outcome_pb2.FAILURE_KIND_GRADER
    assert failure.grader_error_kind == outcome_pb2.GRADER_ERROR_KIND_INTERNAL
    assert said in failure.detail
    assert store.unpublished() == []


async def test_replay_changes_nothing(
    make_consumer: MakeConsumer, make_record: MakeRecord, store: JudgedStore
) -> None:
    finished = _finished(_inline(make_record()))
    first = MemoryBus()
    await first.publish(finished)
    assert len(await _judgements(first, make_consumer(first))) == 1
    second = MemoryBus()
    consumer = make_consumer(second)
    for delivery_count in (1, 2):
        await consumer.handle(
            Delivery(
                envelope=finished,
                sequence=1,
                delivery_count=delivery_count,
                context=Context(),
            )
        )
    assert [event async for event in second.read()] == []
    assert store.unpublished() == []


async def test_judgement_that_was_not_told_is_told_at_the_next_start(
    make_consumer: MakeConsumer, make_record: MakeRecord, store: JudgedStore
) -> None:
    full = MemoryBus(max_bytes=1, publish_deadline_seconds=0.01)
    finished = _finished(_inline(make_record()))
    delivery = Delivery(envelope=finished, sequence=1, delivery_count=1, context=Context())
    # No attempt: a log that stays full would otherwise make a dead letter of a judgement that is there.
    with pytest.raises(RetryLater):
        await make_consumer(full).handle(delivery)
    assert len(store.unpublished()) == 1
    bus = MemoryBus()
    (told,) = await _judgements(bus, make_consumer(bus))
    assert told.reward_assigned.scored.score == 1.0
    assert store.unpublished() == []


async def test_a_file_of_judgements_that_cannot_be_used_is_waited_for(
    make_consumer: MakeConsumer, make_record: MakeRecord, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "grader.sqlite")) as other:
        other.execute("ALTER TABLE judged RENAME TO elsewhere")
        finished = _finished(_inline(make_record()))
        delivery = Delivery(envelope=finished, sequence=1, delivery_count=1, context=Context())
        bus = MemoryBus()
        consumer = make_consumer(bus)
        with pytest.raises(RetryLater, match=r"grader\.sqlite cannot be used"):
            await consumer.handle(delivery)
        assert [event async for event in bus.read()] == []
        other.execute("ALTER TABLE elsewhere RENAME TO judged")
    await consumer.handle(delivery)
    assert len([event async for event in bus.read()]) == 1


async def test_record_in_the_object_store_is_graded(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus = MemoryBus()
    blob = await (await bus.blobs()).put(
        "r", rollout_record_to_proto(make_record()).SerializeToString()
    )
    await bus.publish(_finished(events_pb2.RolloutFinished(blob=blob)))
    (told,) = await _judgements(bus, make_consumer(bus))
    assert told.reward_assigned.scored.score == 1.0


async def test_lost_record_is_a_failure_and_no_zero(make_consumer: MakeConsumer) -> None:
    bus = MemoryBus()
    lost = blob_pb2.BlobRef(bucket="hone-blobs", name="lost", size_bytes=1, sha256="0")
    await bus.publish(_finished(events_pb2.RolloutFinished(blob=lost)))
    (told,) = await _judgements(bus, make_consumer(bus))
    failure = told.rollout_failed.failure
    assert failure.kind == outcome_pb2.FAILURE_KIND_GRADER
    assert failure.retryable
    assert failure.attributable == outcome_pb2.ATTRIBUTION_INFRA
    assert "lost" in failure.detail


async def test_fault_is_graded_again_before_it_counts(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus = MemoryBus()
    fault = GradingFaultError(
        "the judge is away", kind=GraderErrorKind.SERVER, retryable=True, client=False
    )
    faulty = FaultyDesk(desk, fault, 2)
    await bus.publish(_finished(_inline(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, desk=faulty))
    assert told.reward_assigned.scored.score == 1.0
    assert faulty.judged == 3


@pytest.mark.parametrize(
    "fault",
    [
        GradingFaultError(
            "the judge is away", kind=GraderErrorKind.SERVER, retryable=True, client=False
        ),
        ZeroDivisionError("away"),
    ],
)
async def test_fault_that_stays_becomes_a_failure(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk, fault: Exception
) -> None:
    bus = MemoryBus()
    faulty = FaultyDesk(desk, fault, 99)
    await bus.publish(_finished(_inline(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, desk=faulty))
    assert told.rollout_failed.failure.kind == outcome_pb2.FAILURE_KIND_GRADER
    assert "away" in told.rollout_failed.failure.detail
    assert faulty.judged == 3


AWAY = GradingFaultError(
    "the endpoint is away", kind=GraderErrorKind.SERVER, retryable=True, client=False
)


async def test_an_outage_is_waited_for_beyond_the_tries_of_a_defect(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus, clock = MemoryBus(), Clock()
    faulty = FaultyDesk(desk, AWAY, 9, clock, seconds=60)
    patient = replace(IMPATIENT, seconds=600)
    await bus.publish(_finished(_inline(make_record())))
    consumer = make_consumer(bus, desk=faulty, patience=patient, clock=clock)
    (told,) = await _judgements(bus, consumer)
    assert told.reward_assigned.scored.score == 1.0
    assert faulty.judged == 10


async def test_an_outage_past_the_patience_ends_in_its_typed_failure(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus, clock = MemoryBus(), Clock()
    faulty = FaultyDesk(desk, AWAY, 99, clock, seconds=60)
    patient = replace(IMPATIENT, seconds=600)
    await bus.publish(_finished(_inline(make_record())))
    consumer = make_consumer(bus, desk=faulty, patience=patient, clock=clock)
    (told,) = await _judgements(bus, consumer)
    failure = told.rollout_failed.failure
    assert failure.kind == outcome_pb2.FAILURE_KIND_GRADER
    assert failure.grader_error_kind == outcome_pb2.GRADER_ERROR_KIND_SERVER
    assert (failure.retryable, failure.attributable) == (True, outcome_pb2.ATTRIBUTION_INFRA)
    assert faulty.judged == 10


async def test_a_record_that_comes_late_still_gets_its_tries(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus, clock = MemoryBus(), Clock()
    clock.now = 1e6
    faulty = FaultyDesk(desk, AWAY, 2, clock)
    await bus.publish(_finished(_inline(make_record())))
    consumer = make_consumer(
        bus, desk=faulty, patience=replace(IMPATIENT, seconds=600), clock=clock
    )
    (told,) = await _judgements(bus, consumer)
    assert told.reward_assigned.scored.score == 1.0


async def test_a_fault_that_no_try_can_mend_ends_at_once(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus = MemoryBus()
    fault = GradingFaultError(
        "no such endpoint", kind=GraderErrorKind.SERVER, retryable=False, client=True
    )
    faulty = FaultyDesk(desk, fault, 99)
    await bus.publish(_finished(_inline(make_record())))
    (told,) = await _judgements(bus, make_consumer(bus, desk=faulty))
    failure = told.rollout_failed.failure
    assert (failure.retryable, failure.attributable) == (False, outcome_pb2.ATTRIBUTION_CLIENT)
    assert faulty.judged == 1


async def test_a_record_that_waits_for_an_outage_holds_up_no_other(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus = MemoryBus()
    away = FaultyDesk(desk, AWAY, 1)
    patient = Patience(seconds=600, min_tries=1, first_delay_seconds=3600)
    other = new_envelope(
        _inline(make_record()),
        source="rollout",
        run_id=RUN_ID,
        rollout_id=OTHER_ROLLOUT_ID,
        clock=lambda: 1.0,
    )
    await bus.publish(_finished(_inline(make_record())))
    await bus.publish(other)
    consumer = make_consumer(bus, desk=away, patience=patient)
    (told,) = await _judgements(bus, consumer, max_in_flight=1)
    assert told.rollout_id == OTHER_ROLLOUT_ID


async def test_the_agents_sandbox_outlives_the_wait_for_an_outage(
    make_consumer: MakeConsumer, make_record: MakeRecord, desk: GradingDesk
) -> None:
    bus, leases = MemoryBus(), RecordingLeases()
    record = replace(make_record(), sandbox_id="sbx_1", sandbox_isolation="ns-root")
    await bus.publish(_finished(_inline(record)))
    await _judgements(bus, make_consumer(bus, desk=FaultyDesk(desk, AWAY, 1), leases=leases))
    ((sandbox_id, rollout_id, epoch, seconds),) = leases.kept
    assert (sandbox_id, rollout_id, epoch) == ("sbx_1", ROLLOUT_ID, 3)
    assert 0 < seconds <= IMPATIENT.first_delay_seconds


async def test_bad_definition_is_the_clients_failure_at_once(
    make_consumer: MakeConsumer, make_record: MakeRecord
) -> None:
    bus = MemoryBus()
    await bus.publish(_finished(_inline(make_record(grader_json='{"type": "awnser"}'))))
    (told,) = await _judgements(bus, make_consumer(bus))
    failure = told.rollout_failed.failure
    assert (failure.retryable, failure.attributable) == (False, outcome_pb2.ATTRIBUTION_CLIENT)
    assert "did you mean 'answer'" in failure.detail


async def test_grade_span_is_in_the_rollouts_trace(
    make_consumer: MakeConsumer,
    make_record: MakeRecord,
    spans: InMemorySpanExporter,
    tracer: trace.Tracer,
) -> None:
    bus = MemoryBus()
    consumer = make_consumer(bus)
    finished = _finished(_inline(make_record()))
    with tracer.start_as_current_span("invoke_agent") as parent:
        delivery = Delivery(
            envelope=finished,
            sequence=1,
            delivery_count=1,
            context=trace.set_span_in_context(parent),
        )
        await consumer.handle(delivery)
    (span,) = [span for span in spans.get_finished_spans() if span.name == "grade"]
    assert span.parent is not None and span.parent.span_id == parent.get_span_context().span_id
    assert span.attributes is not None
    assert span.attributes["gen_ai.evaluation.score.value"] == 1.0
    assert span.attributes["hone.outcome"] == "scored"
