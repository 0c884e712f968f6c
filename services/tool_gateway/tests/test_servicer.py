"""The RPCs over real in-process servers: tokens forwarded, facts told, faults typed."""

# The async stub types exist for type checkers only.
from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from hone.common.v1 import message_pb2
from hone.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc
from opentelemetry import trace

from eventbus.memory_bus import MemoryBus
from servicekit.attributes import TOKEN_METADATA_KEY
from servicekit.channels import connect
from servicekit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from servicekit.identity import new_rollout_id
from servicekit.testing import running_server
from servicekit.tokens import TokenMinter, TokenVerifier, current_token, generate_key_file
from tool_gateway.announcer import Announcer
from tool_gateway.clients import GrpcSandbox
from tool_gateway.gateway import CallFact, Gateway
from tool_gateway.ledger import CallLedger
from tool_gateway.servicer import ToolGatewayServicer
from tool_gateway.tools.table import TOOLS, make_tools

ROLLOUT_ID = new_rollout_id(lambda: 1.0, random.Random(1))


class ScriptedSandbox(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers Exec with the command's text, and notes whose token came."""

    def __init__(self) -> None:
        self.tokens: list[tuple[str, int]] = []
        self.specs: list[sandbox_pb2.ExecSpec] = []
        self.error: Exception | None = None

    async def Exec(
        self, request: sandbox_pb2.ExecRequest, context: Any
    ) -> sandbox_pb2.ExecResponse:
        token = current_token()
        assert token is not None
        self.tokens.append((token.rollout_id, token.epoch))
        self.specs.append(request.exec)
        if self.error is not None:
            raise self.error
        result = sandbox_pb2.ExecResult(
            termination=sandbox_pb2.TERMINATION_EXITED, stdout=request.exec.argv[-1].encode()
        )
        return sandbox_pb2.ExecResponse(result=result)


@dataclass
class World:
    stub: tool_gateway_pb2_grpc.ToolGatewayServiceAsyncStub
    sandbox: ScriptedSandbox
    bus: MemoryBus
    announcer: Announcer
    minter: TokenMinter

    async def call(
        self,
        *calls: tuple[str, dict[str, object]],
        role: Any = "agent",
        epoch: int = 3,
        **changes: Any,
    ) -> tool_gateway_pb2.CallToolsResponse:
        token = self.minter.mint(changes.pop("token_for", ROLLOUT_ID), epoch, role, 60)
        request = tool_gateway_pb2.CallToolsRequest(
            rollout_id=ROLLOUT_ID,
            run_id="run_1",
            sandbox_id="sbx_1",
            allowed_tools=list(TOOLS),
            calls=[
                message_pb2.ToolCall(
                    tool_call_id=f"c{i}", name=name, arguments_json=json.dumps(arguments)
                )
                for i, (name, arguments) in enumerate(calls)
            ],
        )
        for field, value in changes.items():
            setattr(request, field, value)
        return await self.stub.CallTools(request, metadata=((TOKEN_METADATA_KEY, token),))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    key_file = tmp_path / "keys.pem"
    generate_key_file(key_file)
    verifier = TokenVerifier(key_file, time.time)
    scripted, bus = ScriptedSandbox(), MemoryBus()
    add_sandbox = sandbox_pb2_grpc.add_SandboxServiceServicer_to_server
    add_gateway = tool_gateway_pb2_grpc.add_ToolGatewayServiceServicer_to_server

    def add(server: grpc.aio.Server) -> None:
        add_sandbox(scripted, server)

    async with running_server(add, verifier=verifier) as sandbox_address:
        sandbox = GrpcSandbox(lambda: connect(sandbox_address))
        announcer = Announcer(bus, lambda: 1.0, max_waiting=2)
        gateway = Gateway(
            make_tools(sandbox),
            CallLedger(max_rollouts=9, max_calls=9),
            announcer.announce,
            trace.get_tracer("test"),
            max_tool_seconds=30,
        )
        servicer = ToolGatewayServicer(gateway)
        async with (
            running_server(lambda s: add_gateway(servicer, s), verifier=verifier) as address,
            connect(address) as channel,
        ):
            stub = tool_gateway_pb2_grpc.ToolGatewayServiceStub(channel)
            yield World(stub, scripted, bus, announcer, TokenMinter(key_file, time.time))
        await sandbox.close()


async def test_list_tools_pages_through_all(world: World) -> None:
    names: list[str] = []
    token = ""
    while True:
        page = await world.stub.ListTools(
            tool_gateway_pb2.ListToolsRequest(page_size=2, page_token=token)
        )
        names += [tool.name for tool in page.tools]
        assert all(json.loads(tool.parameters_json)["type"] == "object" for tool in page.tools)
        token = page.next_page_token
        if not token:
            break
    assert names == sorted(TOOLS)


async def test_calls_reach_calculator_and_sandbox_with_the_callers_token(world: World) -> None:
    response = await world.call(
        ("calculator", {"expression": "6*7"}), ("python", {"code": "print(1)"})
    )
    assert [r.content for r in response.results] == ["42", "print(1)"]
    assert world.sandbox.tokens == [(ROLLOUT_ID, 3)]
    (spec,) = world.sandbox.specs
    assert (spec.exec_id, spec.sandbox_id, spec.rollout_id) == ("c1", "sbx_1", ROLLOUT_ID)
    assert 29 < spec.timeout.ToTimedelta().total_seconds() <= 30


async def test_repeated_request_runs_nothing(world: World) -> None:
    first = await world.call(("shell", {"command": "x"}))
    again = await world.call(("shell", {"command": "x"}))
    assert first.results[0].content == again.results[0].content
    assert len(world.sandbox.specs) == 1


@pytest.mark.parametrize(
    "error", [Unavailable("gone", reason="SANDBOX_LOST"), NotFound("no such sandbox")]
)
async def test_lost_sandbox_is_unavailable(world: World, error: Exception) -> None:
    world.sandbox.error = error
    with pytest.raises(Unavailable) as caught:
        await world.call(("shell", {"command": "x"}))
    assert caught.value.reason == "SANDBOX_LOST"


async def test_token_is_needed_and_must_fit(world: World) -> None:
    with pytest.raises(Unauthenticated):
        await world.stub.CallTools(tool_gateway_pb2.CallToolsRequest(rollout_id=ROLLOUT_ID))
    with pytest.raises(PermissionDenied):
        await world.call(token_for="another")
    with pytest.raises(PermissionDenied):
        await world.call(role="grader")
    await world.call(epoch=4)
    with pytest.raises(FailedPrecondition) as caught:
        await world.call(epoch=3)
    assert caught.value.reason == "EPOCH_OLD"


async def test_request_without_run_names_the_field(world: World) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.call(run_id="")
    assert caught.value.violations == {"run_id": "is required"}


async def test_each_call_is_told_once(world: World) -> None:
    for _ in range(2):
        await world.call(("calculator", {"expression": "6*7"}), ("nothing", {}))
    running = asyncio.create_task(world.announcer.run())
    await world.announcer.drain()
    await running
    told = [event.envelope async for event in world.bus.read(["tool_called"])]
    assert sorted((e.tool_called.tool_name, e.tool_called.error_kind) for e in told) == [
        ("calculator", ""),
        ("nothing", "unknown_tool"),
    ]
    assert {(e.rollout_id, e.run_id, e.epoch, e.source) for e in told} == {
        (ROLLOUT_ID, "run_1", 3, "tool_gateway")
    }


async def test_calls_go_on_when_the_event_log_takes_nothing(world: World) -> None:
    calls = [("calculator", {"expression": str(n)}) for n in range(5)]
    response = await world.call(*calls)
    assert [r.content for r in response.results] == ["0", "1", "2", "3", "4"]
    assert world.announcer.dropped_count == 3


async def test_a_run_id_that_no_subject_can_hold_is_refused(world: World) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.call(run_id="run.*.>")
    assert list(caught.value.violations) == ["run_id"]


async def test_one_event_that_cannot_be_made_does_not_end_the_announcer(world: World) -> None:
    running = asyncio.create_task(world.announcer.run())
    for run_id in ("run.*.>", "run_1"):
        world.announcer.announce(
            CallFact(
                rollout_id=ROLLOUT_ID,
                run_id=run_id,
                epoch=1,
                tool_call_id="c1",
                tool_name="calculator",
                error_kind="",
                duration_seconds=0.1,
            )
        )
    await world.announcer.drain()
    await running
    assert world.announcer.dropped_count == 1
