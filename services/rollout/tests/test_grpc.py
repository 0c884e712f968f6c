"""The gRPC edges on a real loopback server: sandbox and tool clients, and the service's own face."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hone.common.v1 import message_pb2, run_spec_pb2
from hone.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from hone.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from rollout.adapters import AdapterFolders
from rollout.build import make_reward_models
from rollout.clients import (
    REPLY_SECONDS,
    TOOLS_TIMEOUT_SECONDS,
    SandboxClient,
    Tokens,
    ToolGatewayClient,
)
from rollout.engines.base import ModelKey, PolicyKey
from rollout.engines.scripted import ScriptedEngine
from rollout.failures import RolloutError, UnknownToolError
from rollout.jobs import AdapterRef, AgentLimits, Environment, RolloutJob
from rollout.policies import Policies
from rollout.servicer import MAX_CONVERSATIONS, RolloutServicer
from rollout.settings import RolloutSettings
from servicekit.channels import connect
from servicekit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from servicekit.testing import running_server
from servicekit.tokens import TokenMinter, TokenVerifier, generate_key_file, require_token
from trajectory.types import FailureKind, Phase, SamplingParams, Slot, Task, ToolCall

ROLLOUT_ID = "0190b5c2-0000-7000-8000-000000000001"


class Sandboxes(sandbox_pb2_grpc.SandboxServiceServicer):
    """Has no room for the first calls."""

    def __init__(self, full: int, hangs: bool = False) -> None:
        self.full = full
        self.hangs = hangs
        self.epochs: list[int] = []
        self.expiries: list[float] = []

    async def CreateSandbox(self, request: Any, context: Any) -> sandbox_pb2.CreateSandboxResponse:
        token = require_token(request.rollout_id, "agent")
        self.epochs.append(token.epoch)
        self.expiries.append(token.expires_at)
        if self.full:
            self.full -= 1
            raise ResourceExhausted("no room", retry_after_seconds=0.01)
        if self.hangs:
            await asyncio.Event().wait()
        assert request.purpose == sandbox_pb2.SANDBOX_PURPOSE_AGENT
        return sandbox_pb2.CreateSandboxResponse(
            sandbox=sandbox_pb2.Sandbox(sandbox_id="sbx_1", isolation="ns-root")
        )


class Gateway(tool_gateway_pb2_grpc.ToolGatewayServiceServicer):
    """Answers calls in reverse order, or raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.lists = 0
        self.expiries: list[float] = []

    async def ListTools(self, request: Any, context: Any) -> tool_gateway_pb2.ListToolsResponse:
        self.lists += 1
        tools = [message_pb2.ToolDefinition(name=n, parameters_json="{}") for n in ("a", "b")]
        if not request.page_token:
            return tool_gateway_pb2.ListToolsResponse(tools=tools[:1], next_page_token="1")
        return tool_gateway_pb2.ListToolsResponse(tools=tools[1:])

    async def CallTools(self, request: Any, context: Any) -> tool_gateway_pb2.CallToolsResponse:
        self.expiries.append(require_token(request.rollout_id, "agent").expires_at)
        if self.error is not None:
            raise self.error
        return tool_gateway_pb2.CallToolsResponse(
            results=[
                tool_gateway_pb2.ToolResult(tool_call_id=c.tool_call_id, content=c.name)
                for c in reversed(request.calls)
            ]
        )


class NoBlobs:
    async def fetch(self, ref: AdapterRef, destination: Path) -> None:
        raise NotFound(f"there is no blob {ref.name!r}")


def job() -> RolloutJob:
    return RolloutJob(
        rollout_id=ROLLOUT_ID,
        slot=Slot(run_id="run", phase=Phase.TRAIN, step=0, group_index=0, sample_index=0),
        attempt=0,
        task=Task(task_id="t", messages=()),
        model=ModelKey(path="tiny"),
        policy=PolicyKey("run", 0),
        adapter=None,
        sampling=SamplingParams(),
        limits=AgentLimits(max_turns=1, max_total_tokens=0),
        tools=("a", "b"),
        tool_format="",
        system_prompt="",
        sandbox_template="",
        grader_json="{}",
        requested=0.0,
        deadline=100.0,
    )


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    generate_key_file(tmp_path / "keys.pem")
    return tmp_path / "keys.pem"


@pytest.fixture
def tokens(key_file: Path) -> Tokens:
    return Tokens(TokenMinter(key_file, lambda: 0.0), ttl_seconds=30)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def tools(
    key_file: Path, tokens: Tokens, gateway: Gateway
) -> AsyncIterator[ToolGatewayClient]:
    def add(server: grpc.aio.Server) -> None:
        tool_gateway_pb2_grpc.add_ToolGatewayServiceServicer_to_server(gateway, server)

    async with (
        running_server(add, verifier=TokenVerifier(key_file, lambda: 0.0)) as target,
        connect(target) as channel,
    ):
        yield ToolGatewayClient(channel, tokens, clock=lambda: 0.0)


async def create(
    key_file: Path, tokens: Tokens, servicer: Sandboxes, seconds: float
) -> Environment:
    def add(server: grpc.aio.Server) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(servicer, server)

    async with (
        running_server(add, verifier=TokenVerifier(key_file, lambda: 0.0)) as target,
        connect(target) as channel,
    ):
        return await SandboxClient(channel, tokens, random.Random(0)).create(job(), 7, seconds)


async def test_a_full_sandbox_service_is_asked_again(key_file: Path, tokens: Tokens) -> None:
    servicer = Sandboxes(full=2)
    made = await create(key_file, tokens, servicer, 10)
    assert (made.sandbox_id, made.isolation) == ("sbx_1", "ns-root")
    assert servicer.epochs == [7, 7, 7]


async def end_of_waiting(key_file: Path, tokens: Tokens, *, full: int, hangs: bool) -> HoneError:
    """Returns how a create ended that was refused first; where this machine is slow, that takes a longer deadline."""
    seconds = 0.5
    while True:
        servicer = Sandboxes(full=full, hangs=hangs)
        with pytest.raises((ResourceExhausted, DeadlineExceeded)) as caught:
            await create(key_file, tokens, servicer, seconds)
        if len(servicer.epochs) > 1:
            return caught.value
        seconds *= 2


async def test_room_is_waited_for_within_the_deadline(key_file: Path, tokens: Tokens) -> None:
    error = await end_of_waiting(key_file, tokens, full=10_000, hangs=False)
    assert isinstance(error, ResourceExhausted) and error.message == "no room"


async def test_want_of_room_is_the_reason_also_where_the_time_ends_within_a_call(
    key_file: Path, tokens: Tokens
) -> None:
    error = await end_of_waiting(key_file, tokens, full=1, hangs=True)
    assert isinstance(error, ResourceExhausted) and error.message == "no room"
    with pytest.raises(DeadlineExceeded):
        await create(key_file, tokens, Sandboxes(full=0, hangs=True), 0.1)


async def test_a_token_outlives_the_call_that_it_goes_with(
    key_file: Path, tokens: Tokens, gateway: Gateway, tools: ToolGatewayClient
) -> None:
    sandboxes = Sandboxes(full=0)
    await create(key_file, tokens, sandboxes, 300)
    assert sandboxes.expiries[0] >= 300
    await tools.caller(job(), 1, "sbx", ours).call(0, CALLS)
    assert gateway.expiries[0] >= TOOLS_TIMEOUT_SECONDS + REPLY_SECONDS
    ((_, short),) = tokens.metadata(job(), 1, call_seconds=1)
    assert TokenVerifier(key_file, lambda: 0.0).verify(short).expires_at <= 32


async def test_an_unknown_tool_is_told_from_a_gateway_that_refuses(
    tools: ToolGatewayClient,
) -> None:
    with pytest.raises(UnknownToolError, match="no tool named 'z'"):
        await tools.definitions(["z"])


async def ours() -> None:
    """The lease is live."""


CALLS = [
    ToolCall(tool_call_id="c1", name="a", arguments_json="{}"),
    ToolCall(tool_call_id="c2", name="b", arguments_json="{}"),
]


async def test_results_come_in_the_order_of_the_calls(tools: ToolGatewayClient) -> None:
    outcomes = await tools.caller(job(), 1, "sbx", ours).call(0, CALLS)
    assert [outcome.content for outcome in outcomes] == ["a", "b"]


@pytest.mark.parametrize("error", [Unavailable("gone"), InvalidArgument("bad")])
async def test_a_failing_gateway_is_named_as_such(
    tools: ToolGatewayClient, gateway: Gateway, error: Exception
) -> None:
    gateway.error = error
    with pytest.raises(RolloutError) as raised:
        await tools.caller(job(), 1, "sbx", ours).call(0, CALLS)
    assert raised.value.kind is FailureKind.TOOL_GATEWAY
    assert type(raised.value.cause) is type(error)


async def test_an_old_epoch_passes_through(tools: ToolGatewayClient, gateway: Gateway) -> None:
    gateway.error = FailedPrecondition("a newer epoch exists", reason="EPOCH_OLD")
    with pytest.raises(FailedPrecondition) as raised:
        await tools.caller(job(), 1, "sbx", ours).call(0, CALLS)
    assert raised.value.reason == "EPOCH_OLD"


async def test_all_pages_of_tools_are_read_once(tools: ToolGatewayClient, gateway: Gateway) -> None:
    assert [t.name for t in await tools.definitions(("b", "a"))] == ["b", "a"]
    await tools.definitions(("a",))
    assert gateway.lists == 2


async def test_an_unknown_tool_names_the_known_ones(tools: ToolGatewayClient) -> None:
    with pytest.raises(InvalidArgument, match="no tool named 'c'; the gateway has a, b"):
        await tools.definitions(("a", "c"))


class InFlight:
    in_flight = 2


@pytest.fixture
async def stub(tiny_model: Path, tmp_path: Path) -> AsyncIterator[Any]:
    def resolve(path: str) -> Path:
        if path != "tiny":
            raise ValueError(f"model.path: {path!r} is not a folder")
        return tiny_model

    policies = Policies(
        make_engine=ScriptedEngine,
        resolve=resolve,
        adapters=AdapterFolders(tmp_path, NoBlobs()),
    )
    rewards = make_reward_models(RolloutSettings())
    servicer = RolloutServicer(policies, rewards, InFlight(), "scripted")  # type: ignore[arg-type]

    def add(server: grpc.aio.Server) -> None:
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)

    async with running_server(add) as target, connect(target) as channel:
        yield rollout_pb2_grpc.RolloutServiceStub(channel)
    await rewards.close()


TINY = run_spec_pb2.ModelSpec(path="tiny")
HELLO = message_pb2.ChatMessage(
    role=message_pb2.ROLE_USER, parts=[message_pb2.ContentPart(text="hello")]
)


async def test_generate_answers_with_exact_ids(stub: Any) -> None:
    answer = await stub.Generate(rollout_pb2.GenerateRequest(model=TINY, messages=[HELLO]))
    assert answer.text == "ok"
    assert len(answer.token_ids) == len(answer.logprobs) > 1
    assert answer.finish_reason == "stop"
    engine = await stub.GetEngine(rollout_pb2.GetEngineRequest())
    assert (engine.engine, engine.rollouts_in_flight_count) == ("scripted", 2)


async def test_a_policy_serves_once_it_is_loaded(stub: Any) -> None:
    request = rollout_pb2.GenerateRequest(
        model=TINY, run_id="run", policy_version=4, messages=[HELLO]
    )
    with pytest.raises(NotFound, match="policy run v4 is not loaded"):
        await stub.Generate(request)
    loaded = await stub.LoadPolicy(
        rollout_pb2.LoadPolicyRequest(model=TINY, run_id="run", policy_version=4)
    )
    assert loaded.policy_version == 4
    assert (await stub.Generate(request)).policy_version == 4


async def test_a_missing_blob_and_a_missing_model_are_named(stub: Any) -> None:
    request = rollout_pb2.LoadPolicyRequest(model=TINY, run_id="run", policy_version=1)
    request.adapter.name, request.adapter.sha256 = "adapters/run/v1", "0" * 64
    with pytest.raises(NotFound, match="no blob 'adapters/run/v1'"):
        await stub.LoadPolicy(request)
    with pytest.raises(InvalidArgument, match="'nowhere' cannot be opened"):
        await stub.LoadPolicy(
            rollout_pb2.LoadPolicyRequest(model=run_spec_pb2.ModelSpec(path="nowhere"))
        )
    with pytest.raises(InvalidArgument, match=r"model\.path: empty"):
        await stub.Generate(rollout_pb2.GenerateRequest())
    # What auto stands for only a run knows; vLLM would read something else into it.
    measured = run_spec_pb2.ModelSpec(path=TINY.path, dtype="auto")
    with pytest.raises(
        InvalidArgument, match=r"model\.dtype: auto .* float32 or bfloat16 is right"
    ):
        await stub.LoadPolicy(rollout_pb2.LoadPolicyRequest(model=measured))


async def test_reward_models_score_in_the_order_of_the_conversations(
    stub: Any, tiny_reward_model: Path
) -> None:
    model = run_spec_pb2.ModelSpec(path=str(tiny_reward_model))
    request = rollout_pb2.ScoreRewardsRequest(
        model=model, conversations=[conversation("yes"), conversation("no " * 50)]
    )
    first, second = (await stub.ScoreRewards(request)).scores
    request = rollout_pb2.ScoreRewardsRequest(model=model, conversations=[conversation("no " * 50)])
    (alone,) = (await stub.ScoreRewards(request)).scores
    assert alone.score == pytest.approx(second.score, abs=1e-4)
    assert first.score != second.score
    assert second.token_count > first.token_count > 0


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (rollout_pb2.ScoreRewardsRequest(), r"model\.path: empty"),
        (rollout_pb2.ScoreRewardsRequest(model=TINY), "conversations: found 0"),
        (
            rollout_pb2.ScoreRewardsRequest(
                model=TINY, conversations=[rollout_pb2.Conversation()] * (MAX_CONVERSATIONS + 1)
            ),
            "conversations: found 257",
        ),
        (
            rollout_pb2.ScoreRewardsRequest(model=TINY, conversations=[rollout_pb2.Conversation()]),
            r"conversations\.messages: at least one",
        ),
    ],
)
async def test_a_wrong_question_to_a_reward_model_is_named(
    stub: Any, request_: rollout_pb2.ScoreRewardsRequest, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await stub.ScoreRewards(request_)


async def test_a_reward_model_that_is_none_is_named(stub: Any) -> None:
    model = run_spec_pb2.ModelSpec(path="/nowhere")
    request = rollout_pb2.ScoreRewardsRequest(model=model, conversations=[conversation("x")])
    with pytest.raises(InvalidArgument, match="'/nowhere' cannot be opened"):
        await stub.ScoreRewards(request)


def conversation(text: str) -> rollout_pb2.Conversation:
    said = message_pb2.ChatMessage(
        role=message_pb2.ROLE_ASSISTANT, parts=[message_pb2.ContentPart(text=text)]
    )
    return rollout_pb2.Conversation(messages=[HELLO, said])
