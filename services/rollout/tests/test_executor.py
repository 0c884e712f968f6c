"""Claims, fencing and failures, over the in-process bus."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hone.common.v1 import message_pb2, run_spec_pb2, task_pb2
from hone.events.v1 import events_pb2
from opentelemetry import trace

from eventbus.claims import Acquired, ClaimState
from eventbus.envelope import new_envelope
from eventbus.errors import RetryLater
from eventbus.memory_bus import MemoryBus
from rollout.adapters import AdapterFolders
from rollout.agent_loop import ToolCaller, ToolOutcome
from rollout.consumer import BusBlobFetcher, BusReporter, consume_requests, follow_policies
from rollout.convert import job_from_proto
from rollout.engines.base import Engine, EngineError, ModelKey, PolicyKey
from rollout.engines.scripted import ScriptedEngine
from rollout.executor import OVERRUN_SECONDS, Executor, LeaseTimes
from rollout.failures import RolloutError, UnknownToolError, failure_of
from rollout.jobs import Environment, RolloutJob
from rollout.policies import Policies
from servicekit.errors import (
    BY_CODE,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from trajectory import convert, outcome_convert
from trajectory.types import Attribution, FailureKind, Phase, Slot, ToolCall, ToolDefinition

ROLLOUT_ID = "0190b5c2-0000-7000-8000-000000000001"
CALL = '<tool_call>{"name":"calculator","arguments":{"expression":"2*3"}}</tool_call>'
ENDS = ("rollout_finished", "rollout_failed")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Sandboxes:
    """Counts what is made; fails as told."""

    made: list[tuple[str, int]] = field(default_factory=list)
    error: HoneError | None = None

    async def create(self, job: RolloutJob, epoch: int, timeout_seconds: float) -> Environment:
        if self.error is not None:
            raise self.error
        self.made.append((job.rollout_id, epoch))
        return Environment(sandbox_id=f"sbx_{len(self.made)}", isolation="ns-root")


@dataclass
class Tools:
    """One calculator whose answer can be held back."""

    hold: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    error: HoneError | None = None

    async def definitions(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        if set(names) - {"calculator"}:
            raise UnknownToolError("rollout.tools: no tool named 'x'")
        return (ToolDefinition(name="calculator", description="", parameters_json="{}"),)

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        return _Caller(self, check)


@dataclass
class _Caller:
    tools: Tools
    check: Callable[[], Awaitable[None]]

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        self.tools.reached.set()
        if self.tools.hold is not None:
            await self.tools.hold.wait()
        await self.check()
        if self.tools.error is not None:
            raise self.tools.error
        self.tools.calls += 1
        return [ToolOutcome(content="6") for _ in calls]


@dataclass
class Suite:
    """One bus, and replicas on it."""

    bus: MemoryBus
    clock: Clock
    model: Path
    folder: Path
    sandboxes: Sandboxes = field(default_factory=Sandboxes)

    async def replica(
        self, owner: str, tools: Tools, lease: float = 15.0,
        make_engine: Callable[[], Engine] = ScriptedEngine,
    ) -> Executor:  # fmt: skip
        blobs = await self.bus.blobs()
        policies = Policies(
            make_engine=make_engine,
            resolve=lambda path: self._resolve(path),
            adapters=AdapterFolders(self.folder / owner, BusBlobFetcher(blobs)),
        )
        return Executor(
            owner=owner,
            claims=await self.bus.claims(),
            policies=policies,
            sandboxes=self.sandboxes,
            tools=tools,
            reporter=BusReporter(self.bus, blobs, self.clock),
            times=LeaseTimes(lease_seconds=lease, renew_seconds=lease),
            clock=self.clock,
            tracer=trace.get_tracer("test"),
        )

    def _resolve(self, path: str) -> Path:
        if path == "missing":
            raise ValueError("model.path: 'missing' is not a folder")
        return self.model

    def request(self, *, script: str = CALL, **changes: object) -> events_pb2.Envelope:
        payload = events_pb2.RolloutRequested(
            task=task_pb2.Task(
                task_id="t1",
                messages=[
                    message_pb2.ChatMessage(
                        role=message_pb2.ROLE_USER,
                        parts=[message_pb2.ContentPart(text="2*3?")],
                    )
                ],
                reference_json=json.dumps({"script": [script, "Answer: 6"]}),
            ),
            rollout=run_spec_pb2.RolloutSpec(max_turns=4, tools=["calculator"]),
            model=run_spec_pb2.ModelSpec(path="tiny"),
            grader_json='{"type": "answer"}',
        )
        payload.sampling.max_new_tokens = 100
        payload.deadline_time.FromSeconds(int(self.clock.now) + 60)
        payload.MergeFrom(events_pb2.RolloutRequested(**changes))  # type: ignore[arg-type]
        slot = Slot(run_id="run", phase=Phase.TRAIN, step=0, group_index=0, sample_index=0)
        return new_envelope(
            payload,
            source="learner",
            run_id="run",
            rollout_id=ROLLOUT_ID,
            slot=convert.slot_to_proto(slot),
            clock=self.clock,
        )

    def job(self, **changes: object) -> RolloutJob:
        return job_from_proto(self.request(**changes))

    async def told(self, *types: str) -> list[events_pb2.Envelope]:
        return [event.envelope async for event in self.bus.read(types)]


@pytest.fixture
def suite(tiny_model: Path, tmp_path: Path) -> Suite:
    clock = Clock()
    return Suite(
        bus=MemoryBus(clock=clock, rng=random.Random(0)),
        clock=clock,
        model=tiny_model,
        folder=tmp_path,
    )


async def failure_told(suite: Suite) -> events_pb2.RolloutFailed:
    (end,) = await suite.told(*ENDS)
    assert end.WhichOneof("payload") == "rollout_failed"
    return end.rollout_failed


async def test_a_rollout_is_claimed_carried_out_committed_and_told(suite: Suite) -> None:
    tools = Tools()
    executor = await suite.replica("a", tools)
    await executor.execute(suite.job(), 0)
    told = await suite.told()
    assert [e.WhichOneof("payload") for e in told] == [
        "rollout_started",
        "rollout_turn",
        "rollout_turn",
        "rollout_finished",
    ]
    record = convert.rollout_record_from_proto(told[-1].rollout_finished.inline)
    assert record.response == "Answer: 6"
    assert record.sandbox_id == "sbx_1"
    assert record.grader_json == '{"type": "answer"}'
    assert suite.sandboxes.made == [(ROLLOUT_ID, 1)]
    claim = await (await suite.bus.claims()).get(ROLLOUT_ID)
    assert claim is not None
    assert claim.state is ClaimState.COMMITTED
    assert tools.calls == 1


async def test_a_redelivery_with_a_live_lease_waits(suite: Suite) -> None:
    tools = Tools(hold=asyncio.Event())
    first = await suite.replica("a", tools)
    second = await suite.replica("b", Tools())
    async with asyncio.TaskGroup() as group:
        group.create_task(first.execute(suite.job(), 0))
        await tools.reached.wait()
        with pytest.raises(RetryLater) as raised:
            await second.execute(suite.job(), 0)
        assert 0 < raised.value.delay_seconds <= 16
        assert tools.hold is not None
        tools.hold.set()
    assert len(suite.sandboxes.made) == 1
    assert len(await suite.told("rollout_finished")) == 1


async def test_an_expired_lease_is_reported_and_never_run_again(suite: Suite) -> None:
    claims = await suite.bus.claims()
    assert isinstance(await claims.try_claim(ROLLOUT_ID, "dead", 15), Acquired)
    suite.clock.now += 16
    second = await suite.replica("b", Tools())
    await second.execute(suite.job(), 0)
    failed = await failure_told(suite)
    assert outcome_convert.failure_from_proto(failed.failure).kind is FailureKind.EXECUTOR_LOST
    assert failed.failure.retryable
    assert suite.sandboxes.made == []


async def test_a_replica_stopped_past_its_lease_does_nothing_more(suite: Suite) -> None:
    tools = Tools(hold=asyncio.Event())
    first = await suite.replica("a", tools)
    second = await suite.replica("b", Tools())
    async with asyncio.TaskGroup() as group:
        group.create_task(first.execute(suite.job(), 0))
        await tools.reached.wait()
        suite.clock.now += 16
        await second.execute(suite.job(), 0)
        assert tools.hold is not None
        tools.hold.set()
    assert tools.calls == 0
    (end,) = await suite.told(*ENDS)
    assert end.rollout_failed.failure.kind == 4
    assert end.epoch == 2


async def test_a_lost_claim_at_the_commit_drops_the_result(suite: Suite) -> None:
    claims = await suite.bus.claims()
    tools = Tools(hold=asyncio.Event())
    first = await suite.replica("a", tools, lease=1e9)
    async with asyncio.TaskGroup() as group:
        group.create_task(first.execute(suite.job(), 0))
        await tools.reached.wait()
        suite.clock.now += 2e9
        await claims.take_over(ROLLOUT_ID, "b")
        suite.clock.now -= 2e9
        assert tools.hold is not None
        tools.hold.set()
    assert tools.calls == 1
    assert await suite.told(*ENDS) == []


async def test_a_crash_between_commit_and_telling_is_told_as_lost(suite: Suite) -> None:
    claims = await suite.bus.claims()
    outcome = await claims.try_claim(ROLLOUT_ID, "dead", 15)
    assert isinstance(outcome, Acquired)
    await claims.commit(outcome.claim)
    second = await suite.replica("b", Tools())
    with pytest.raises(RetryLater):
        await second.execute(suite.job(), 0)
    suite.clock.now += 16
    await second.execute(suite.job(), 0)
    failed = await failure_told(suite)
    assert outcome_convert.failure_from_proto(failed.failure).kind is FailureKind.EXECUTOR_LOST


async def test_replaying_a_request_that_ended_changes_nothing(suite: Suite) -> None:
    executor = await suite.replica("a", Tools())
    await executor.execute(suite.job(), 0)
    before = await suite.told()
    suite.clock.now += 1e6
    await executor.execute(suite.job(), 0)
    assert await suite.told() == before


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (Unavailable("no sandbox service"), FailureKind.SANDBOX, True),
        (InvalidArgument("template: unknown"), FailureKind.SANDBOX, True),
        (Unauthenticated("unknown key"), FailureKind.SANDBOX, True),
        (PermissionDenied("expired", reason="TOKEN_EXPIRED"), FailureKind.SANDBOX, True),
    ],
)
async def test_a_sandbox_that_cannot_be_made(
    suite: Suite, error: HoneError, kind: FailureKind, retryable: bool
) -> None:
    suite.sandboxes.error = error
    await (await suite.replica("a", Tools())).execute(suite.job(), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (kind, retryable)
    assert failed.attributable is Attribution.INFRA
    assert failed.detail == error.message


async def test_a_lost_sandbox_is_told_from_a_lost_gateway(suite: Suite) -> None:
    lost = Unavailable("the sandbox is lost", reason="SANDBOX_LOST")
    tools = Tools(error=lost)
    tools.error = None
    executor = await suite.replica("a", _Failing(RolloutError(FailureKind.TOOL_GATEWAY, lost)))
    await executor.execute(suite.job(), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.SANDBOX, True)


async def test_an_old_epoch_ends_the_rollout_without_a_word(suite: Suite) -> None:
    old = FailedPrecondition("a newer epoch exists", reason="EPOCH_OLD")
    await (await suite.replica("a", _Failing(old))).execute(suite.job(), 0)
    assert await suite.told(*ENDS) == []


async def test_a_missing_model_names_its_path(suite: Suite) -> None:
    missing = run_spec_pb2.ModelSpec(path="missing")
    await (await suite.replica("a", Tools())).execute(suite.job(model=missing), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.ENGINE, True)
    assert failed.attributable is Attribution.INFRA
    assert "'missing' cannot be opened" in failed.detail


async def test_an_unknown_tool_format_is_a_bad_task(suite: Suite) -> None:
    spec = run_spec_pb2.RolloutSpec(tool_format="herms")
    await (await suite.replica("a", Tools())).execute(suite.job(rollout=spec), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.BAD_TASK, False)


@pytest.mark.parametrize("cause", BY_CODE.values())
@pytest.mark.parametrize(
    "kind",
    [k for k in FailureKind if k not in {FailureKind.BAD_TASK, FailureKind.GRADER}],
)
def test_only_a_bad_task_is_the_client_s_doing(kind: FailureKind, cause: type[HoneError]) -> None:
    failed = failure_of(RolloutError(kind, cause("x")))
    assert (failed.retryable, failed.attributable) == (True, Attribution.INFRA)
    bad = failure_of(RolloutError(FailureKind.BAD_TASK, cause("x", retryable=True)))
    assert bad.attributable is Attribution.CLIENT or bad.kind is not FailureKind.BAD_TASK


def test_the_agent_s_own_doing_stays_the_workload_s() -> None:
    error = Unavailable("out of memory", reason="SANDBOX_LOST", attributable="workload")
    failed = failure_of(RolloutError(FailureKind.TOOL_GATEWAY, error))
    assert (failed.kind, failed.attributable) == (FailureKind.SANDBOX, Attribution.WORKLOAD)


def test_an_engine_that_broke_may_work_elsewhere() -> None:
    assert failure_of(EngineError("no memory")).retryable


async def test_a_missing_adapter_is_this_replica_s_trouble(suite: Suite) -> None:
    request = suite.request()
    adapter = request.rollout_requested.adapter
    adapter.bucket, adapter.name, adapter.sha256 = "b", "adapters/run/v1", "0" * 64
    await (await suite.replica("a", Tools())).execute(job_from_proto(request), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.ENGINE, True)
    assert failed.attributable is Attribution.INFRA


async def test_an_unknown_tool_is_a_bad_task_and_a_gateway_that_refuses_is_not(
    suite: Suite,
) -> None:
    spec = run_spec_pb2.RolloutSpec(tools=["abacus"])
    await (await suite.replica("a", Tools())).execute(suite.job(rollout=spec), 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.BAD_TASK, False)
    refused = failure_of(RolloutError(FailureKind.TOOL_GATEWAY, NotFound("no such method")))
    assert refused.attributable is Attribution.INFRA


async def give_up(suite: Suite) -> None:
    """Ends the attempt as the learner does."""
    await BusReporter(suite.bus, await suite.bus.blobs(), suite.clock).failed(
        suite.job(), 0, failure_of(TimeoutError("the learner gave it up"))
    )


async def test_an_attempt_that_the_learner_has_ended_is_not_run(suite: Suite) -> None:
    await give_up(suite)
    before = await suite.told()
    tools = Tools()
    await (await suite.replica("a", tools)).execute(suite.job(), 0)
    assert await suite.told() == before
    assert (tools.calls, suite.sandboxes.made) == (0, [])


async def test_an_attempt_that_the_learner_ends_meanwhile_is_not_told_again(suite: Suite) -> None:
    tools = Tools(hold=asyncio.Event())
    executor = await suite.replica("a", tools, lease=1e9)
    async with asyncio.TaskGroup() as group:
        group.create_task(executor.execute(suite.job(), 0))
        await tools.reached.wait()
        await give_up(suite)
        suite.clock.now += 3600  # Past the stream's own memory of ids.
        assert tools.hold is not None
        tools.hold.set()
    (end,) = await suite.told(*ENDS)
    assert "the learner gave it up" in end.rollout_failed.failure.detail


async def test_whatever_hangs_ends_with_the_deadline(suite: Suite) -> None:
    job = replace(suite.job(), deadline=suite.clock.now - OVERRUN_SECONDS + 0.01, tools=())
    hanging = asyncio.Event()

    class Hanging(ScriptedEngine):
        async def start(self, folder: Path, model: ModelKey) -> None:
            await hanging.wait()

    executor = await suite.replica("a", Tools(), make_engine=Hanging)
    await executor.execute(job, 0)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.DEADLINE, True)
    assert failed.attributable is Attribution.INFRA


async def test_a_second_end_is_logged_as_such(
    suite: Suite, caplog: pytest.LogCaptureFixture
) -> None:
    await give_up(suite)
    await give_up(suite)
    assert [getattr(record, "duplicate", None) for record in caplog.records] == [True]


async def test_a_drained_rollout_is_handed_back(suite: Suite) -> None:
    tools = Tools(hold=asyncio.Event())
    executor = await suite.replica("a", tools)
    async with asyncio.TaskGroup() as group:
        group.create_task(executor.execute(suite.job(), 0))
        await tools.reached.wait()
        assert executor.in_flight == 1
        await executor.drain(0.01)
    failed = outcome_convert.failure_from_proto((await failure_told(suite)).failure)
    assert (failed.kind, failed.retryable) == (FailureKind.CANCELLED, True)
    assert executor.in_flight == 0


async def test_requests_are_consumed_from_the_bus(suite: Suite) -> None:
    executor = await suite.replica("a", Tools())
    reporter = BusReporter(suite.bus, await suite.bus.blobs(), suite.clock)
    bad = suite.request()
    bad.rollout_requested.ClearField("deadline_time")
    bad.rollout_id = bad.event_id = "0190b5c2-0000-7000-8000-000000000002"
    await suite.bus.publish(bad)
    await suite.bus.publish(suite.request())
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            consume_requests(
                suite.bus, executor, reporter, stop=stop, max_in_flight=4, ack_wait_seconds=30
            )
        )
        ends = []
        async for event in suite.bus.read(ENDS, follow=True, stop=stop):
            ends.append(event.envelope)
            if len(ends) == 2:
                stop.set()
    kinds = {end.rollout_id[-1]: end.WhichOneof("payload") for end in ends}
    assert kinds == {"1": "rollout_finished", "2": "rollout_failed"}
    refused = next(e for e in ends if e.WhichOneof("payload") == "rollout_failed")
    assert "deadline_time: not set" in refused.rollout_failed.failure.detail


@dataclass
class _Failing(Tools):
    """A gateway whose calls raise."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self._raised = raised

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        return _Raising(self._raised)


@dataclass
class _Raising:
    raised: Exception

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        raise self.raised


async def test_published_policies_are_loaded_where_the_model_runs(suite: Suite) -> None:
    loaded: list[tuple[str, int]] = []
    stop = asyncio.Event()

    class Watching:
        def serves(self, model: ModelKey) -> bool:
            return model.path == "tiny"

        async def load(self, model: ModelKey, policy: PolicyKey, adapter: object) -> None:
            loaded.append((model.path, policy.version))
            if policy.version == 1:
                raise EngineError("a broken adapter stops nothing")
            stop.set()

    for version, path in enumerate(["other", "tiny", "tiny"]):
        payload = events_pb2.PolicyPublished(
            policy_version=version, model=run_spec_pb2.ModelSpec(path=path)
        )
        await suite.bus.publish(
            new_envelope(payload, source="learner", run_id="run", clock=suite.clock)
        )
    await follow_policies(suite.bus, Watching(), stop=stop)  # type: ignore[arg-type]
    assert loaded == [("tiny", 1), ("tiny", 2)]
