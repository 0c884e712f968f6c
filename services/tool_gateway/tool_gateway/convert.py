"""Messages of the tool gateway and of the sandbox's Exec, to and from domain types."""

import json

from hone.common.v1 import message_pb2
from hone.events.v1 import events_pb2
from hone.sandbox.v1 import sandbox_pb2
from hone.tool_gateway.v1 import tool_gateway_pb2

from eventbus.subjects import check_run_id
from servicekit.errors import InvalidArgument, Unavailable
from tool_gateway.gateway import CallFact, CallResult, Turn
from tool_gateway.sandboxes import Command, Ended, Termination
from tool_gateway.tools.base import ToolSpec
from trajectory.convert import duration_from_proto, duration_to_proto, tool_call_from_proto
from trajectory.types import ToolCall

DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 3600.0
MAX_CALLS = 64
"""Of one turn."""
MAX_EXEC_OUTPUT_BYTES = 64 * 1024
"""Of stdout and of stderr each, asked of the sandbox; the model is told less."""


def turn_from_proto(request: tool_gateway_pb2.CallToolsRequest, epoch: int) -> Turn:
    """Convert everything of a request but its calls.

    Raises:
        InvalidArgument: a field is missing or out of range.
    """
    violations: dict[str, str] = {}
    for field in ("rollout_id", "run_id"):
        if not getattr(request, field):
            violations[field] = "is required"
    if request.run_id:
        try:
            check_run_id(request.run_id)
        except InvalidArgument as err:
            violations.update(err.violations)
    timeout = DEFAULT_TIMEOUT_SECONDS
    if request.HasField("timeout"):
        timeout = duration_from_proto(request.timeout)
        if not 0 < timeout <= MAX_TIMEOUT_SECONDS:
            violations["timeout"] = (
                f"must be above 0 and at most {MAX_TIMEOUT_SECONDS:g} s, found {timeout:g} s"
            )
    if len(request.calls) > MAX_CALLS:
        violations["calls"] = f"at most {MAX_CALLS} per turn, found {len(request.calls)}"
    for index, call in enumerate(request.calls):
        if not call.tool_call_id:
            violations[f"calls[{index}].tool_call_id"] = "is required"
    if violations:
        listed = "; ".join(f"{field}: {text}" for field, text in violations.items())
        raise InvalidArgument(f"CallTools: {listed}", violations=violations)
    return Turn(
        rollout_id=request.rollout_id,
        run_id=request.run_id,
        sandbox_id=request.sandbox_id,
        turn=request.turn,
        epoch=epoch,
        allowed_tools=tuple(request.allowed_tools),
        timeout_seconds=timeout,
    )


def calls_from_proto(request: tool_gateway_pb2.CallToolsRequest) -> list[ToolCall]:
    """Convert the calls of a request."""
    return [tool_call_from_proto(call) for call in request.calls]


def result_to_proto(result: CallResult) -> tool_gateway_pb2.ToolResult:
    """Convert a result."""
    return tool_gateway_pb2.ToolResult(
        tool_call_id=result.tool_call_id,
        content=result.content,
        error_kind=result.error_kind,
        duration=duration_to_proto(result.duration_seconds),
    )


def spec_to_proto(spec: ToolSpec) -> message_pb2.ToolDefinition:
    """Convert what a model is told about a tool."""
    return message_pb2.ToolDefinition(
        name=spec.name, description=spec.description, parameters_json=json.dumps(spec.parameters)
    )


def fact_to_event(fact: CallFact) -> events_pb2.ToolCalled:
    """Convert a call that ran to its event."""
    return events_pb2.ToolCalled(
        tool_call_id=fact.tool_call_id,
        tool_name=fact.tool_name,
        error_kind=fact.error_kind,
        duration=duration_to_proto(fact.duration_seconds),
    )


def command_to_proto(command: Command) -> sandbox_pb2.ExecRequest:
    """Convert a command."""
    return sandbox_pb2.ExecRequest(
        exec=sandbox_pb2.ExecSpec(
            sandbox_id=command.sandbox_id,
            rollout_id=command.rollout_id,
            exec_id=command.exec_id,
            argv=command.argv,
            timeout=duration_to_proto(command.timeout_seconds),
            max_output_bytes=MAX_EXEC_OUTPUT_BYTES,
        )
    )


def ended_from_proto(result: sandbox_pb2.ExecResult) -> Ended:
    """Convert how a command ended.

    Raises:
        Unavailable: the sandbox did not say how.
    """
    if result.termination == sandbox_pb2.TERMINATION_UNSPECIFIED:
        raise Unavailable("the sandbox did not say how the command ended", reason="SANDBOX_UNCLEAR")
    name = sandbox_pb2.Termination.Name(result.termination).removeprefix("TERMINATION_").lower()
    return Ended(
        termination=Termination(name),
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=result.stdout,
        stderr=result.stderr,
        truncated=result.stdout_truncated or result.stderr_truncated or result.output_incomplete,
    )
