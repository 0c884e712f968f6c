"""What the rollout service asks of other services: sandboxes and tool calls."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import grpc
from hone.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from hone.tool_gateway.v1 import tool_gateway_pb2, tool_gateway_pb2_grpc

from rollout.agent_loop import ToolCaller, ToolOutcome
from rollout.failures import RolloutError, UnknownToolError
from rollout.jobs import Environment, RolloutJob
from servicekit import attributes
from servicekit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    HoneError,
    Internal,
    ResourceExhausted,
)
from servicekit.tokens import TokenMinter
from trajectory import convert
from trajectory.types import FailureKind, ToolCall, ToolDefinition

IDEMPOTENT_METHODS = ("CreateSandbox", "ListTools", "CallTools")
"""May be repeated when the transport fails: each is idempotent by its own key."""

GRADING_SECONDS = 600.0
"""How long a sandbox outlives its rollout's deadline at most, for grading."""

TOOLS_TIMEOUT_SECONDS = 60.0
REPLY_SECONDS = 5.0
"""How long an answer may be on its way after the tools' own time is up."""

TOKEN_MARGIN_SECONDS = 15.0
"""A token outlives the call that it goes with: the callee passes it on, and clocks differ."""

MAX_ROOM_WAIT_SECONDS = 5.0


class Tokens:
    """Agent tokens, fresh for each call, that end soon after the lease or the call, if it is longer."""

    def __init__(self, minter: TokenMinter | None, ttl_seconds: float) -> None:
        """Takes the minter; without one (no key file) calls go out without a token."""
        self._minter = minter
        self._ttl_seconds = ttl_seconds

    def metadata(
        self, job: RolloutJob, epoch: int, *, call_seconds: float
    ) -> tuple[tuple[str, str], ...]:
        """Returns call metadata with a token for this rollout and epoch, good for the whole call."""
        if self._minter is None:
            return ()
        ttl = max(self._ttl_seconds, call_seconds + TOKEN_MARGIN_SECONDS)
        token = self._minter.mint(job.rollout_id, epoch, "agent", ttl)
        return ((attributes.TOKEN_METADATA_KEY, token),)


class SandboxClient:
    """Makes sandboxes."""

    def __init__(self, channel: grpc.aio.Channel, tokens: Tokens, rng: random.Random) -> None:
        """Takes the channel to the sandbox service."""
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._tokens = tokens
        self._rng = rng

    async def create(self, job: RolloutJob, epoch: int, timeout_seconds: float) -> Environment:
        """Returns the rollout's environment; waits for room within the timeout.

        Raises:
            ResourceExhausted: there was no room. DeadlineExceeded: the service did not answer at all.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        refused: ResourceExhausted | None = None
        while True:
            left = deadline - asyncio.get_running_loop().time()
            request = sandbox_pb2.CreateSandboxRequest(
                rollout_id=job.rollout_id,
                run_id=job.run_id,
                purpose=sandbox_pb2.SANDBOX_PURPOSE_AGENT,
                template=job.sandbox_template,
                lifetime=convert.duration_to_proto(left + GRADING_SECONDS),
                idle_timeout=convert.duration_to_proto(left + GRADING_SECONDS),
            )
            try:
                response = await self._stub.CreateSandbox(
                    request,
                    timeout=left,
                    metadata=self._tokens.metadata(job, epoch, call_seconds=left),
                )
            except DeadlineExceeded:
                # Time ran out while it was asked again; what it had said is the reason.
                if refused is not None:
                    raise refused from None
                raise
            except ResourceExhausted as error:
                refused = error
                wait = min(error.retry_after_seconds or 1.0, MAX_ROOM_WAIT_SECONDS)
                wait *= self._rng.uniform(0.5, 1.0)
                if asyncio.get_running_loop().time() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)
            else:
                made = response.sandbox
                return Environment(sandbox_id=made.sandbox_id, isolation=made.isolation)


class ToolGatewayClient:
    """Lists and calls tools."""

    def __init__(
        self, channel: grpc.aio.Channel, tokens: Tokens, clock: Callable[[], float]
    ) -> None:
        """Takes the channel to the tool gateway."""
        self._stub = tool_gateway_pb2_grpc.ToolGatewayServiceStub(channel)
        self._tokens = tokens
        self._clock = clock
        self._known: dict[str, ToolDefinition] = {}

    async def definitions(self, names: Sequence[str]) -> tuple[ToolDefinition, ...]:
        """Returns the tools by name; asks again when a name is new."""
        if any(name not in self._known for name in names):
            self._known = await self._list()
        missing = [name for name in names if name not in self._known]
        if missing:
            raise UnknownToolError(
                f"rollout.tools: no tool named {missing[0]!r}; the gateway has "
                f"{', '.join(sorted(self._known)) or 'none'}"
            )
        return tuple(self._known[name] for name in names)

    def caller(
        self, job: RolloutJob, epoch: int, sandbox_id: str, check: Callable[[], Awaitable[None]]
    ) -> ToolCaller:
        """Returns what runs this rollout's calls."""
        return _Caller(self, job, epoch, sandbox_id, check)

    async def call(
        self, job: RolloutJob, epoch: int, sandbox_id: str, turn: int, calls: Sequence[ToolCall]
    ) -> Sequence[ToolOutcome]:
        """Runs the calls of a turn."""
        timeout = min(TOOLS_TIMEOUT_SECONDS, max(0.1, job.deadline - self._clock()))
        response = await self._stub.CallTools(
            tool_gateway_pb2.CallToolsRequest(
                rollout_id=job.rollout_id,
                run_id=job.run_id,
                sandbox_id=sandbox_id,
                turn=turn,
                calls=[convert.tool_call_to_proto(call) for call in calls],
                allowed_tools=job.tools,
                timeout=convert.duration_to_proto(timeout),
            ),
            timeout=timeout + REPLY_SECONDS,
            metadata=self._tokens.metadata(job, epoch, call_seconds=timeout + REPLY_SECONDS),
        )
        results = {result.tool_call_id: result for result in response.results}
        missing = [call.tool_call_id for call in calls if call.tool_call_id not in results]
        if missing:
            raise Internal(f"the tool gateway gave no result for call {missing[0]}")
        return [
            ToolOutcome(
                content=results[call.tool_call_id].content,
                error_kind=results[call.tool_call_id].error_kind,
            )
            for call in calls
        ]

    async def _list(self) -> dict[str, ToolDefinition]:
        known: dict[str, ToolDefinition] = {}
        token = ""
        while True:
            response = await self._stub.ListTools(
                tool_gateway_pb2.ListToolsRequest(page_size=1000, page_token=token)
            )
            for tool in response.tools:
                known[tool.name] = convert.tool_definition_from_proto(tool)
            token = response.next_page_token
            if not token:
                return known


class _Caller:
    """The tools of one rollout."""

    def __init__(
        self,
        client: ToolGatewayClient,
        job: RolloutJob,
        epoch: int,
        sandbox_id: str,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._job = job
        self._epoch = epoch
        self._sandbox_id = sandbox_id
        self._check = check

    async def call(self, turn: int, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        """Runs the calls if the rollout is still ours."""
        await self._check()
        try:
            return await self._client.call(self._job, self._epoch, self._sandbox_id, turn, calls)
        except FailedPrecondition as error:
            if error.reason == "EPOCH_OLD":
                raise
            raise RolloutError(FailureKind.TOOL_GATEWAY, error) from error
        except HoneError as error:
            raise RolloutError(FailureKind.TOOL_GATEWAY, error) from error
