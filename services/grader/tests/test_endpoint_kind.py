"""The endpoint kind: what a definition may say, what is asked, what an answer is worth."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from grader.clients.endpoints import encode
from grader.definition import Definitions
from grader.grading import failure_of, grade
from grader.instruments.all import Instruments
from grader.instruments.endpoints import Call, Reply
from grader.results import GradingFaultError
from servicekit.errors import InvalidArgument
from trajectory.outcome_convert import failure_to_proto, scored_to_proto
from trajectory.types import GraderErrorKind, Masked, OutcomeKind, RolloutRecord, Scored

MakeRecord = Callable[..., RolloutRecord]
URL = "https://graders.example.com/score"


class Told:
    """Answers one reply, or raises, and keeps what was asked."""

    def __init__(self, reply: Reply | GradingFaultError) -> None:
        self.reply = reply
        self.calls: list[Call] = []

    async def call(self, call: Call) -> Reply:
        self.calls.append(call)
        if isinstance(self.reply, GradingFaultError):
            raise self.reply
        return self.reply


async def _graded(
    endpoints: Told, record: RolloutRecord, instruments: Instruments, **definition: Any
) -> Scored | Masked:
    text = json.dumps({"type": "endpoint", "url": URL, **definition})
    parsed = Definitions(package_version="1").parse(text)
    return await grade(
        record,
        parsed,
        replace(instruments, endpoints=endpoints, rollout_id="r1", grader_version=parsed.version),
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.0, None), (0.5, None), (0.49, OutcomeKind.REASONING), (-1.0, OutcomeKind.REASONING)],
)
async def test_the_score_is_the_endpoints(
    make_record: MakeRecord, instruments: Instruments, value: float, kind: OutcomeKind | None
) -> None:
    endpoints = Told(Reply(value=value, explanation="so", parts={"f1": 0.25}))
    outcome = await _graded(endpoints, make_record(), instruments, range=[-1, 1])
    assert isinstance(outcome, Scored)
    assert (outcome.score, outcome.kind) == (value, kind)
    (reward,) = outcome.rewards
    assert (reward.explanation, reward.parts) == ("so", {"f1": 0.25})


async def test_what_an_endpoint_says_can_always_be_told(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    """JSON can hold half of a surrogate pair, an event cannot."""
    said = Reply(value=1.0, explanation="a\ud800b", parts={"c\udfff": 1.0})
    outcome = await _graded(Told(said), make_record(), instruments)
    assert isinstance(outcome, Scored)
    (reward,) = scored_to_proto(outcome).rewards
    assert (reward.explanation, dict(reward.parts)) == ("a?b", {"c?": 1.0})
    fault = GradingFaultError("\ud800", kind=GraderErrorKind.CODE, retryable=False, client=True)
    assert failure_to_proto(failure_of(fault)).detail == "?"


async def test_the_question_holds_sample_item_version_and_rollout(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    endpoints = Told(Reply(value=1.0))
    record = make_record('{"answer": 72}', calls=1)
    await _graded(
        endpoints,
        record,
        instruments,
        secret="team",
        headers={"X-Team": "a"},
        timeout_seconds=5,
        max_tries=2,
    )
    (call,) = endpoints.calls
    assert (call.url, call.secret_name, call.headers) == (URL, "team", {"X-Team": "a"})
    assert (call.timeout_seconds, call.max_tries) == (5.0, 2)
    payload = json.loads(json.dumps(call.payload))
    assert payload["item"] == {"answer": "72"}
    assert payload["rollout_id"] == "r1"
    assert payload["grader_version"].startswith("1+")
    sample = payload["sample"]
    assert sample["output_text"] == '{"answer": 72}'
    assert sample["output_json"] == {"answer": 72}
    assert sample["output_tools"][0]["function"]["name"] == "calculator"
    assert sample["choices"] == [{"message": {"role": "assistant", "content": '{"answer": 72}'}}]
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant"]
    assert sample["prompt_message_count"] == 1


async def test_a_payload_of_ones_own_is_all_that_is_sent(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    endpoints = Told(Reply(value=1.0))
    payload = {"text": "said {{sample.output_text}}", "gold": ["{{item.answer}}"], "k": 1}
    await _graded(endpoints, make_record("72"), instruments, payload=payload)
    assert endpoints.calls[0].payload == {"text": "said 72", "gold": ["72"], "k": 1}


async def test_a_response_that_lacks_what_the_payload_names_costs_no_call(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    endpoints = Told(Reply(value=1.0))
    payload = {"x": "{{sample.output_json.x}}"}
    outcome = await _graded(endpoints, make_record("no JSON"), instruments, payload=payload)
    assert isinstance(outcome, Scored)
    assert (outcome.score, outcome.kind) == (0.0, OutcomeKind.FORMAT)
    assert endpoints.calls == []


@pytest.mark.parametrize("text", ["9" * 1_100_000, "\x00" * 200_000, "\u202e\u05d0" * 100_000])
async def test_a_response_that_no_server_would_take_is_its_own_doing(
    make_record: MakeRecord, instruments: Instruments, text: str
) -> None:
    endpoints = Told(Reply(value=1.0))
    outcome = await _graded(endpoints, make_record(text), instruments)
    assert isinstance(outcome, Scored)
    assert (outcome.score, outcome.kind) == (0.0, OutcomeKind.BUDGET)
    assert endpoints.calls == []


@pytest.mark.parametrize(
    "text", ["9" * 900_000, "[" * 900_000, "\x00" * 170_000, json.dumps([1] * 300_000)]
)
async def test_a_long_response_is_sent_within_what_servers_take(
    make_record: MakeRecord, instruments: Instruments, text: str
) -> None:
    endpoints = Told(Reply(value=1.0))
    await _graded(endpoints, make_record(text), instruments)
    assert len(encode(endpoints.calls[0].payload)) < 4_000_000


async def test_a_long_conversation_is_left_out(
    make_record: MakeRecord, instruments: Instruments
) -> None:
    endpoints = Told(Reply(value=1.0))
    await _graded(endpoints, make_record("9" * 1_048_570), instruments)
    sample: Any = endpoints.calls[0].payload["sample"]
    assert (sample["messages"], sample["choices"]) == ([], [])


async def test_no_opinion_is_no_zero(make_record: MakeRecord, instruments: Instruments) -> None:
    outcome = await _graded(Told(Reply(value=None)), make_record(), instruments)
    assert isinstance(outcome, Masked)


async def test_a_fault_is_no_zero(make_record: MakeRecord, instruments: Instruments) -> None:
    fault = GradingFaultError("away", kind=GraderErrorKind.SERVER, retryable=True, client=False)
    with pytest.raises(GradingFaultError, match="away"):
        await _graded(Told(fault), make_record(), instruments)


@pytest.mark.parametrize(
    ("definition", "path", "said"),
    [
        ({}, "url", "is required"),
        ({"url": "ftp://x"}, "url", "must begin with http://"),
        ({"url": "http://"}, "url", "and a host"),
        ({"url": "http://a:b@x/"}, "url", "must not hold a user or password"),
        ({"url": "http://x/?max_tokens=5&api_key=b"}, "url", "nor keys in its query"),
        ({"url": "http://a\x7fb/"}, "url", "printable ASCII"),
        ({"url": "http://x:99999/"}, "url", "is no url"),
        ({"url": "http://x/#a"}, "url", "must hold neither"),
        ({"url": "grpc://x"}, "url", "must be host:port"),
        ({"url": "grpc://x:1/path"}, "url", "must be host:port"),
        ({"url": URL, "headers": {"Authorization": "x"}}, "headers.Authorization", "a secret"),
        ({"url": URL, "headers": {"X-Auth-Token": "x"}}, "headers.X-Auth-Token", "a secret"),
        ({"url": URL, "headers": {"X-Bin": "x"}}, "headers.X-Bin", "which gRPC keeps for bytes"),
        ({"url": URL, "headers": {"Host": "x"}}, "headers.Host", "is set by the grader"),
        ({"url": URL, "headers": {"Webhook-Id": "x"}}, "headers.Webhook-Id", "is set by"),
        ({"url": URL, "headers": {"A b": "x"}}, "headers.A b", "must be named by"),
        ({"url": URL, "headers": {"A": "x\r\ny"}}, "headers.A", "printable ASCII"),
        ({"url": URL, "secret": "../key"}, "secret", "must name a key file"),
        ({"url": URL, "secret": "whsec_YWJj"}, "secret", "is a key"),
        ({"url": URL, "timeout_seconds": 0}, "timeout_seconds", "from 0.1 to 600"),
        ({"url": URL, "max_tries": 0}, "max_tries", "from 1 to 10"),
        ({"url": URL, "payload": {"a": "{{item}}"}}, "payload", "must be item.<field>"),
        ({"url": URL, "payload": []}, "payload", "must be an object"),
        ({"url": URL, "timeout": 3}, "timeout", "did you mean 'timeout_seconds'"),
    ],
)
def test_a_wrong_definition_is_named_by_field(
    definition: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Definitions(package_version="1").parse(json.dumps({"type": "endpoint", **definition}))
    assert said in raised.value.violations[path]


@pytest.mark.parametrize(
    "definition",
    [
        {"url": URL, "secret": "c2VjcmV0LWtleQ+/="},
        {"url": "https://team:c2VjcmV0@graders.example.com/"},
        {"url": "https://graders.example.com/?key=c2VjcmV0"},
    ],
)
def test_a_key_in_a_definition_is_not_repeated_in_the_error(definition: dict[str, str]) -> None:
    text = json.dumps({"type": "endpoint", **definition})
    with pytest.raises(InvalidArgument) as raised:
        Definitions(package_version="1").parse(text)
    assert "c2VjcmV0" not in str(raised.value)
