"""The embedded backend in this process: what the service does, without service, journal, log and gRPC."""

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.box import LocalBox
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import BoxSpec, Command, Limits, Termination
from support.service import DISK_BYTES, MEMORY_BYTES

LIMITS = Limits(memory_bytes=MEMORY_BYTES, disk_bytes=DISK_BYTES)


class Embedded:
    """A started backend with bounded creation, as the service bounds it."""

    def __init__(self, backend: LocalBackend, isolation: str) -> None:
        """Bounds creation."""
        self.backend = backend
        self.isolation = isolation
        self._turns = asyncio.Semaphore(4 * (os.cpu_count() or 1))
        self._numbers = itertools.count()

    async def create(self) -> "Direct":
        """Make a sandbox in one's turn."""
        async with self._turns:
            spec = BoxSpec(sandbox_id=f"sbx_bench_{next(self._numbers):08d}", limits=LIMITS)
            return Direct(await self.backend.create(spec, lambda _: None))


class Direct:
    """One sandbox of the backend."""

    def __init__(self, box: LocalBox) -> None:
        """Wraps it."""
        self._box = box
        self._count = 0

    async def true(self) -> None:
        """Run the command `true`."""
        self._count += 1
        command = Command(exec_id=f"e{self._count}", argv=("true",))
        outcome = await self._box.run(command, DEFAULT_ENV, None)
        if outcome.exit_code or outcome.termination is not Termination.EXITED:
            raise RuntimeError(f"true ended with {outcome}")

    async def destroy(self) -> None:
        """Destroy it."""
        await self._box.destroy()


@asynccontextmanager
async def running_backend() -> AsyncIterator[Embedded]:
    """Start the backend in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        backend = LocalBackend(Path(folder))
        info = await backend.start()
        try:
            yield Embedded(backend, info.isolation)
        finally:
            await backend.close()
