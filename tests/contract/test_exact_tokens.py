"""Sampled ids, masks and log-probabilities are the same at the engine, in the log and in the training batch."""

import asyncio
import random
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2
from opentelemetry import trace

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import NatsServer, find_nats_server
from learner.jobs.batch import step_batch
from learner.rollouts.facts import Policy
from learner.rollouts.inbox import fold
from learner.rollouts.ledger import RetryBudget, StepLedger
from learner.rollouts.plan import slots_of_step
from learner.rollouts.runlog import BusRunLog
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from rollout.adapters import AdapterFolders
from rollout.agent_loop import ToolCaller, ToolOutcome
from rollout.consumer import BusBlobFetcher, BusReporter, consume_requests
from rollout.engines.base import Generation, GenerationRequest
from rollout.engines.scripted import ScriptedEngine
from rollout.executor import Executor, LeaseTimes
from rollout.jobs import Environment, RolloutJob
from rollout.policies import Policies
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from trajectory import types as t
from trajectory.types import Phase, Task, ToolCall, ToolDefinition

pytestmark = pytest.mark.slow

TASKS, GROUP = 13, 8


class RecordingEngine(ScriptedEngine):
    """Says what its script says, with log-probabilities of its own, and keeps every generation."""

    def __init__(self, kept: dict[tuple[str, int, int], Generation]) -> None:
        super().__init__()
        self._kept = kept
        self._rng = random.Random(11)

    async def generate(self, request: GenerationRequest) -> Generation:
        said = await super().generate(request)
        logprobs = tuple(_float32(-self._rng.random() * 9) for _ in said.token_ids)
        made = Generation(
            token_ids=said.token_ids,
            logprobs=logprobs,
            finish_reason=said.finish_reason,
            policy_version=said.policy_version,
        )
        assert request.episode is not None
        episode = request.episode
        self._kept[(episode.task.task_id, episode.sample_index, episode.turn)] = made
        return made


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


class Sandboxes:
    async def create(self, job: RolloutJob, epoch: int, timeout_seconds: float) -> Environment:
        return Environment(sandbox_id=f"sbx_{job.rollout_id}")


class Tools:
    async def definitions(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        return (ToolDefinition(name="calculator", description="", parameters_json="{}"),)

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        return Caller()


class Caller:
    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        return [ToolOutcome(content=f"result of turn {turn}: 6") for _ in calls]


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[NatsBus]:
    binary = find_nats_server()
    assert binary is not None
    server = NatsServer(binary, tmp_path / "nats")
    server.start()
    made = await NatsBus.connect(server.url, name="test")
    yield made
    await made.close()
    server.stop()


def tasks() -> list[Task]:
    call = '<tool_call>{{"name":"calculator","arguments":{{"expression":"2*{0}"}}}}</tool_call>'
    return [
        Task(
            task_id=f"t{i}",
            messages=(t.ChatMessage(role=t.Role.USER, content=(f"2*{i}?",)),),
            reference={
                "script": [
                    [call.format(i), call.format(i + k), f"Answer {k}"] for k in range(GROUP)
                ]
            },
        )
        for i in range(TASKS)
    ]


async def act(
    bus: NatsBus, model: Path, folder: Path, kept: dict[Any, Generation], stop: asyncio.Event
) -> None:
    blobs = await bus.blobs()
    reporter = BusReporter(bus, blobs, time.time)
    executor = Executor(
        owner="replica",
        claims=await bus.claims(),
        policies=Policies(
            make_engine=lambda: RecordingEngine(kept),
            resolve=lambda path: model,
            adapters=AdapterFolders(folder, BusBlobFetcher(blobs)),
        ),
        sandboxes=Sandboxes(),
        tools=Tools(),
        reporter=reporter,
        times=LeaseTimes(lease_seconds=30.0, renew_seconds=10.0),
        clock=time.time,
        tracer=trace.get_tracer("test"),
    )
    await consume_requests(
        bus, executor, reporter, stop=stop, max_in_flight=64, ack_wait_seconds=60.0
    )


async def judge(bus: NatsBus, envelope: events_pb2.Envelope, score: float) -> None:
    judged = events_pb2.RewardAssigned(
        scored=outcome_pb2.Scored(score=score), grader_version="test"
    )
    await bus.publish(
        new_envelope(
            judged,
            source="grader",
            run_id=envelope.run_id,
            rollout_id=envelope.rollout_id,
            slot=envelope.slot,
            clock=time.time,
        )
    )


async def test_a_hundred_rollouts_hand_their_tokens_over_unchanged(
    bus: NatsBus, tiny_model: Path, tmp_path: Path
) -> None:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": "tiny"},
            "data": {"train": "tasks-x"},
            "train": {"batch_size": TASKS, "group_size": GROUP},
            "rollout": {"tools": ["calculator"], "max_new_tokens": 99},
            "grader": {"type": "answer", "reference": "{{item.answer}}"},
        }
    )
    run_log = BusRunLog(
        run_id=f"run-{uuid.uuid4().hex[:6]}",
        spec=run_spec_to_proto(spec),
        bus=bus,
        blobs=await bus.blobs(),
        clock=time.time,
        rng=random.Random(3),
        temperature=1.0,
        eval_temperature=1.0,
    )
    cursor = await run_log.started()
    by_id = {task.task_id: task for task in tasks()}
    ledger = StepLedger(
        slots_of_step(run_log.run_id, Phase.TRAIN, 0, list(by_id.values()), GROUP),
        RetryBudget(infra=0, data=0),
    )
    kept: dict[tuple[str, int, int], Generation] = {}
    stop = asyncio.Event()
    count = 0
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(act(bus, tiny_model, tmp_path / "adapters", kept, stop))
        for wanted in ledger.wanted():
            await run_log.request(wanted, by_id[wanted.task_id], Policy(version=0, adapter=None), 1)
        async for event in bus.read(["rollout_finished"], run_id=run_log.run_id, follow=True):
            await judge(bus, event.envelope, count % 2)
            count += 1
            if count == TASKS * GROUP:
                break
        stop.set()
    async for fact in run_log.facts(cursor, follow=False):
        fold(ledger, fact)
    assert ledger.closed
    check_rows(ledger, kept)
    check_batch(ledger)


def check_rows(ledger: StepLedger, kept: dict[tuple[str, int, int], Generation]) -> None:
    """Every sampled span in the log holds exactly what the engine returned."""
    assert len(ledger.scored()) == TASKS * GROUP
    for state, attempt, _ in ledger.scored():
        assert attempt.record is not None
        (row,) = attempt.record.tokens.rows
        assert len(row.spans) == 3
        sampled: list[int] = []
        for span in row.spans:
            made = kept[(state.task_id, state.slot.sample_index, span.turn)]
            assert row.token_ids[span.start : span.end] == made.token_ids
            assert row.logprobs[span.start : span.end] == made.logprobs
            assert all(row.loss_mask[span.start : span.end])
            sampled += range(span.start, span.end)
        assert [i for i, m in enumerate(row.loss_mask) if m] == sampled


def check_batch(ledger: StepLedger) -> None:
    """The training batch holds the log's tokens, in order, and nothing else."""
    step = step_batch(ledger, version=0)
    batch = PolicyGradient(PolicyGradientSettings()).batch(step.groups)
    rows = [a.record.tokens.rows[0] for a in step.attempts if a.record is not None]
    flat = [
        (i, p)
        for row in rows
        for i, p, m in zip(row.token_ids, row.logprobs, row.loss_mask, strict=True)
        if m
    ]
    ids = [
        batch.tokens.rows[r][p]
        for r, p in zip(batch.tokens.row_T, batch.tokens.position_T, strict=True)
    ]
    assert ids == [i for i, _ in flat]
    assert batch.engine_logprobs_T is not None
    assert np.array_equal(batch.engine_logprobs_T, np.array([p for _, p in flat]))
