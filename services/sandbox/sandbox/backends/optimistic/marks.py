"""What an environment that rollouts share is like at a moment.

Files are compared by content, names, modes and times, read from outside; memory shared between processes and, where
no command is under way, the number of processes, by a look inside. What is put back before the next look is not seen.
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sandbox.backends.protocol import Box
from sandbox.storage.archives import TarReader
from sandbox.types import Command, FileKind, Termination
from servicekit.errors import HoneError

log = logging.getLogger(__name__)

_LOOK = (
    "ls -lAR --full-time --numeric-uid-gid /dev/shm; cat /proc/sysvipc/* 2>/dev/null; "
    "set -- /proc/[0-9]*; echo processes $#"
)
_PROCESSES = b"processes "
_LOOK_ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The state at a moment."""

    files: str
    """A digest; where the state could not be looked at, a word that is like no other."""
    processes: bytes | None
    """How many there are; None while a command is under way, whose processes come and go."""

    def differs(self, other: "Mark") -> bool:
        """Say whether something changed from one to the other."""
        counted = self.processes is not None and other.processes is not None
        return self.files != other.files or (counted and self.processes != other.processes)


class Observer:
    """Looks at environments."""

    def __init__(self, scratch: Path, *, skip: frozenset[str], max_bytes: int) -> None:
        """Keeps archives in `scratch` while it looks.

        Args:
            scratch: a folder on the manager's disk.
            skip: paths below the root that are not looked at.
            max_bytes: of the files of one folder below the root; more counts as changed.
        """
        self._scratch = scratch
        self._skip = skip
        self._max_bytes = max_bytes

    async def mark(self, box: Box, *, is_quiet: bool) -> Mark:
        """Look at an environment; `is_quiet` says that no command is under way.

        Raises:
            BoxLost: it is gone.
        """
        digest = hashlib.sha256()
        try:
            for entry in await box.list_files("/"):
                path = f"/{entry.name}"
                if path in self._skip:
                    continue
                digest.update(f"{path!r} {entry!r}\n".encode())
                if entry.kind is not FileKind.LINK:
                    digest.update((await self._content(box, path)).encode())
            memory, processes = await self._look(box)
        except HoneError as error:
            log.warning("environment cannot be looked at", extra={"error": error.message})
            return _unlike_any()
        if memory is None:
            return _unlike_any()
        digest.update(memory)
        return Mark(files=digest.hexdigest(), processes=processes if is_quiet else None)

    async def _content(self, box: Box, path: str) -> str:
        archive = self._scratch / f"{uuid4().hex}.tar"
        try:
            await box.pack(path, archive, self._max_bytes)
            return await asyncio.to_thread(_digest_of, archive)
        finally:
            archive.unlink(missing_ok=True)

    async def _look(self, box: Box) -> tuple[bytes | None, bytes]:
        """Return what memory is shared, None if it cannot even start a shell, and how many processes there are."""
        command = Command(
            exec_id=f"look-{uuid4().hex}",
            argv=("sh", "-c", _LOOK),
            working_dir="/",
            timeout_seconds=_LOOK_SECONDS,
            kill_survivors=True,
        )
        seen = await box.run(command, _LOOK_ENV, None)
        if seen.termination is not Termination.EXITED or seen.exit_code or seen.stdout_truncated:
            return None, b""
        memory, _, processes = seen.stdout.partition(_PROCESSES)
        return memory, processes


def _unlike_any() -> Mark:
    return Mark(files=f"unknown {uuid4().hex}", processes=None)


def _digest_of(archive: Path) -> str:
    """Digest what an archive holds, in order of names; the order of its members says nothing."""
    found = []
    with archive.open("rb") as source:
        reader = TarReader(source)
        for member in reader.members():
            content = hashlib.sha256()
            while data := reader.read():
                content.update(data)
            found.append(f"{member!r} {content.hexdigest()}\n")
    return hashlib.sha256("".join(sorted(found)).encode(errors="surrogateescape")).hexdigest()
