"""Fixtures of the critic's tests: an endpoint that speaks the chat completions API, and a critic that asks it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import openai  # noqa: F401  # else the first question of a test would import it, within its deadline
import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.metrics import Meter

from critic.clients.chat_api import ChatApi, Endpoint
from critic.judge import Judge
from critic.judging import Critic, Defaults
from critic.measures import Measures
from critic.questions import Kind
from critic.turns import Turns
from critic.verdicts.reader import UnreadableError
from critic.verdicts.table import read_verdict
from servicekit.metrics import silent_meter

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(text: str | None, **changes: Any) -> dict[str, Any]:
    """A chat completion; `message` and `choice` in `changes` are merged into those."""
    message = {"role": "assistant", "content": text, **changes.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **changes.pop("choice", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "judge-model",
        "choices": [choice],
        "usage": usage,
        **changes,
    }


class FakeEndpoint:
    """Answers with what is in `script`, one entry per request, then with the last one for ever.

    An entry is a text, a completion as a dict, a pair of status and error body, a response, or a handler.
    """

    def __init__(self) -> None:
        self.url = ""
        self.script: list[Any] = ["Score: 1"]
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.hanging = asyncio.Event()
        """Set when a request hangs."""
        self.cancelled = asyncio.Event()
        """Set when the one that asked has gone."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization", ""))
        self.headers.append(request.headers)
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(entry, str):
            return web.json_response(completion(entry))
        if isinstance(entry, dict):
            return web.json_response(entry)
        if isinstance(entry, tuple):
            status, body, *headers = entry
            return web.json_response(body, status=status, headers=headers[0] if headers else None)
        if callable(entry):
            return await entry(request)
        raise AssertionError(f"no entry: {entry!r}")

    async def hang(self, request: web.Request) -> web.StreamResponse:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("never")

    @staticmethod
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        assert request.transport is not None
        request.transport.close()
        return response

    @staticmethod
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    @staticmethod
    def body(text: str, content_type: str = "application/json") -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(text=text, content_type=content_type)

        return answer

    def said(self, index: int = -1) -> str:
        """The last message of a request."""
        return str(self.requests[index]["messages"][-1]["content"])


class Waits:
    """Stands for sleeping: remembers how long, and goes on at once."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    fake = FakeEndpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield fake
    await runner.cleanup()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def make_api(endpoint: FakeEndpoint, waits: Waits) -> AsyncIterator[Callable[..., ChatApi]]:
    made = []

    def make(tracer: trace.Tracer | None = None, **changes: Any) -> ChatApi:
        api = ChatApi(
            Endpoint(**{"url": endpoint.url, "max_tries": 3, **changes}),
            measures=Measures(silent_meter()),
            tracer=tracer or trace.get_tracer("test"),
            rng=random.Random(0),
            sleep=waits,
        )
        made.append(api)
        return api

    yield make
    for api in made:
        await api.close()


@pytest.fixture
def make_critic(make_api: Callable[..., ChatApi]) -> Callable[..., Critic]:
    def make(
        *,
        max_in_flight: int = 4,
        max_waiting: int = 8,
        model: str = "judge-model",
        judge: Judge | None = None,
        tracer: trace.Tracer | None = None,
        meter: Meter | None = None,
        **changes: Any,
    ) -> Critic:
        return Critic(
            judge or make_api(tracer, **changes),
            Turns(max_in_flight=max_in_flight, max_waiting=max_waiting),
            Defaults(model=model, max_tokens=64),
            measures=Measures(meter or silent_meter()),
            tracer=tracer or trace.get_tracer("test"),
        )

    return make


@pytest.fixture
def complete() -> Callable[..., dict[str, Any]]:
    return completion


@pytest.fixture
def found() -> Callable[[str, Kind], Any]:
    """Reads a verdict; None where there is none."""

    def read(text: str, kind: Kind) -> Any:
        try:
            return read_verdict(text, kind).verdict
        except UnreadableError:
            return None

    return read
