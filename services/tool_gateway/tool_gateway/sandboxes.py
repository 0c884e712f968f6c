"""What sandbox tools need of a sandbox, and how a command's end is told to the model."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tool_gateway.output import clip
from tool_gateway.tools.base import TOOL_ERROR, TOOL_TIMEOUT, ToolOutput


class Termination(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    OOM_KILLED = "oom_killed"
    TIMED_OUT = "timed_out"
    OUTPUT_LIMIT = "output_limit"
    PIDS_LIMIT = "pids_limit"
    SANDBOX_BROKEN_BY_WORKLOAD = "sandbox_broken_by_workload"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run in a sandbox."""

    rollout_id: str
    sandbox_id: str
    exec_id: str
    """Repeating it returns the first result."""
    argv: tuple[str, ...]
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that has ended, however it did."""

    termination: Termination
    exit_code: int = 0
    signal: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """The sandbox itself left out part of the output."""


class Sandbox(Protocol):
    """Runs commands in the sandbox of a rollout."""

    async def exec(self, command: Command) -> Ended:
        """Run a command to its end.

        Raises:
            Unavailable: the sandbox is lost or out of reach; the attempt cannot go on.
        """
        ...


def tell(ended: Ended, command: Command, *, silent: str) -> ToolOutput:
    """Return what the model is told about a command.

    Args:
        ended: how it ended.
        command: what was run.
        silent: said when a command went well and printed nothing.
    """
    parts = [_text(ended.stdout)]
    errors = _text(ended.stderr)
    if errors:
        parts.append(f"[stderr]\n{errors}")
    if ended.truncated:
        parts.append("[part of the output was left out]")
    note, kind = _note(ended, command)
    if note:
        parts.append(note)
    content = "\n".join(part for part in parts if part)
    return ToolOutput(content=clip(content or silent), error_kind=kind)


def with_nul(parameter: str) -> ToolOutput:
    """Return what the model is told about an argument that no program can be given."""
    return ToolOutput(
        content=f"Error: {parameter} contains a NUL character (\\u0000); leave it out.",
        error_kind=TOOL_ERROR,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\x00", "\ufffd").rstrip()


def _note(ended: Ended, command: Command) -> tuple[str, str]:
    """Return the closing line and the error kind."""
    if ended.termination is Termination.EXITED:
        if ended.exit_code == 0:
            return "", ""
        return f"[exit code {ended.exit_code}]", TOOL_ERROR
    if ended.termination is Termination.TIMED_OUT:
        return f"[stopped after {command.timeout_seconds:.3g} s]", TOOL_TIMEOUT
    notes = {
        Termination.SIGNALED: f"[ended by signal {ended.signal}]",
        Termination.OOM_KILLED: "[ended: out of memory]",
        Termination.OUTPUT_LIMIT: "[ended: too much output]",
        Termination.PIDS_LIMIT: "[ended: too many processes]",
        Termination.SANDBOX_BROKEN_BY_WORKLOAD: "[ended: the environment no longer works]",
        Termination.KILLED: "[ended: killed]",
    }
    return notes[ended.termination], TOOL_ERROR
