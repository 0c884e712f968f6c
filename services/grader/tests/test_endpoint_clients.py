"""Endpoints over real loopback servers: what is sent, what is read, what is tried again and what is refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hone.grader.v1 import endpoint_pb2, endpoint_pb2_grpc
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.backoff import Backoff
from grader.clients.addresses import Addresses, check_allow
from grader.clients.endpoints import EndpointClient, encode
from grader.clients.grpc_endpoints import GrpcTransport
from grader.clients.http_endpoints import HttpTransport
from grader.clients.replies import MAX_REPLY_BYTES
from grader.clients.signing import Secrets, signed_headers
from grader.instruments.endpoints import Call
from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind

KEY = bytes(range(24))
NOW = 1_800_000_000.0
PAYLOAD = {"sample": {"output_text": "72"}, "item": {"answer": "72"}}


class Endpoint:
    """Answers with what it is told, one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Any] = [{"score": 1}]
        self.asked: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, web.Response):
            # A response can be sent once only.
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return web.json_response({"score": 0})
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/{path:.*}", endpoint.handle)
    app.router.add_get("/{path:.*}", endpoint.handle)
    async with TestServer(app) as server:
        endpoint.url = str(server.make_url("/score"))
        yield endpoint


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    (tmp_path / "team").write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")
    (tmp_path / "short").write_text("whsec_YWJj\n")
    return Secrets(folder=tmp_path)


MakeClient = Callable[..., EndpointClient]


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


@pytest.fixture
async def make_client(secrets: Secrets, tracer: trace.Tracer) -> AsyncIterator[MakeClient]:
    made = []

    def make(
        *allow: str, lookup: Callable[[str, int], Awaitable[list[str]]] | None = None
    ) -> EndpointClient:
        addresses = Addresses(allow or ("loopback",), lookup)
        http, rpc = HttpTransport(addresses), GrpcTransport(addresses)
        client = EndpointClient(
            {"http": http, "https": http, "grpc": rpc, "grpcs": rpc},
            secrets,
            clock=lambda: NOW,
            rng=random.Random(0),
            tracer=tracer,
            backoff=Backoff(first_seconds=0.001, longest_seconds=0.002),
        )
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()


async def _fault(client: EndpointClient, call: Call) -> GradingFaultError:
    with pytest.raises(GradingFaultError) as raised:
        async with asyncio.timeout(10):
            await client.call(call)
    return raised.value


def _what(fault: GradingFaultError) -> tuple[GraderErrorKind, bool, bool]:
    return fault.kind, fault.retryable, fault.client


AWAY = (GraderErrorKind.SERVER, True, False)
REFUSED = (GraderErrorKind.SERVER, False, True)
UNREADABLE = (GraderErrorKind.PARSE, False, True)
WRONG = (GraderErrorKind.DEFINITION, False, True)


async def test_a_score_comes_with_its_parts_and_reasons(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    endpoint.answers = [{"score": 0.5, "explanation": "fair", "parts": {"style": 1}, "more": 2}]
    reply = await make_client().call(
        Call(url=endpoint.url, payload=PAYLOAD, headers={"X-Team": "a"})
    )
    assert (reply.value, reply.explanation, reply.parts) == (0.5, "fair", {"style": 1.0})
    ((headers, body),) = endpoint.asked
    assert json.loads(body) == PAYLOAD
    assert headers["X-Team"] == "a"
    assert headers["Content-Type"] == "application/json"
    assert not any(name.lower().startswith("webhook-") for name in headers)


async def test_a_call_is_a_span_of_the_rollouts_trace_and_the_endpoint_may_join_it(
    endpoint: Endpoint, make_client: MakeClient, spans: InMemorySpanExporter, tracer: trace.Tracer
) -> None:
    client = make_client()
    await client.call(Call(url=endpoint.url, payload=PAYLOAD))
    assert spans.get_finished_spans() == ()
    assert "traceparent" not in endpoint.asked[0][0]
    with tracer.start_as_current_span("grade") as parent:
        await client.call(Call(url=endpoint.url, payload=PAYLOAD))
    (span, _) = spans.get_finished_spans()
    assert span.name == "ask endpoint"
    assert span.parent is not None and span.parent.span_id == parent.get_span_context().span_id
    assert f"-{span.context.span_id:016x}-" in endpoint.asked[1][0]["traceparent"]


async def test_sub_rewards_are_parts(endpoint: Endpoint, make_client: MakeClient) -> None:
    endpoint.answers = [{"score": 0, "sub_rewards": {"f1": 0.25}}]
    reply = await make_client().call(Call(url=endpoint.url, payload=PAYLOAD))
    assert reply.parts == {"f1": 0.25}


async def test_no_opinion_is_told_from_zero(endpoint: Endpoint, make_client: MakeClient) -> None:
    endpoint.answers = [{"score": None}, {"score": 0}]
    client = make_client()
    assert (await client.call(Call(url=endpoint.url, payload=PAYLOAD))).value is None
    assert (await client.call(Call(url=endpoint.url, payload=PAYLOAD))).value == 0.0


def test_signatures_are_those_of_standard_webhooks() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers(
        key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    # From the reference library standardwebhooks 1.1.0.
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_question_is_signed_over_what_is_sent(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    await make_client().call(Call(url=endpoint.url, payload=PAYLOAD, secret_name="team"))
    ((headers, body),) = endpoint.asked
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    assert headers["webhook-timestamp"] == str(int(NOW))


@pytest.mark.parametrize(
    ("name", "said"), [("teem", "did you mean 'team'"), ("short", "whsec_ and the base64")]
)
async def test_a_key_that_is_not_there_is_the_definitions_fault(
    endpoint: Endpoint, make_client: MakeClient, name: str, said: str
) -> None:
    call = Call(url=endpoint.url, payload=PAYLOAD, secret_name=name)
    fault = await _fault(make_client(), call)
    assert _what(fault) == WRONG
    assert said in fault.detail
    assert endpoint.asked == []


LONG_PAGE = b"down for maintenance" + b"." * MAX_REPLY_BYTES


@pytest.mark.parametrize(("status", "what"), [(503, AWAY), (404, REFUSED)])
async def test_a_refusal_with_a_long_page_is_told_by_its_status(
    endpoint: Endpoint, make_client: MakeClient, status: int, what: tuple[object, bool, bool]
) -> None:
    endpoint.answers = [web.Response(status=status, body=LONG_PAGE)]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD))
    assert _what(fault) == what
    assert f"{status}: down for maintenance" in fault.detail


@pytest.mark.parametrize(
    "when",
    ["Mon, 01 Jan 2024 00:00:00 +9999999999999999999", "Mon, 01 Jan 99999 00:00:00 GMT", "soon"],
)
async def test_a_retry_time_that_is_none_is_left_alone(
    endpoint: Endpoint, make_client: MakeClient, when: str
) -> None:
    endpoint.answers = [web.Response(status=429, headers={"Retry-After": when})]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD, max_tries=2))
    assert _what(fault) == AWAY
    assert len(endpoint.asked) == 2


async def test_a_question_carries_nothing_of_an_earlier_answer(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    cookie = {"Set-Cookie": "seen=1; Domain=example.com"}
    endpoint.answers = [web.json_response({"score": 1}, headers=cookie), {"score": 1}]

    async def local(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = make_client("loopback", lookup=local)
    for host in ("a.example.com", "b.example.com"):
        url = endpoint.url.replace("127.0.0.1", host)
        await client.call(Call(url=url, payload=PAYLOAD))
    assert [headers.get("Cookie") for headers, _ in endpoint.asked] == [None, None]


@pytest.mark.parametrize("again", [500, 503, 408, 429])
async def test_a_try_that_fails_is_repeated_as_the_same_question(
    endpoint: Endpoint, make_client: MakeClient, again: int
) -> None:
    endpoint.answers = [web.Response(status=again), {"score": 1}]
    call = Call(url=endpoint.url, payload=PAYLOAD, secret_name="team")
    assert (await make_client().call(call)).value == 1.0
    first, second = (headers["webhook-id"] for headers, _ in endpoint.asked)
    assert first == second


async def test_tries_are_bounded(endpoint: Endpoint, make_client: MakeClient) -> None:
    endpoint.answers = [web.Response(status=503, text="full")]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD, max_tries=4))
    assert _what(fault) == AWAY
    assert "503: full" in fault.detail
    assert len(endpoint.asked) == 4


async def test_an_endpoint_that_wants_to_be_left_alone_beyond_the_deadline_is(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    endpoint.answers = [web.Response(status=429, headers={"Retry-After": "120"})]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD))
    assert _what(fault) == AWAY
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refusal_is_not_repeated(
    endpoint: Endpoint, make_client: MakeClient, status: int
) -> None:
    endpoint.answers = [web.Response(status=status, text="no such grader")]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD))
    assert _what(fault) == REFUSED
    assert f"{status}: no such grader" in fault.detail
    assert len(endpoint.asked) == 1


async def test_a_redirect_is_not_followed(endpoint: Endpoint, make_client: MakeClient) -> None:
    endpoint.answers = [web.Response(status=302, headers={"Location": "/elsewhere"}), {"score": 1}]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD))
    assert _what(fault) == REFUSED
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>back soon</html>", "is not JSON"),
        (b"", "is not JSON"),
        (b'{"score": NaN}', "NaN is not a finite number"),
        (b'{"score": 1e999}', "score must be a finite number"),
        (b'{"score": 1' + b"0" * 400 + b"}", "score must be a finite number"),
        (b"[" * 100_000, "is not JSON"),
        ({"scores": [1]}, "has no score"),
        ({"score": "1"}, 'score must be a finite number, found "1"'),
        ({"score": True}, "score must be a finite number, found true"),
        ({"score": [1]}, "score must be a finite number"),
        ([1], "must be a JSON object"),
        ({"score": 1, "explanation": 7}, "explanation must be a text"),
        ({"score": 1, "parts": {"a": None}}, "parts.a must be a finite number"),
        ({"score": 1, "sub_rewards": [1]}, "sub_rewards must be an object"),
        ({"score": 1, "parts": {str(i): 1 for i in range(65)}}, "at most 64"),
        (b'{"score": 1, "x": "' + b"a" * MAX_REPLY_BYTES + b'"}', "longer than"),
    ],
)
async def test_an_answer_that_is_no_grade_is_asked_for_again_and_then_a_parse_error(
    endpoint: Endpoint, make_client: MakeClient, answer: Any, said: str
) -> None:
    endpoint.answers = [answer]
    fault = await _fault(make_client(), Call(url=endpoint.url, payload=PAYLOAD, max_tries=2))
    assert _what(fault) == UNREADABLE
    assert said in fault.detail
    assert len(endpoint.asked) == 2


async def test_an_endpoint_that_hangs_ends_at_the_deadline(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    endpoint.answers = [never := asyncio.Event()]
    call = Call(url=endpoint.url, payload=PAYLOAD, timeout_seconds=0.1)
    fault = await _fault(make_client(), call)
    never.set()
    assert _what(fault) == (GraderErrorKind.TIMEOUT, True, False)
    assert "timeout_seconds 0.1" in fault.detail


async def test_an_endpoint_that_hangs_holds_up_one_grading_only(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    never = asyncio.Event()
    endpoint.answers = [never]
    client = make_client()
    short = Call(url=endpoint.url, payload=PAYLOAD, timeout_seconds=0.05)
    for _ in range(3):
        await _fault(client, short)
    probe = asyncio.create_task(client.call(Call(url=endpoint.url, payload=PAYLOAD)))
    await asyncio.sleep(0)
    fault = await _fault(client, Call(url=endpoint.url, payload=PAYLOAD))
    assert _what(fault) == AWAY
    assert "is being asked by another grading" in fault.detail
    never.set()
    assert (await probe).value == 0.0
    endpoint.answers = [{"score": 1}]
    assert (await client.call(Call(url=endpoint.url, payload=PAYLOAD))).value == 1.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_an_endpoint_that_is_down_is_an_outage(make_client: MakeClient, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{_free_port()}"
    assert _what(await _fault(make_client(), Call(url=url, payload=PAYLOAD))) == AWAY


async def test_an_endpoint_that_is_back_and_refuses_holds_up_nobody(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    never = asyncio.Event()
    endpoint.answers = [never]
    client = make_client()
    for _ in range(3):
        call = Call(url=endpoint.url, payload=PAYLOAD, timeout_seconds=0.05)
        await _fault(client, call)
    never.set()
    endpoint.answers = [web.Response(status=404)]
    faults = [await _fault(client, Call(url=endpoint.url, payload=PAYLOAD))]
    both = (_fault(client, Call(url=endpoint.url, payload=PAYLOAD)) for _ in range(2))
    faults += await asyncio.gather(*both)
    assert [_what(fault) for fault in faults] == [REFUSED] * 3


@pytest.mark.parametrize(
    "url",
    [
        "http://graders..example.com/",
        "grpc://graders..example.com:1",
        f"http://{'g' * 64}.com/",
        "http://2130706433/",
    ],
)
async def test_a_host_that_is_none_is_the_definitions_fault(
    make_client: MakeClient, url: str
) -> None:
    assert _what(await _fault(make_client(), Call(url=url, payload=PAYLOAD))) == WRONG


async def test_a_name_that_is_not_known_now_is_an_outage(make_client: MakeClient) -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError(f"{host} has no address")

    client = make_client("public", lookup=unknown)
    fault = await _fault(client, Call(url="http://graders.example.com", payload=PAYLOAD))
    assert _what(fault) == AWAY


@pytest.mark.parametrize(
    ("allow", "address", "allowed"),
    [
        ("loopback", "127.0.0.1", True),
        ("loopback", "127.8.0.1", True),
        ("loopback", "::1", True),
        ("loopback", "::ffff:127.0.0.1", True),
        ("loopback", "0.0.0.0", False),
        ("loopback", "10.0.0.1", False),
        ("public", "8.8.8.8", True),
        ("public", "10.0.0.1", False),
        ("public", "::ffff:10.0.0.1", False),
        ("public", "169.254.169.254", False),
        ("public", "100.64.0.1", False),
        ("public", "224.0.0.1", False),
        ("public", "127.0.0.1", False),
        ("public", "2606:4700::1111", True),
        ("public", "64:ff9b::8.8.8.8", True),
        ("public", "64:ff9b::169.254.169.254", False),
        ("public", "64:ff9b::10.0.0.1", False),
        ("public", "2002:a00:1::1", False),
        ("public", "::10.0.0.1", False),
        ("public", "fec0::1", False),
        ("public", "::", False),
        ("loopback", "64:ff9b::127.0.0.1", True),
        ("private", "10.0.0.1", True),
        ("private", "192.168.1.1", True),
        ("private", "fd00::1", True),
        ("private", "169.254.169.254", False),
        ("private", "fe80::1%eth0", False),
        ("private", "127.0.0.1", False),
        ("private", "0.0.0.0", False),
        ("10.2.0.0/16", "10.2.3.4", True),
        ("10.2.0.0/16", "10.3.3.4", False),
        ("*", "10.0.0.1", False),
        ("169.254.169.254", "169.254.169.254", True),
    ],
)
async def test_only_listed_addresses_are_called(allow: str, address: str, allowed: bool) -> None:
    addresses = Addresses((allow,))
    if allowed:
        assert await addresses.of(address, 80) == [address]
    else:
        with pytest.raises(GradingFaultError, match="may not be called"):
            await addresses.of(address, 80)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_a_name_that_leads_inside_is_refused(make_client: MakeClient, scheme: str) -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = make_client("public", lookup=inside)
    fault = await _fault(client, Call(url=f"{scheme}://graders.example.com:9", payload=PAYLOAD))
    assert _what(fault) == WRONG
    assert "HONE_GRADER_ENDPOINT_ALLOW" in fault.detail


async def test_a_name_is_not_looked_up_again_after_the_check(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    """A name that changes between check and call would lead past the list."""
    told = [["8.8.8.8"], ["127.0.0.1"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return told.pop(0)

    client = make_client("public", lookup=rebinding)
    url = endpoint.url.replace("127.0.0.1", "graders.example.com")
    assert _what(await _fault(client, Call(url=url, payload=PAYLOAD))) == WRONG
    assert endpoint.asked == []


async def test_a_listed_name_is_called_wherever_it_leads(
    endpoint: Endpoint, make_client: MakeClient
) -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = make_client("*.svc.cluster.local", lookup=inside)
    url = endpoint.url.replace("127.0.0.1", "graders.svc.cluster.local")
    assert (await client.call(Call(url=url, payload=PAYLOAD))).value == 1.0


@pytest.mark.parametrize("wrong", ["", "10.0.0.0/99", "https://x", "a b"])
def test_an_allow_list_names_what_is_no_host(wrong: str) -> None:
    with pytest.raises(ValueError, match="endpoint_allow"):
        check_allow(("loopback", wrong))


def test_numbers_that_json_lacks_are_null_in_the_question() -> None:
    body = encode({"sample": {"output_json": [1.5, float("inf")]}, "item": {"a": "\ud800"}})
    assert json.loads(body) == {"sample": {"output_json": [1.5, None]}, "item": {"a": "\ud800"}}


class GrpcEndpoint(endpoint_pb2_grpc.EndpointGraderServiceServicer):
    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[dict[str, str], endpoint_pb2.GradeSampleRequest]] = []

    async def GradeSample(
        self, request: endpoint_pb2.GradeSampleRequest, context: Any
    ) -> endpoint_pb2.GradeSampleResponse:
        self.asked.append((dict(context.invocation_metadata()), request))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "said so")
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        assert isinstance(answer, endpoint_pb2.GradeSampleResponse)
        return answer


@pytest.fixture
async def grpc_endpoint() -> AsyncIterator[tuple[GrpcEndpoint, str]]:
    servicer = GrpcEndpoint()
    server = grpc.aio.server()
    endpoint_pb2_grpc.add_EndpointGraderServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"grpc://127.0.0.1:{port}"
    await server.stop(None)


SCORED = endpoint_pb2.GradeSampleResponse(score=0.0, explanation="no", parts={"f1": 0.5})


async def test_a_grpc_endpoint_gets_the_same_signed_question(
    grpc_endpoint: tuple[GrpcEndpoint, str], make_client: MakeClient
) -> None:
    servicer, url = grpc_endpoint
    servicer.answers = [SCORED, endpoint_pb2.GradeSampleResponse()]
    call = Call(url=url, payload=PAYLOAD, headers={"X-Team": "a"}, secret_name="team")
    client = make_client()
    reply = await client.call(call)
    assert (reply.value, reply.explanation, reply.parts) == (0.0, "no", {"f1": 0.5})
    assert (await client.call(call)).value is None
    metadata, request = servicer.asked[0]
    assert json.loads(request.payload_json) == PAYLOAD
    assert metadata["x-team"] == "a"
    assert metadata["webhook-id"] == request.request_id
    wanted = signed_headers(KEY, request.request_id, int(NOW), request.payload_json)
    assert metadata["webhook-signature"] == wanted["webhook-signature"]


@pytest.mark.parametrize(
    ("answer", "what", "tries"),
    [
        (grpc.StatusCode.UNAVAILABLE, AWAY, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, AWAY, 2),
        (grpc.StatusCode.INTERNAL, AWAY, 2),
        (grpc.StatusCode.CANCELLED, AWAY, 2),
        (grpc.StatusCode.INVALID_ARGUMENT, REFUSED, 1),
        (grpc.StatusCode.UNIMPLEMENTED, REFUSED, 1),
        (grpc.StatusCode.UNAUTHENTICATED, REFUSED, 1),
        (endpoint_pb2.GradeSampleResponse(score=float("nan")), UNREADABLE, 2),
        (endpoint_pb2.GradeSampleResponse(score=1, parts={"a": float("inf")}), UNREADABLE, 2),
        (
            endpoint_pb2.GradeSampleResponse(score=1, explanation="a" * MAX_REPLY_BYTES),
            UNREADABLE,
            2,
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, (GraderErrorKind.TIMEOUT, True, False), 1),
    ],
)
async def test_what_a_grpc_endpoint_says_is_told_apart(
    grpc_endpoint: tuple[GrpcEndpoint, str],
    make_client: MakeClient,
    answer: Any,
    what: tuple[GraderErrorKind, bool, bool],
    tries: int,
) -> None:
    servicer, url = grpc_endpoint
    servicer.answers = [answer]
    fault = await _fault(make_client(), Call(url=url, payload=PAYLOAD, max_tries=2))
    assert _what(fault) == what
    assert len(servicer.asked) == tries


async def test_a_grpc_answer_that_is_another_message_is_no_grade(make_client: MakeClient) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        # An explanation that is no UTF-8.
        return b"\x12\x02\xff\xfe"

    server = grpc.aio.server()
    handlers = {"GradeSample": grpc.unary_unary_rpc_method_handler(answer)}
    name = "hone.grader.v1.EndpointGraderService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    call = Call(url=f"grpc://127.0.0.1:{port}", payload=PAYLOAD)
    assert _what(await _fault(make_client(), call)) == UNREADABLE
    await server.stop(None)


async def test_a_grpc_endpoint_that_hangs_ends_at_the_deadline(
    grpc_endpoint: tuple[GrpcEndpoint, str], make_client: MakeClient
) -> None:
    servicer, url = grpc_endpoint
    servicer.answers = [never := asyncio.Event()]
    fault = await _fault(make_client(), Call(url=url, payload=PAYLOAD, timeout_seconds=0.2))
    never.set()
    assert _what(fault) == (GraderErrorKind.TIMEOUT, True, False)
