"""The reward_model kind, and its client over a real in-process rollout service."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hone.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from grader.clients.reward_models import RolloutRewardModels
from grader.definition import Definitions
from grader.grading import grade
from grader.instruments.all import Instruments
from grader.instruments.reward_models import ModelScore
from grader.results import GradingFaultError
from servicekit.channels import connect
from servicekit.errors import DataLoss, DeadlineExceeded, HoneError, InvalidArgument, Unavailable
from servicekit.testing import running_server
from trajectory.types import (
    ChatMessage,
    GraderErrorKind,
    Masked,
    OutcomeKind,
    Role,
    RolloutRecord,
    Scored,
)

MakeRecord = Callable[..., RolloutRecord]


class Told:
    """Gives one score and keeps what was asked."""

    def __init__(self, score: ModelScore) -> None:
        self.given = score
        self.asked: list[tuple[str, list[tuple[str, str]], float]] = []

    async def score(
        self, model: str, messages: Sequence[ChatMessage], timeout_seconds: float
    ) -> ModelScore:
        said = [(message.role.value, message.text) for message in messages]
        self.asked.append((model, said, timeout_seconds))
        return self.given


async def _graded(
    told: Told, record: RolloutRecord, instruments: Instruments, **definition: Any
) -> Scored:
    text = json.dumps({"type": "reward_model", "model": "/rm", "range": [-9, 9], **definition})
    parsed = Definitions(package_version="1").parse(text)
    outcome = await grade(record, parsed, replace(instruments, reward_models=told))
    assert isinstance(outcome, Scored)
    return outcome


@pytest.mark.parametrize(
    ("value", "kind"), [(2.5, None), (0.0, None), (-1.5, OutcomeKind.REASONING)]
)
async def test_the_value_is_the_models_own(
    make_record: MakeRecord, instruments: Instruments, value: float, kind: OutcomeKind | None
) -> None:
    told = Told(ModelScore(value=value))
    outcome = await _graded(told, make_record("72"), instruments)
    assert (outcome.score, outcome.kind) == (value, kind)
    asked = [("user", "How many clips?"), ("assistant", "72")]
    assert told.asked == [("/rm", asked, 60.0)]


async def test_an_input_of_ones_own_is_what_is_scored(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    told = Told(ModelScore(value=1, truncated=True))
    messages = [
        {"role": "user", "content": "gold: {{item.answer}}"},
        {"role": "assistant", "content": "{{sample.output_text}}"},
    ]
    outcome = await _graded(
        told, make_record("72"), instruments, input=messages, timeout_seconds=5, pass_threshold=2
    )
    assert told.asked == [("/rm", [("user", "gold: 72"), ("assistant", "72")], 5.0)]
    assert outcome.kind is OutcomeKind.REASONING
    assert "did not fit" in outcome.rewards[0].explanation


async def test_a_response_that_lacks_something_is_worth_what_the_model_says(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    """A fixed 0 would be better than what a model gives bad responses."""
    told = Told(ModelScore(value=-4))
    messages = [{"role": "user", "content": "x {{sample.output_json.x}}"}]
    outcome = await _graded(told, make_record("no JSON"), instruments, input=messages)
    assert (outcome.score, outcome.kind) == (-4.0, OutcomeKind.FORMAT)
    assert told.asked[0][1] == [("user", "x ")]


async def test_a_conversation_that_no_service_would_take_has_no_vote(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    """A fault would be tried for minutes, and a 0 would be better than what a model gives bad responses."""
    told = Told(ModelScore(value=-4))
    text = json.dumps({"type": "reward_model", "model": "/rm", "range": [-9, 9]})
    outcome = await grade(
        make_record("9" * 1_100_000),
        Definitions(package_version="1").parse(text),
        replace(instruments, reward_models=told),
    )
    assert isinstance(outcome, Masked)
    assert outcome.kind is OutcomeKind.BUDGET
    assert told.asked == []


@pytest.mark.parametrize(
    ("definition", "path", "said"),
    [
        ({}, "model", "is required"),
        ({"model": "x", "input": []}, "input", "must be a non-empty list"),
        ({"model": "x", "input": [{"role": "tool", "content": "x"}]}, "input[0].role", "known"),
        ({"model": "x", "input": [{"role": "user"}]}, "input[0].content", "is required"),
        ({"model": "x", "timeout_seconds": 0}, "timeout_seconds", "from 1 to 600"),
    ],
)
def test_a_wrong_definition_is_named_by_field(
    definition: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Definitions(package_version="1").parse(json.dumps({"type": "reward_model", **definition}))
    assert said in raised.value.violations[path]


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self) -> None:
        self.answer: rollout_pb2.ScoreRewardsResponse | HoneError = _scores(0.5)
        self.asked: list[rollout_pb2.ScoreRewardsRequest] = []

    async def ScoreRewards(
        self, request: rollout_pb2.ScoreRewardsRequest, context: Any
    ) -> rollout_pb2.ScoreRewardsResponse:
        self.asked.append(request)
        if isinstance(self.answer, HoneError):
            raise self.answer
        return self.answer


def _scores(*scores: float) -> rollout_pb2.ScoreRewardsResponse:
    made = [rollout_pb2.RewardScore(score=score, token_count=3, truncated=True) for score in scores]
    return rollout_pb2.ScoreRewardsResponse(scores=made)


@pytest.fixture
async def service() -> AsyncIterator[tuple[Rollout, RolloutRewardModels]]:
    servicer = Rollout()
    add = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
    async with running_server(lambda server: add(servicer, server)) as address:
        client = RolloutRewardModels(lambda: connect(address))
        yield servicer, client
        await client.close()


SAID = (ChatMessage(role=Role.USER, content=("x",)),)


async def test_a_conversation_is_asked_about_by_model(
    service: tuple[Rollout, RolloutRewardModels],
) -> None:
    servicer, client = service
    assert await client.score("/rm", SAID, 5) == ModelScore(value=0.5, truncated=True)
    (request,) = servicer.asked
    assert request.model.path == "/rm"
    assert request.conversations[0].messages[0].parts[0].text == "x"


@pytest.mark.parametrize(
    ("answer", "kind", "retryable", "blamed"),
    [
        (Unavailable("away", reason="AWAY"), GraderErrorKind.SERVER, True, False),
        (DeadlineExceeded("slow"), GraderErrorKind.TIMEOUT, True, False),
        (InvalidArgument("no such model"), GraderErrorKind.DEFINITION, False, True),
        (DataLoss("gives nan"), GraderErrorKind.PARSE, False, True),
        (_scores(), GraderErrorKind.PARSE, False, False),
        (_scores(float("nan")), GraderErrorKind.PARSE, False, False),
    ],
)
async def test_what_the_service_says_is_told_apart(
    service: tuple[Rollout, RolloutRewardModels],
    answer: rollout_pb2.ScoreRewardsResponse | HoneError,
    kind: GraderErrorKind,
    retryable: bool,
    blamed: bool,
) -> None:
    servicer, client = service
    servicer.answer = answer
    with pytest.raises(GradingFaultError) as raised:
        await client.score("/rm", SAID, 5)
    fault = raised.value
    assert (fault.kind, fault.retryable, fault.client) == (kind, retryable, blamed)
    assert "/rm" in fault.detail
