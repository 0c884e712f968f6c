"""What a way to make sandboxes must offer. The domain knows these two protocols and nothing of what is behind them.

To add a backend: one package beside `local`, one line in `sandbox.backends.table.BACKENDS`, and one row in
`tests/backends_under_test.py`, over which the contract suite and the hostile cases then run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox.types import (
    BoxFile,
    BoxSpec,
    Chunk,
    Command,
    ExecOutcome,
    Feature,
    FileContent,
    FileEntry,
    Owner,
)


class BoxLost(Exception):
    """The sandbox died and its own workload is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What a backend says of itself once it is started."""

    backend: str
    isolation: str
    """For example ns-root; see the README's table."""
    features: frozenset[Feature] = frozenset(Feature)
    """A call that needs another is refused before it reaches a sandbox."""
    detail: str = ""
    """What does not hold at this level, and why; for the log."""


class Box(Protocol):
    """One live sandbox. Each call may raise `BoxLost`."""

    @property
    def rootfs_digest(self) -> str:
        """What it started from, `sha256:` and hexadecimal digits; equal for all of one template."""
        ...

    async def claim(self, owner: Owner) -> None:
        """Hand a sandbox that was made ahead to its rollout; called at most once, before anything runs.

        Raises:
            Unavailable: it is not to be had any more; the fleet destroys it and takes another.
        """
        ...

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

    async def list_files(self, path: str) -> list[FileEntry]:
        """List a folder, in order of name.

        Raises:
            NotFound: nothing is there. InvalidArgument: it is no folder.
        """
        ...

    async def stat_file(self, path: str) -> FileEntry:
        """Say what a path is.

        Raises:
            NotFound: nothing is there.
        """
        ...

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack a tar archive that lies on the manager's disk below a folder, which is made.

        Nothing is written outside the folder, whatever the names and links in the archive say.

        Raises:
            InvalidArgument: it is no tar archive, or an entry would leave the folder.
        """
        ...

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder or file into a tar archive on the manager's disk.

        Raises:
            NotFound: nothing is there. OutOfRange: it would be larger than `max_bytes`.
        """
        ...

    async def snapshot(self, target: Path) -> None:
        """Write the state of the file system to a file, in a form of the backend's own."""
        ...

    async def polluted(self) -> bool:
        """Say whether others may have changed what its rollout saw; only where an environment is shared."""
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

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> Box:
        """Make a sandbox that can run commands; `on_lost` is told its id if it dies unasked.

        A cancelled create leaves nothing behind.

        Raises:
            Unavailable: it could not be made; nothing is left.
            ResourceExhausted: there is no room where the backend makes them.
            FailedPrecondition: it never can be made, for example from an image that does not exist.
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
