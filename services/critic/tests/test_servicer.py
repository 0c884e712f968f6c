"""The RPC over a real in-process server, with a real endpoint behind it."""

# The async stub types exist for type checkers only.
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from hone.common.v1 import message_pb2
from hone.critic.v1 import critic_pb2 as pb
from hone.critic.v1 import critic_pb2_grpc
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from critic.judge import NoJudge
from critic.judging import Critic
from critic.servicer import CriticServicer
from servicekit.channels import connect
from servicekit.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Unavailable,
)
from servicekit.testing import running_server

POEM = message_pb2.ChatMessage(
    role=message_pb2.ROLE_USER, parts=[message_pb2.ContentPart(text="How good is this poem?")]
)
SCORE = pb.ScoreKind(low=0, high=10)


@asynccontextmanager
async def served(critic: Critic) -> AsyncIterator[Any]:
    servicer = CriticServicer(critic, default_timeout_seconds=5)
    add = critic_pb2_grpc.add_CriticServiceServicer_to_server
    async with (
        running_server(lambda server: add(servicer, server)) as address,
        connect(address) as channel,
    ):
        yield critic_pb2_grpc.CriticServiceStub(channel)


@pytest.fixture
async def stub(make_critic: Callable[..., Critic]) -> AsyncIterator[Any]:
    async with served(make_critic()) as made:
        yield made


def request(**changes: Any) -> pb.JudgeRequest:
    return pb.JudgeRequest(**{"messages": [POEM], "score": SCORE, **changes})


@pytest.mark.parametrize(
    ("kind", "text", "field", "value"),
    [
        ({"score": SCORE}, "Score: 7", "score", 7.0),
        ({"score": pb.ScoreKind()}, "Score: 0", "score", 0.0),
        ({"label": pb.LabelKind(labels=["Good", "Bad"])}, "Label: bad", "label", "Bad"),
        ({"pairwise": pb.PairwiseKind()}, "[[B]]", "winner", pb.PAIRWISE_WINNER_B),
        (
            {"pairwise": pb.PairwiseKind(ties_allowed=True)},
            "[[C]]",
            "winner",
            pb.PAIRWISE_WINNER_TIE,
        ),
        ({"binary": pb.BinaryKind()}, "Verdict: no", "passed", False),
    ],
)
async def test_each_kind_of_verdict_comes_in_its_own_field(
    stub: Any, endpoint: Any, kind: dict[str, Any], text: str, field: str, value: Any
) -> None:
    endpoint.script = [f"<think>hm</think>It rhymes.\n{text}"]
    reply = await stub.Judge(pb.JudgeRequest(messages=[POEM], **kind))
    assert (reply.WhichOneof("verdict"), getattr(reply, field)) == (field, value)
    assert reply.reasoning == "hm\n\nIt rhymes."
    assert (reply.usage.input_token_count, reply.usage.output_token_count) == (7, 3)
    assert (reply.model, reply.try_count, reply.contradicted) == ("judge-model", 1, False)
    assert reply.text.endswith(text)


async def test_contradiction_is_told(stub: Any, endpoint: Any) -> None:
    endpoint.script = ['Answer A is far superior.\n{"winner": "B"}']
    reply = await stub.Judge(pb.JudgeRequest(messages=[POEM], pairwise=pb.PairwiseKind()))
    assert (reply.winner, reply.contradicted) == (pb.PAIRWISE_WINNER_B, True)


async def test_sampling_and_model_reach_the_endpoint_and_an_unset_seed_does_not(
    stub: Any, endpoint: Any
) -> None:
    sampling = pb.JudgeSampling(temperature=0.5, max_tokens=9, seed=0)
    await stub.Judge(request(sampling=sampling, model="other"))
    await stub.Judge(request())
    first, second = endpoint.requests
    assert (first["temperature"], first["max_tokens"], first["seed"], first["model"]) == (
        0.5,
        9,
        0,
        "other",
    )
    assert "seed" not in second


async def test_what_kept_the_judge_from_a_verdict_has_a_reason_of_its_own(
    stub: Any, endpoint: Any
) -> None:
    endpoint.script = ["Hard to say.", "I cannot judge this.", (503, {}, {"Retry-After": "90"})]
    with pytest.raises(Aborted) as unparsable:
        await stub.Judge(request())
    with pytest.raises(PermissionDenied) as refused:
        await stub.Judge(request())
    with pytest.raises(Unavailable) as unavailable:
        await stub.Judge(request())
    assert [e.value.reason for e in (unparsable, refused, unavailable)] == [
        "JUDGE_UNPARSABLE",
        "JUDGE_REFUSED",
        "JUDGE_UNAVAILABLE",
    ]
    assert unavailable.value.retry_after_seconds == 90
    assert (unparsable.value.retryable, refused.value.retryable) == (True, False)


async def test_deadline_of_the_call_is_the_judges(stub: Any, endpoint: Any) -> None:
    endpoint.script = [endpoint.hang]
    seconds = 0.5
    while not endpoint.hanging.is_set():  # where this machine is slow, the deadline may come first
        with pytest.raises(DeadlineExceeded) as caught:
            await stub.Judge(request(), timeout=seconds)
        # The client's own clock may be the first to notice.
        assert caught.value.reason in ("JUDGE_TIMEOUT", "DEADLINE_EXCEEDED")
        seconds *= 2
    async with asyncio.timeout(5):
        await endpoint.cancelled.wait()


async def test_call_without_a_deadline_has_the_services(
    endpoint: Any, make_critic: Callable[..., Critic]
) -> None:
    endpoint.script = [endpoint.hang]
    servicer = CriticServicer(make_critic(), default_timeout_seconds=0.2)
    add = critic_pb2_grpc.add_CriticServiceServicer_to_server
    async with (
        running_server(lambda server: add(servicer, server)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await critic_pb2_grpc.CriticServiceStub(channel).Judge(request())
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "after 0.2 s" in str(caught.value.details())


async def test_caller_who_goes_away_takes_the_question_along(stub: Any, endpoint: Any) -> None:
    endpoint.script = [endpoint.hang]
    call = asyncio.ensure_future(stub.Judge(request()))
    async with asyncio.timeout(5):
        await endpoint.hanging.wait()
        call.cancel()
        await endpoint.cancelled.wait()


async def test_critic_without_an_endpoint_names_the_setting(
    make_critic: Callable[..., Critic],
) -> None:
    async with served(make_critic(judge=NoJudge())) as stub:
        with pytest.raises(FailedPrecondition, match="HONE_CRITIC_ENDPOINT_URL") as caught:
            await stub.Judge(request())
    assert caught.value.reason == "JUDGE_UNCONFIGURED"


IMAGE = message_pb2.ContentPart(image=message_pb2.ImagePart(uri="http://x/y.png"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [message_pb2.ChatMessage(parts=POEM.parts)]}, "messages[0].role"),
        (
            {"messages": [POEM, message_pb2.ChatMessage(role=4, parts=POEM.parts)]},
            "messages[1]",
        ),
        ({"messages": [message_pb2.ChatMessage(role=2, parts=[IMAGE])]}, "messages[0].parts"),
        ({"score": None}, "kind"),
        ({"score": pb.ScoreKind(low=1, high=1)}, "score.high"),
        ({"score": pb.ScoreKind(low=0, high=float("nan"))}, "score.high"),
        ({"score": None, "label": pb.LabelKind(labels=["one"])}, "label.labels"),
        ({"score": None, "label": pb.LabelKind(labels=["a", ""])}, "label.labels"),
        ({"score": None, "label": pb.LabelKind(labels=["Good", "good"])}, "label.labels"),
        ({"score": None, "label": pb.LabelKind(labels=["so so", "so-so"])}, "label.labels"),
        ({"score": None, "label": pb.LabelKind(labels=["not_ok", "no", "Not OK"])}, "label.labels"),
        ({"sampling": pb.JudgeSampling(temperature=-1)}, "sampling.temperature"),
        ({"sampling": pb.JudgeSampling(temperature=float("inf"))}, "sampling.temperature"),
        ({"sampling": pb.JudgeSampling(max_tokens=-1)}, "sampling.max_tokens"),
        ({"sampling": pb.JudgeSampling(seed=2**63)}, "sampling.seed"),
        ({"answer_form": 9}, "answer_form"),
    ],
)
async def test_malformed_question_is_refused_by_its_field_and_not_asked(
    stub: Any, endpoint: Any, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await stub.Judge(request(**changes))
    assert list(caught.value.violations) == [field]
    assert endpoint.requests == []


async def test_labels_that_are_numbers_with_a_sign_are_told_apart(stub: Any, endpoint: Any) -> None:
    endpoint.script = ["Label: -1"]
    kind = pb.LabelKind(labels=["1", "0", "-1"])
    assert (await stub.Judge(request(score=None, label=kind))).label == "-1"


def traced() -> tuple[InMemorySpanExporter, Tracer]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider.get_tracer("test")


async def test_question_of_a_trace_has_spans_for_itself_and_for_each_try(
    endpoint: Any, make_critic: Callable[..., Critic]
) -> None:
    exporter, tracer = traced()
    endpoint.script = [(500, {}), "Score: 7", "Hard to say."]
    async with served(make_critic(tracer=tracer)) as stub:
        with tracer.start_as_current_span("grade"):
            await stub.Judge(request())
            with pytest.raises(Aborted):
                await stub.Judge(request())
    spans = exporter.get_finished_spans()
    judged = [span for span in spans if span.name == "judge"]
    chats = [span for span in spans if span.name == "chat judge-model"]
    assert [span.attributes["hone.error.kind"] for span in chats if span.status.description] == [
        "JUDGE_UNAVAILABLE"
    ]
    assert [span.parent.span_id for span in chats] == [
        judged[0].context.span_id,
        judged[0].context.span_id,
        judged[1].context.span_id,
    ]
    assert chats[1].attributes["gen_ai.usage.output_tokens"] == 3
    assert chats[1].attributes["gen_ai.operation.name"] == "chat"
    assert judged[0].attributes["gen_ai.evaluation.score.value"] == 7.0
    assert judged[1].attributes["hone.error.kind"] == "JUDGE_UNPARSABLE"


async def test_questions_are_counted_by_how_they_ended(
    endpoint: Any, make_critic: Callable[..., Critic]
) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    endpoint.script = ["Score: 7", "Score: 0", "Hard to say.", "I cannot judge this."]
    async with served(make_critic(meter=meter)) as stub:
        for _ in range(2):
            await stub.Judge(request())
        with pytest.raises(Aborted):
            await stub.Judge(request())
        with pytest.raises(PermissionDenied):
            await stub.Judge(request())
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = [
        metric
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "hone.critic.judgements"
    ]
    assert {point.attributes["hone.outcome"]: point.value for point in metric.data.data_points} == {
        "verdict": 2,
        "JUDGE_UNPARSABLE": 1,
        "JUDGE_REFUSED": 1,
    }


async def test_question_outside_a_trace_makes_no_span(
    endpoint: Any, make_critic: Callable[..., Critic]
) -> None:
    exporter, tracer = traced()
    async with served(make_critic(tracer=tracer)) as stub:
        await stub.Judge(request())
    assert exporter.get_finished_spans() == ()
