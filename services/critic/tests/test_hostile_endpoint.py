"""An endpoint that sends too much, sends it elsewhere, sends nonsense, or sends back the key."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from critic.clients.chat_api import Endpoint
from critic.clients.http import MAX_BYTES
from critic.convert import judgement_to_proto
from critic.judging import Critic
from critic.questions import Question, ScoreKind
from servicekit.errors import HoneError
from servicekit.status import status_from_error
from trajectory.types import ChatMessage, Role

pytestmark = pytest.mark.slow

MakeCritic = Callable[..., Critic]
QUESTION = Question(
    messages=(ChatMessage(role=Role.USER, content=("How good?",)),), kind=ScoreKind()
)
HALF = "\ud800"


async def failure(critic: Critic) -> HoneError:
    with pytest.raises(HoneError) as caught:
        await critic.judge(QUESTION, seconds=20)
    return caught.value


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_answer_without_end_is_read_to_the_limit_and_no_further(
    endpoint: Any, make_critic: MakeCritic, status: int
) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" " * 1_000_000)
            sent += 1_000_000

    endpoint.script = [flood]
    error = await failure(make_critic(max_tries=1))
    assert (error.reason, f"longer than {MAX_BYTES} bytes" in error.message) == (
        "JUDGE_UNAVAILABLE",
        True,
    )
    assert sent < MAX_BYTES + 16_000_000


@pytest.mark.parametrize("status", [200, 400])
async def test_compressed_answer_is_not_unpacked(
    endpoint: Any, make_critic: MakeCritic, complete: Any, status: int
) -> None:
    body = gzip.compress(json.dumps(complete("Score: 1")).encode())

    async def packed(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={"Content-Encoding": "gzip"})

    endpoint.script = [packed]
    error = await failure(make_critic(max_tries=1))
    assert (error.reason, "compressed (gzip)" in error.message) == ("JUDGE_UNAVAILABLE", True)
    assert endpoint.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirection_is_an_operators_matter_and_not_followed(
    endpoint: Any, make_critic: MakeCritic, status: int
) -> None:
    endpoint.script = [(status, {}, {"Location": f"{endpoint.url}/chat/completions"}), "Score: 1"]
    error = await failure(make_critic())
    assert (error.reason, "HONE_CRITIC_ENDPOINT_URL" in error.message) == (
        "JUDGE_MISCONFIGURED",
        True,
    )
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"choice": {"finish_reason": []}},
        {"choice": {"finish_reason": {"type": "length"}}},
        {"model": HALF},
        {"model": ["m"]},
        {"message": {"content": f"{HALF}\nScore: 1"}},
        {"message": {"reasoning_content": HALF}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 10**400}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": float("inf")}},
        {"usage": [1]},
    ],
    ids=str,
)
async def test_field_of_a_wrong_type_beside_the_verdict_does_no_harm(
    endpoint: Any, make_critic: MakeCritic, complete: Any, changes: dict[str, Any]
) -> None:
    endpoint.script = [complete("Score: 1", **changes)]
    found = await make_critic().judge(QUESTION, seconds=5)
    assert judgement_to_proto(found).score == 1.0


@pytest.mark.parametrize(
    "entry",
    [
        (400, {"error": {"message": HALF}}),
        (400, {"error": {"message": [HALF], "code": [1]}}),
        (429, {}, {"Retry-After": "1e300"}),
        (429, {}, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}),
        {"error": {"message": HALF}},
        {"choices": [{"message": {"refusal": HALF}}]},
        {"choices": [{"message": {"content": HALF}}]},
        {"choices": [{"message": {"content": None, "tool_calls": [{"function": {}}]}}]},
    ],
    ids=str,
)
async def test_error_can_be_sent_to_the_caller_whatever_the_endpoint_said(
    endpoint: Any, make_critic: MakeCritic, entry: Any
) -> None:
    endpoint.script = [entry]
    error = await failure(make_critic(max_tries=1))
    assert error.reason.startswith("JUDGE_")
    assert status_from_error(error).message == error.message
    assert (error.retry_after_seconds or 0.0) <= 86_400


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("padding", [0, 295])
async def test_key_that_the_endpoint_sends_back_is_told_neither_to_callers_nor_to_traces(
    endpoint: Any, make_critic: MakeCritic, tmp_path: Path, status: int, padding: int
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-very-secret", encoding="utf-8")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    async def echo(request: web.Request) -> web.StreamResponse:
        said = "x" * padding + request.headers["Authorization"]
        return web.json_response({"error": {"message": said}}, status=status)

    endpoint.script = [echo]
    with tracer.start_as_current_span("call"):
        error = await failure(make_critic(api_key_file=file, max_tries=1, tracer=tracer))
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert endpoint.keys == ["Bearer sk-very-secret"]
    assert "sk-very" not in error.message
    assert "chat judge-model" in spans and "sk-very" not in spans


@pytest.mark.parametrize("key", ["sk-a\nsk-b", "sk a", "sk-\u00e9", "\ufeffsk-a", "sk-\x00a"])
async def test_key_file_with_more_than_a_key_is_named_and_not_quoted(
    endpoint: Any, make_critic: MakeCritic, tmp_path: Path, key: str
) -> None:
    file = tmp_path / "key"
    file.write_text(key, encoding="utf-8")
    error = await failure(make_critic(api_key_file=file))
    assert error.reason == "JUDGE_MISCONFIGURED"
    assert "HONE_CRITIC_API_KEY_FILE" in error.message and "sk" not in error.message.replace(
        str(file), ""
    )
    assert endpoint.requests == []


async def test_organisation_of_the_environment_is_not_sent(
    endpoint: Any, make_critic: MakeCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-another")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-another")
    await make_critic().judge(QUESTION, seconds=20)
    assert "of-another" not in str(dict(endpoint.headers[0]))


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://judge/v1",
        "http://",
        "judge",
        "http://judge:99999/v1",
        "http://judge:port/v1",
        "http://[::1/v1",
        "http://two words/v1",
        "http://\u2603/v1",
    ],
)
def test_endpoint_that_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match=r"HONE_CRITIC_ENDPOINT_URL.*http://127.0.0.1:8000/v1"):
        Endpoint(url=url)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@judge/v1",
        "htp://me:secret@judge",
        "me:secret@judge/v1",
        "http://judge/v1?api_key=secret",
        "http://judge/v1#secret",
    ],
)
def test_endpoint_url_with_a_secret_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="HONE_CRITIC_API_KEY_FILE") as caught:
        Endpoint(url=url)
    assert "secret" not in str(caught.value)
