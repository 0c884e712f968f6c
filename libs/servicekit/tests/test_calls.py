"""Errors, deadlines, traces, tokens and retries over a real server and a real channel."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import trace

from servicekit.calls import trimmed_timeout
from servicekit.channels import connect, resolve
from servicekit.errors import (
    DeadlineExceeded,
    HoneError,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from servicekit.telemetry import tracer_provider
from servicekit.testing import running_server
from servicekit.tokens import (
    TokenMinter,
    TokenVerifier,
    current_token,
    generate_key_file,
)

Request, Response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse


class Probe(health_pb2_grpc.HealthServicer):
    """Answers Check and Watch with what the test put in; the health contract is only a handy shape."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0
        self.seen: list[Any] = []

    async def Check(self, request: Any, context: Any) -> Any:
        self.calls += 1
        span = trace.get_current_span().get_span_context()
        self.seen.append((span.trace_id, current_token(), trimmed_timeout(None)))
        if request.service == "slow":
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return Response(status=Response.SERVING)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield Response(status=Response.SERVING)
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def probed(
    probe: Probe, verifier: TokenVerifier | None = None, **options: Any
) -> AsyncIterator[Any]:
    def add(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(probe, server)

    async with (
        running_server(add, verifier=verifier) as address,
        connect(address, **options) as channel,
    ):
        yield health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("bad field", violations={"spec.seed": "found -1; 0 or more is right"}),
        ResourceExhausted("full", retry_after_seconds=1.5),
        Unavailable("gone", reason="SANDBOX_LOST", attributable="workload"),
        HoneError("unknown"),
        Internal("defect"),
    ],
)
async def test_typed_error_arrives_unchanged(error: HoneError) -> None:
    async with probed(Probe(error)) as stub:
        with pytest.raises(HoneError) as caught:
            await stub.Check(Request())
        with pytest.raises(HoneError) as streamed:
            async for _ in stub.Watch(Request()):
                pass
    for got in (caught.value, streamed.value):
        if type(error) is not HoneError:
            assert type(got) is type(error)
        for name in ("message", "reason", "retryable", "attributable", "violations"):
            assert getattr(got, name) == getattr(error, name)
        assert got.retry_after_seconds == error.retry_after_seconds


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600", "\n"])
@pytest.mark.parametrize(("fields", "length"), [(0, 100_000), (1, 20_000), (1000, 10), (50, 5000)])
async def test_error_too_long_for_the_headers_arrives_as_itself_and_shorter(
    letter: str, fields: int, length: int
) -> None:
    violations = {f"lora.{i}.{letter * length}": letter * length for i in range(fields)}
    error = InvalidArgument("data: " + letter * length, reason="BAD", violations=violations)
    async with probed(Probe(error)) as stub:
        with pytest.raises(InvalidArgument, match=r"^data: ") as caught:
            await stub.Check(Request())
    assert caught.value.reason == "BAD" and not caught.value.retryable
    assert all(field.startswith("lora.") for field in caught.value.violations)
    assert bool(caught.value.violations) == bool(fields)


async def test_untyped_error_is_internal_and_names_its_type() -> None:
    async with probed(Probe(KeyError("x"))) as stub:
        with pytest.raises(Internal, match="KeyError"):
            await stub.Check(Request())


async def test_deadline_is_typed_and_reaches_the_server_trimmed() -> None:
    probe, seconds = Probe(), 0.15
    async with probed(probe) as stub:
        while not probe.seen:  # where this machine is slow, the deadline may come first
            seconds *= 2
            with pytest.raises(DeadlineExceeded):
                await stub.Check(Request(service="slow"), timeout=seconds)
    assert 0.0 < probe.seen[0][2] < seconds


async def test_dead_server_is_unavailable_at_once_when_not_idempotent() -> None:
    async with connect("127.0.0.1:1") as channel:
        with pytest.raises(Unavailable) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(Request())
    assert caught.value.retryable


async def test_only_transport_failures_of_idempotent_methods_are_repeated() -> None:
    lost = Probe(Unavailable("gone", reason="SANDBOX_LOST"))
    async with probed(lost, idempotent_methods=["Check"]) as stub:
        with pytest.raises(Unavailable):
            await stub.Check(Request())
    assert lost.calls == 1
    flaky = Probe(Unavailable("try again"))
    async with probed(flaky, idempotent_methods=["Check"], rng=random.Random(1)) as stub:
        with pytest.raises(Unavailable):
            await stub.Check(Request(), timeout=1.0)
    assert flaky.calls > 1


async def test_trace_continues_over_the_call_and_ends_with_it() -> None:
    trace.set_tracer_provider(
        tracer_provider("test", ratio=1.0, exporter=None, rng=random.Random(2))
    )
    probe = Probe()
    async with probed(probe) as stub:
        with trace.get_tracer("t").start_as_current_span("outer") as outer:
            await stub.Check(Request())
        await stub.Check(Request())
    assert probe.seen[0][0] == outer.get_span_context().trace_id
    assert probe.seen[1][0] == 0


async def test_token_is_verified_at_the_door(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    generate_key_file(key)
    now = [0.0]
    minter, verifier = TokenMinter(key, lambda: now[0]), TokenVerifier(key, lambda: now[0])
    token = minter.mint("r1", 2, "agent", 10)
    probe = Probe()
    async with probed(probe, verifier, token=lambda: token) as stub:
        await stub.Check(Request())
        assert probe.seen[0][1].rollout_id == "r1"
        now[0] = 100.0
        with pytest.raises(PermissionDenied, match="expired"):
            await stub.Check(Request())
    assert probe.calls == 1


def test_resolve_takes_environment_then_file_then_name(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    file.write_text('{"tool_gateway": "127.0.0.1:7"}')
    environ = {"HONE_TOOL_GATEWAY_ADDRESS": "10.0.0.1:1"}
    assert resolve("tool_gateway", endpoints_file=file, environ=environ) == "10.0.0.1:1"
    assert resolve("tool_gateway", endpoints_file=file, environ={}) == "127.0.0.1:7"
    assert resolve("tool_gateway", environ={}) == "tool-gateway:50051"
    with pytest.raises(Unavailable, match="names no grader"):
        resolve("grader", endpoints_file=file, environ={})
