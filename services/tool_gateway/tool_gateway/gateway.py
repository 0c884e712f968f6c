"""Runs the calls of one turn: checks, order, time, idempotency, spans and facts told.

A call that the model got wrong is a result; a fault of ours is raised, so that the rollout is tried again.
"""

import asyncio
import difflib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from opentelemetry import trace

from servicekit import attributes
from servicekit.errors import HoneError
from tool_gateway.arguments import ArgumentReader, BadArguments
from tool_gateway.ledger import CallLedger
from tool_gateway.output import clip
from tool_gateway.tools.base import TOOL_ERROR, TOOL_TIMEOUT, CallSite, Tool, ToolOutput
from trajectory.types import ToolCall

_LOG = logging.getLogger("hone.tool_gateway")

UNKNOWN_TOOL = "unknown_tool"
NEEDS_SANDBOX = "this tool needs a sandbox and the rollout has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where a turn's calls come from and what they may do."""

    rollout_id: str
    run_id: str
    sandbox_id: str
    turn: int
    epoch: int
    allowed_tools: tuple[str, ...]
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What one call came to."""

    tool_call_id: str
    content: str
    error_kind: str
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFact:
    """A call that ran, for the event log."""

    rollout_id: str
    run_id: str
    epoch: int
    tool_call_id: str
    tool_name: str
    error_kind: str
    duration_seconds: float


Announce = Callable[[CallFact], None]
"""Tells a fact, without waiting."""


class Gateway:
    """Runs calls against a table of tools."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        ledger: CallLedger,
        announce: Announce,
        tracer: trace.Tracer,
        *,
        max_tool_seconds: float,
    ) -> None:
        """Serve the given tools.

        Args:
            tools: by name.
            ledger: remembers calls.
            announce: tells that a call ran.
            tracer: makes the spans.
            max_tool_seconds: for one call, whatever the turn allows.
        """
        self._tools = tools
        self._readers = {name: ArgumentReader(tool.spec.parameters) for name, tool in tools.items()}
        self._ledger = ledger
        self._announce = announce
        self._tracer = tracer
        self._max_tool_seconds = max_tool_seconds

    @property
    def tools(self) -> list[Tool]:
        """All tools, by name."""
        return [self._tools[name] for name in sorted(self._tools)]

    async def call(self, turn: Turn, calls: Sequence[ToolCall]) -> list[CallResult]:
        """Run the calls of one turn and return a result for each, in order.

        Raises:
            FailedPrecondition: a newer epoch of the rollout was seen.
            HoneError: a call could not be run at all.
        """
        self._ledger.admit(turn.rollout_id, turn.epoch)
        deadline = time.monotonic() + turn.timeout_seconds
        in_order = [call for call in calls if not self._side_by_side(call)]
        results: dict[int, CallResult] = {}

        async def run_all(some: list[ToolCall]) -> None:
            for call in some:
                results[id(call)] = await self._once(turn, call, deadline)

        groups = [[call] for call in calls if self._side_by_side(call)]
        ended = await asyncio.gather(
            *(run_all(group) for group in [*groups, in_order] if group), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error
        return [results[id(call)] for call in calls]

    def _side_by_side(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is None or tool.spec.side_by_side

    async def _once(self, turn: Turn, call: ToolCall, deadline: float) -> CallResult:
        begun = time.monotonic()
        output = await self._ledger.once(
            turn.rollout_id, call.tool_call_id, lambda: self._run(turn, call, deadline)
        )
        return CallResult(
            tool_call_id=call.tool_call_id,
            content=output.content,
            error_kind=output.error_kind,
            duration_seconds=time.monotonic() - begun,
        )

    async def _run(self, turn: Turn, call: ToolCall, deadline: float) -> ToolOutput:
        begun = time.monotonic()
        with self._span(turn, call) as span:
            try:
                output = await self._execute(turn, call, deadline)
            except HoneError as err:
                span.set_status(trace.Status(trace.StatusCode.ERROR, err.message))
                raise
            if output.error_kind:
                span.set_attribute(attributes.ERROR_KIND, output.error_kind)
            self._announce(
                CallFact(
                    rollout_id=turn.rollout_id,
                    run_id=turn.run_id,
                    epoch=turn.epoch,
                    tool_call_id=call.tool_call_id,
                    tool_name=call.name[:64],
                    error_kind=output.error_kind,
                    duration_seconds=time.monotonic() - begun,
                )
            )
        return ToolOutput(content=clip(output.content), error_kind=output.error_kind)

    async def _execute(self, turn: Turn, call: ToolCall, deadline: float) -> ToolOutput:
        if call.name not in turn.allowed_tools or call.name not in self._tools:
            return self._unknown(turn, call)
        tool = self._tools[call.name]
        try:
            arguments = self._readers[call.name].read(call.arguments_json)
        except BadArguments as bad:
            return ToolOutput(content=bad.text, error_kind=bad.kind)
        if not tool.spec.side_by_side and not turn.sandbox_id:
            return ToolOutput(content=f"Error: {NEEDS_SANDBOX}.", error_kind=TOOL_ERROR)
        left = min(deadline - time.monotonic(), self._max_tool_seconds)
        if left <= 0:
            return ToolOutput(
                content="Error: no time was left for this call.", error_kind=TOOL_TIMEOUT
            )
        site = CallSite(
            rollout_id=turn.rollout_id,
            sandbox_id=turn.sandbox_id,
            tool_call_id=call.tool_call_id,
            timeout_seconds=left,
        )
        if not tool.spec.side_by_side:
            return await tool.run(arguments, site)
        return await _run_in_process(tool, arguments, site)

    def _unknown(self, turn: Turn, call: ToolCall) -> ToolOutput:
        allowed = sorted(name for name in turn.allowed_tools if name in self._tools)
        close = difflib.get_close_matches(call.name, allowed, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        listed = f"Available tools: {', '.join(allowed)}." if allowed else "No tools are available."
        content = f"Error: there is no tool {call.name[:64]!r}. {listed}{hint}"
        return ToolOutput(content=content, error_kind=UNKNOWN_TOOL)

    def _span(self, turn: Turn, call: ToolCall) -> AbstractContextManager[trace.Span]:
        """A span under the caller's; none where the call continues no trace."""
        if not trace.get_current_span().get_span_context().is_valid:
            return nullcontext(trace.INVALID_SPAN)
        name = call.name if call.name in self._tools else "unknown"
        return self._tracer.start_as_current_span(
            f"{attributes.SPAN_EXECUTE_TOOL} {name}",
            attributes={
                attributes.GEN_AI_OPERATION: attributes.SPAN_EXECUTE_TOOL,
                attributes.GEN_AI_TOOL_NAME: call.name[:64],
                attributes.GEN_AI_TOOL_CALL_ID: call.tool_call_id,
                attributes.ROLLOUT_ID: turn.rollout_id,
                attributes.TURN: turn.turn,
            },
        )


async def _run_in_process(
    tool: Tool, arguments: Mapping[str, object], site: CallSite
) -> ToolOutput:
    """Run a tool that needs nothing but its arguments."""
    try:
        return await tool.run(arguments, site)
    except HoneError:
        raise
    # Deliberately broad: with only the arguments to fail on, trying the rollout again would fail again.
    except Exception:
        _LOG.exception(
            "tool failed on its arguments",
            extra={
                "tool_name": tool.spec.name,
                "rollout_id": site.rollout_id,
                "tool_call_id": site.tool_call_id,
            },
        )
        return ToolOutput(
            content=f"Error: {tool.spec.name} could not handle these arguments.",
            error_kind=TOOL_ERROR,
        )
