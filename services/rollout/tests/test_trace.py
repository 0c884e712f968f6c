"""One trace per rollout: every span has the rollout_id as trace id and a parent that exists."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from hone.common.v1 import message_pb2, run_spec_pb2, task_pb2
from hone.events.v1 import events_pb2
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.envelope import new_envelope
from eventbus.memory_bus import MemoryBus
from rollout.adapters import AdapterFolders
from rollout.agent_loop import ToolCaller, ToolOutcome
from rollout.consumer import BusBlobFetcher, BusReporter, consume_requests
from rollout.engines.scripted import ScriptedEngine
from rollout.executor import Executor, LeaseTimes
from rollout.jobs import Environment, RolloutJob
from rollout.policies import Policies
from servicekit.identity import new_rollout_id, rollout_scope, trace_id_of
from servicekit.telemetry import tracer_provider
from trajectory import convert
from trajectory.types import Phase, Slot, ToolCall, ToolDefinition

CALL = '<tool_call>{"name":"calculator","arguments":{"expression":"2*3"}}</tool_call>'


class Sandboxes:
    async def create(self, job: RolloutJob, epoch: int, timeout_seconds: float) -> Environment:
        return Environment(sandbox_id="sbx_1")


class Tools:
    async def definitions(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        return (ToolDefinition(name="calculator", description="", parameters_json="{}"),)

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        return self

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        return [ToolOutcome(content="6") for _ in calls]


def clock() -> float:
    return 1_000_000.0


def request(rollout_id: str) -> events_pb2.Envelope:
    text = message_pb2.ContentPart(text="2*3?")
    payload = events_pb2.RolloutRequested(
        task=task_pb2.Task(
            task_id="t1",
            messages=[message_pb2.ChatMessage(role=message_pb2.ROLE_USER, parts=[text])],
            reference_json=json.dumps({"script": [CALL, CALL, "Answer: 6"]}),
        ),
        rollout=run_spec_pb2.RolloutSpec(max_turns=4, tools=["calculator"]),
        model=run_spec_pb2.ModelSpec(path="tiny"),
    )
    payload.sampling.max_new_tokens = 100
    payload.deadline_time.FromSeconds(int(clock()) + 60)
    slot = Slot(run_id="run", phase=Phase.TRAIN, step=2, group_index=0, sample_index=1)
    return new_envelope(
        payload,
        source="learner",
        run_id="run",
        rollout_id=rollout_id,
        slot=convert.slot_to_proto(slot),
        clock=clock,
    )


async def test_a_rollout_is_one_whole_trace(tiny_model: Path, tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = tracer_provider("rollout", ratio=1.0, exporter=None, rng=random.Random(0))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    bus = MemoryBus(clock=clock, rng=random.Random(0), tracer=tracer)
    blobs = await bus.blobs()
    reporter = BusReporter(bus, blobs, clock)
    executor = Executor(
        owner="a",
        claims=await bus.claims(),
        policies=Policies(
            make_engine=ScriptedEngine,
            resolve=lambda path: tiny_model,
            adapters=AdapterFolders(tmp_path, BusBlobFetcher(blobs)),
        ),
        sandboxes=Sandboxes(),
        tools=Tools(),
        reporter=reporter,
        times=LeaseTimes(),
        clock=clock,
        tracer=tracer,
    )
    rollout_id = new_rollout_id(clock, random.Random(1))
    with rollout_scope(rollout_id), tracer.start_as_current_span("request rollout"):
        await bus.publish(request(rollout_id))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            consume_requests(
                bus, executor, reporter, stop=stop, max_in_flight=1, ack_wait_seconds=30
            )
        )
        async for _ in bus.read(["rollout_finished"], follow=True, stop=stop):
            stop.set()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    assert {span.context.trace_id for span in spans.values()} == {trace_id_of(rollout_id)}
    roots = [span.name for span in spans.values() if span.parent is None]
    assert roots == ["request rollout"]
    assert all(span.parent is None or span.parent.span_id in spans for span in spans.values())
    chats = [span for span in spans.values() if span.name == "chat tiny"]
    (agent,) = [span for span in spans.values() if span.name == "invoke_agent"]
    assert [chat.attributes["hone.turn"] for chat in chats] == [0, 1, 2]
    assert {chat.parent.span_id for chat in chats} == {agent.context.span_id}
    assert chats[0].attributes["gen_ai.usage.output_tokens"] > 0
    assert agent.attributes["hone.rollout.id"] == rollout_id
    assert agent.attributes["hone.stop_reason"] == "completed"
