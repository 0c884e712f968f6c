"""Judgements over a real in-process critic service that answers as it is told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hone.critic.v1 import critic_pb2, critic_pb2_grpc

from grader.clients.critic import CriticJudges
from grader.instruments.judges import Question
from grader.results import GradingFaultError
from servicekit.channels import connect
from servicekit.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from servicekit.testing import running_server
from trajectory.types import ChatMessage, GraderErrorKind, Role

MESSAGES = (
    ChatMessage(role=Role.SYSTEM, content=("Be strict.",)),
    ChatMessage(role=Role.USER, content=("72",)),
)


class ToldCritic(critic_pb2_grpc.CriticServiceServicer):
    def __init__(self) -> None:
        self.asked: list[critic_pb2.JudgeRequest] = []
        self.reply = critic_pb2.JudgeResponse(
            score=0.5,
            reasoning="so so",
            model="judge-1",
            usage=critic_pb2.TokenUsage(input_token_count=7, output_token_count=3),
        )
        self.error: HoneError | None = None
        self.hangs = False

    async def Judge(
        self, request: critic_pb2.JudgeRequest, context: Any
    ) -> critic_pb2.JudgeResponse:
        self.asked.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.reply


@pytest.fixture
async def critic() -> AsyncIterator[tuple[ToldCritic, CriticJudges]]:
    servicer = ToldCritic()
    add = critic_pb2_grpc.add_CriticServiceServicer_to_server
    async with running_server(lambda server: add(servicer, server)) as address:
        judges = CriticJudges(lambda: connect(address))
        yield servicer, judges
        await judges.close()


async def test_a_score_is_asked_for_within_its_range(
    critic: tuple[ToldCritic, CriticJudges],
) -> None:
    servicer, judges = critic
    question = Question(
        messages=MESSAGES,
        model="m",
        low=-1,
        high=3,
        temperature=0.25,
        max_tokens=99,
        seed=2**62,
        run_id="r",
    )
    found = await judges.judge(question)
    assert (found.score, found.label, found.reasoning) == (0.5, "", "so so")
    assert (found.model, found.num_tokens) == ("judge-1", 10)
    asked = servicer.asked[0]
    assert (asked.score.low, asked.score.high, asked.model) == (-1, 3, "m")
    assert asked.run_id == "r"
    sampling = asked.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.25, 99, 2**62)
    assert [part.text for message in asked.messages for part in message.parts] == [
        "Be strict.",
        "72",
    ]


async def test_a_question_without_seed_passes_none(critic: tuple[ToldCritic, CriticJudges]) -> None:
    servicer, judges = critic
    await judges.judge(Question(messages=MESSAGES, model=""))
    assert not servicer.asked[0].sampling.HasField("seed")


async def test_a_label_is_asked_for_by_its_labels(critic: tuple[ToldCritic, CriticJudges]) -> None:
    servicer, judges = critic
    servicer.reply = critic_pb2.JudgeResponse(label="good")
    found = await judges.judge(Question(messages=MESSAGES, model="", labels=("good", "bad")))
    assert (found.score, found.label) == (None, "good")
    assert list(servicer.asked[0].label.labels) == ["good", "bad"]


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "client"),
    [
        (Aborted("said maybe", reason="JUDGE_UNPARSABLE"), GraderErrorKind.PARSE, True, False),
        (
            PermissionDenied("would not", reason="JUDGE_REFUSED"),
            GraderErrorKind.REFUSAL,
            False,
            True,
        ),
        (DeadlineExceeded("late", reason="JUDGE_TIMEOUT"), GraderErrorKind.TIMEOUT, True, False),
        (Unavailable("down", reason="JUDGE_UNAVAILABLE"), GraderErrorKind.SERVER, True, False),
        (ResourceExhausted("many", reason="JUDGE_BUSY"), GraderErrorKind.SERVER, True, False),
        (
            FailedPrecondition("set HONE_CRITIC_ENDPOINT_URL", reason="JUDGE_UNCONFIGURED"),
            GraderErrorKind.SERVER,
            False,
            False,
        ),
        (InvalidArgument("too long", reason="JUDGE_REJECTED"), GraderErrorKind.SERVER, False, True),
    ],
)
async def test_what_keeps_a_judge_from_a_verdict_is_a_typed_fault(
    critic: tuple[ToldCritic, CriticJudges],
    error: HoneError,
    kind: GraderErrorKind,
    retryable: bool,
    client: bool,
) -> None:
    servicer, judges = critic
    servicer.error = error
    with pytest.raises(GradingFaultError) as caught:
        await judges.judge(Question(messages=MESSAGES, model="m"))
    fault = caught.value
    assert (fault.kind, fault.retryable, fault.client) == (kind, retryable, client)
    assert fault.detail == f"judge m: {error.message}"


async def test_a_critic_that_says_nothing_is_a_timeout(
    critic: tuple[ToldCritic, CriticJudges],
) -> None:
    servicer, judges = critic
    servicer.hangs = True
    with pytest.raises(GradingFaultError) as caught:
        await judges.judge(Question(messages=MESSAGES, model="m", timeout_seconds=0.2))
    assert (caught.value.kind, caught.value.retryable) == (GraderErrorKind.TIMEOUT, True)


async def test_a_critic_that_is_not_there_is_a_fault_that_another_try_can_mend() -> None:
    judges = CriticJudges(lambda: connect("127.0.0.1:1"))
    with pytest.raises(GradingFaultError) as caught:
        await judges.judge(Question(messages=MESSAGES, model="", timeout_seconds=2))
    await judges.close()
    assert caught.value.retryable
    assert caught.value.kind in (GraderErrorKind.SERVER, GraderErrorKind.TIMEOUT)
