"""What a way to make sandboxes must offer. The domain knows these two protocols and nothing of what is behind them.

To add a backend: one file beside `local.py`, one line in `sandbox.backends.table.BACKENDS`, and the tests of
`tests/test_vectors.py` must pass on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sandbox.types import BoxFile, Chunk, Command, ExecOutcome, FileContent, Limits


class BoxLost(Exception):
    """The sandbox died and its own workload is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What a backend says of itself once it is started."""

    backend: str
    isolation: str
    """For example ns-root; see the README's table."""
    rootfs_digest: str
    detail: str = ""
    """What does not hold at this level, and why; for the log."""


class Box(Protocol):
    """One live sandbox."""

    async def run(
        self, command: Command, env: Mapping[str, str], emit: Callable[[Chunk], None] | None
    ) -> ExecOutcome:
        """Run a command to its end; with `emit`, hand output on as it comes instead of keeping it.

        Raises:
            BoxLost: the sandbox died for a reason that is ours.
        """
        ...

    async def kill(self, exec_id: str) -> None:
        """End a running command with all it started; nothing happens if it is not running."""
        ...

    async def write_file(self, file: BoxFile) -> None:
        """Write a file; parents are made."""
        ...

    async def read_file(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read at most `max_bytes` of a regular file."""
        ...

    async def destroy(self) -> None:
        """End everything in it and leave nothing behind. Idempotent."""
        ...


class Backend(Protocol):
    """A way to make sandboxes."""

    def lock(self) -> None:
        """Make sure that no other manager works with the same state.

        Raises:
            FailedPrecondition: another does.
        """
        ...

    async def start(self) -> BackendInfo:
        """Get ready; remove what an earlier manager left behind.

        Raises:
            FailedPrecondition: this machine cannot isolate; says what is missing.
        """
        ...

    async def create(self, sandbox_id: str, limits: Limits, on_lost: Callable[[str], None]) -> Box:
        """Make a sandbox that can run commands; `on_lost` is told if it dies unasked.

        Raises:
            Unavailable: it could not be made; nothing is left.
        """
        ...

    async def reap(self, known: frozenset[str]) -> int:
        """Remove remains that belong to no known sandbox; return how many there were."""
        ...

    def live_count(self) -> int:
        """Count the sandboxes that exist outside this process's own memory."""
        ...

    async def close(self) -> None:
        """Stop; every sandbox has been destroyed."""
        ...
