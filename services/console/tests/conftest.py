"""A run's events as the services would publish them, and an archive to put them into."""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hone.common.v1 import identity_pb2, outcome_pb2, run_spec_pb2, task_pb2
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader
from eventbus.envelope import new_envelope
from trajectory.convert import rollout_record_to_proto
from trajectory.types import (
    ChatMessage,
    Role,
    RolloutRecord,
    SamplingParams,
    StopReason,
    Task,
    TokenRecord,
    TokenRow,
    TokenSpan,
    ToolCall,
    ToolCallRecord,
    TurnRecord,
)

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def make_record(said: str = "The answer is 12.") -> RolloutRecord:
    call = ToolCall(tool_call_id="c1", name="calculator", arguments_json='{"expression": "3*4"}')
    prompt = (
        ChatMessage(role=Role.SYSTEM, content=("Use the calculator.",)),
        ChatMessage(role=Role.USER, content=("What is 3 times 4?",)),
    )
    return RolloutRecord(
        task=Task(task_id="task-7", messages=prompt[1:], reference={"answer": "12"}),
        messages=(
            *prompt,
            ChatMessage(
                role=Role.ASSISTANT, tool_calls=(call,), reasoning_content="I need a product."
            ),
            ChatMessage(role=Role.TOOL, content=("12",), tool_call_id="c1", name="calculator"),
            ChatMessage(role=Role.ASSISTANT, content=(said,)),
        ),
        tokens=TokenRecord(
            rows=(
                TokenRow(
                    token_ids=tuple(range(10)),
                    loss_mask=(False,) * 3 + (True,) * 3 + (False,) * 2 + (True,) * 2,
                    logprobs=(0.0,) * 3 + (-0.5,) * 3 + (0.0,) * 2 + (-0.25,) * 2,
                    spans=(
                        TokenSpan(start=3, end=6, turn=0, policy_version=0),
                        TokenSpan(start=8, end=10, turn=1, policy_version=0),
                    ),
                ),
            ),
            sampling=SamplingParams(),
        ),
        stop_reason=StopReason.COMPLETED,
        sandbox_id="sbx_1",
        turns=(
            TurnRecord(
                turn=0,
                policy_version=0,
                prompt_token_count=3,
                sampled_token_count=3,
                generate_seconds=0.4,
                tools_seconds=0.02,
                tool_calls=(ToolCallRecord(call=call, result="12"),),
            ),
            TurnRecord(
                turn=1,
                policy_version=0,
                prompt_token_count=8,
                sampled_token_count=2,
                generate_seconds=0.2,
                tools_seconds=0.0,
            ),
        ),
        grader_json="{}",
        start_time=START,
        end_time=START + timedelta(seconds=1.5),
    )


class RunWriter:
    """Makes the envelopes of one run, each a second after the one before."""

    def __init__(self, run_id: str = "run-1") -> None:
        self.run_id = run_id
        self.envelopes: list[events_pb2.Envelope] = []

    def tell(
        self,
        payload: Message,
        source: str,
        *,
        rollout_id: str = "",
        sample: int = 0,
        attempt: int = 0,
        epoch: int = 0,
        grader_version: str = "",
    ) -> events_pb2.Envelope:
        slot = None
        if rollout_id:
            slot = identity_pb2.Slot(
                run_id=self.run_id, phase=identity_pb2.PHASE_TRAIN, sample_index=sample
            )
        now = START + timedelta(seconds=len(self.envelopes))
        envelope = new_envelope(
            payload,
            source=source,
            run_id=self.run_id,
            rollout_id=rollout_id,
            slot=slot,
            attempt=attempt,
            epoch=epoch,
            grader_version=grader_version,
            clock=now.timestamp,
        )
        self.envelopes.append(envelope)
        return envelope

    def start(self) -> None:
        spec = run_spec_pb2.RunSpec(name="demo", algorithm="grpo")
        self.tell(events_pb2.RunStarted(spec=spec), "learner")

    def request(self, rollout_id: str, *, sample: int = 0, attempt: int = 0) -> None:
        payload = events_pb2.RolloutRequested(task=task_pb2.Task(task_id="task-7"))
        self.tell(payload, "learner", rollout_id=rollout_id, sample=sample, attempt=attempt)

    def begin(self, rollout_id: str, *, sample: int = 0, attempt: int = 0) -> None:
        box = f"sbx_{rollout_id[-4:]}"
        created = events_pb2.SandboxCreated(sandbox_id=box)
        self.tell(created, "sandbox", rollout_id=rollout_id, sample=sample, attempt=attempt)
        started = events_pb2.RolloutStarted(owner="replica-a", sandbox_id=box)
        self.tell(
            started, "rollout", rollout_id=rollout_id, sample=sample, attempt=attempt, epoch=1
        )

    def finish(
        self,
        rollout_id: str,
        *,
        sample: int = 0,
        record: RolloutRecord | None = None,
    ) -> events_pb2.Envelope:
        message = rollout_record_to_proto(record or make_record())
        payload = events_pb2.RolloutFinished(inline=message)
        return self.tell(payload, "rollout", rollout_id=rollout_id, sample=sample, epoch=1)

    def score(
        self, rollout_id: str, score: float, *, sample: int = 0, explanation: str = ""
    ) -> None:
        reward = outcome_pb2.Reward(
            name="answer", value=score, weight=1.0, grader_name="answer", explanation=explanation
        )
        scored = outcome_pb2.Scored(rewards=[reward], score=score)
        payload = events_pb2.RewardAssigned(scored=scored, grader_version="g1")
        self.tell(payload, "grader", rollout_id=rollout_id, sample=sample)
        self.destroy(rollout_id, sample=sample)

    def fail(self, rollout_id: str, *, sample: int = 0, detail: str = "box is gone") -> None:
        failure = outcome_pb2.Failure(
            kind=outcome_pb2.FAILURE_KIND_SANDBOX,
            retryable=True,
            attributable=outcome_pb2.ATTRIBUTION_INFRA,
            detail=detail,
        )
        payload = events_pb2.RolloutFailed(failure=failure)
        self.tell(payload, "rollout", rollout_id=rollout_id, sample=sample, epoch=1)
        self.destroy(rollout_id, sample=sample)

    def destroy(self, rollout_id: str, *, sample: int = 0) -> None:
        payload = events_pb2.SandboxDestroyed(sandbox_id=f"sbx_{rollout_id[-4:]}", cause="outcome")
        self.tell(payload, "sandbox", rollout_id=rollout_id, sample=sample)

    def train(self, step: int, *rollout_ids: str) -> None:
        payload = events_pb2.RunStepTrained(
            step=step,
            policy_version=step + 1,
            trained_rollout_ids=rollout_ids,
            metrics={"reward/mean": 0.5, "kl": 0.001},
        )
        self.tell(payload, "learner")

    def end(self, end: events_pb2.RunEnd.ValueType = events_pb2.RUN_END_COMPLETED) -> None:
        self.tell(events_pb2.RunFinished(end=end), "learner")


SCORED_ID = "0195abcd-0000-7000-8000-00000000aaaa"
FAILED_ID = "0195abcd-0000-7000-8000-00000000bbbb"
RETRIED_ID = "0195abcd-0000-7000-8000-00000000cccc"


@dataclasses.dataclass(frozen=True)
class DemoRun:
    """A run with a scored rollout, and a slot whose first attempt failed; the second is open."""

    writer: RunWriter
    scored_id: str = SCORED_ID
    failed_id: str = FAILED_ID
    retried_id: str = RETRIED_ID

    @property
    def envelopes(self) -> list[events_pb2.Envelope]:
        return self.writer.envelopes


@pytest.fixture
def run_writer() -> RunWriter:
    return RunWriter()


@pytest.fixture
def record() -> RolloutRecord:
    return make_record()


@pytest.fixture
def demo() -> DemoRun:
    writer = RunWriter()
    writer.start()
    writer.request(SCORED_ID)
    writer.begin(SCORED_ID)
    writer.finish(SCORED_ID)
    writer.score(SCORED_ID, 0.85)
    writer.request(FAILED_ID, sample=1)
    writer.begin(FAILED_ID, sample=1)
    writer.fail(FAILED_ID, sample=1)
    writer.request(RETRIED_ID, sample=1, attempt=1)
    writer.train(0, SCORED_ID)
    return DemoRun(writer)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    archive = Archive(tmp_path / "console.sqlite")
    yield archive
    archive.close()


@pytest.fixture
def reader(archive: Archive) -> ArchiveReader:
    return ArchiveReader(archive.path)
