"""Grading boxes: sandboxes of purpose grade in which code of graders runs, away from the agent's own.

A `Room` belongs to the grading of one record. A box that starts `from_agent` is made from a snapshot of the agent's
sandbox, taken once per room; folders are copied from that sandbox itself. All of either is hostile. The boxes end with
their room.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from grader.results import GradingFaultError
from trajectory.types import GraderErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which attempt a record belongs to."""

    rollout_id: str
    run_id: str
    epoch: int
    sandbox_id: str
    """Of the agent; empty if it had none or it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command in a box ended; a command that was stopped has no exit code."""

    exit_code: int | None
    stopped_by: str
    """Empty, or timeout, oom, output_limit, pids_limit, signal or broken."""
    stdout: bytes
    stderr: bytes
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What a box should be like."""

    from_agent: bool = False
    """Start from all that the agent left, programs and system files too, rather than from a clean template."""
    agent_folders: tuple[str, ...] = ()
    """Folders of the agent's that are copied into a clean box; one that it does not have becomes empty."""
    template: str = ""
    """What a clean box starts from; empty means the sandbox service's default."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By absolute path; written over what is there."""
    memory_bytes: int | None = None
    lifetime_seconds: float = 600.0


class AgentFilesError(Exception):
    """What the agent left cannot be taken: it is too much, or made so that nobody can read it."""


class FileTooLargeError(Exception):
    """A file in a box is larger than whoever reads it allows."""


class Box(Protocol):
    """One grading box."""

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        max_output_bytes: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command to its end.

        Raises:
            GradingFaultError: the box could not run it, kind sandbox.
        """
        ...

    async def exists(self, path: str) -> bool:
        """Say whether anything is at a path: a file, a folder, a link.

        Raises:
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """Return a regular file's content; None if there is none.

        Args:
            path: absolute.
            max_bytes: at most 3 MiB.

        Raises:
            FileTooLargeError: the file is larger.
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by absolute path.

        Raises:
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        ...


class Room(Protocol):
    """The boxes of one record's grading."""

    def box(self, spec: BoxSpec) -> AbstractAsyncContextManager[Box]:
        """Make a box that ends with the block.

        Raises:
            AgentFilesError: what the agent left keeps it from being made.
            GradingFaultError: it could not be made, kind sandbox.
        """
        ...


class Rooms(Protocol):
    """Opens rooms."""

    def room(self, origin: Origin | None) -> AbstractAsyncContextManager[Room]:
        """Open a room for a record; without an origin it has no agent's files to start from."""
        ...


class NoRoom:
    """For graders that run without a sandbox service."""

    def box(self, spec: BoxSpec) -> AbstractAsyncContextManager[Box]:
        """Raise GradingFaultError: there is no sandbox service."""
        raise GradingFaultError(
            "this grader runs code in a box, and no sandbox service is set up; "
            "set HONE_SANDBOX_ADDRESS and HONE_GRADER_TOKEN_KEY_FILE, or use hone up",
            kind=GraderErrorKind.SANDBOX,
            retryable=False,
            client=False,
        )
