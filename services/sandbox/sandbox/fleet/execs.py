"""Commands of one sandbox by exec_id: repeating an id returns the first result instead of running again."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from sandbox.types import ExecOutcome
from servicekit.errors import AlreadyExists

REMEMBERED_BYTES = 8 * 1024 * 1024
"""Output of finished commands that is remembered per sandbox, oldest forgotten first."""

_ENTRY_BYTES = 512
"""What a remembered result costs without its output."""


class ExecBook:
    """Remembers what ran and what is running."""

    def __init__(self, remembered_bytes: int = REMEMBERED_BYTES) -> None:
        """Starts empty."""
        self._remembered_bytes = remembered_bytes
        self._running: dict[str, asyncio.Task[ExecOutcome]] = {}
        self._finished: OrderedDict[str, ExecOutcome] = OrderedDict()
        self._bytes = 0

    async def run_once(
        self, exec_id: str, start: Callable[[], Awaitable[ExecOutcome]]
    ) -> ExecOutcome:
        """Return the result of this id: remembered, of the one under way, or of a new start.

        A caller that gives up does not stop the command: it may come back for the result.
        """
        finished = self._finished.get(exec_id)
        if finished is not None:
            return finished
        task = self._running.get(exec_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._run(exec_id, start))
            self._running[exec_id] = task
        return await asyncio.shield(task)

    async def run_new(
        self, exec_id: str, start: Callable[[], Awaitable[ExecOutcome]]
    ) -> ExecOutcome:
        """Run a command whose output nobody else can have; a caller that gives up stops it.

        Raises:
            AlreadyExists: the id was used before.
        """
        if exec_id in self._finished or exec_id in self._running:
            raise AlreadyExists(f"exec_id {exec_id!r} was used before in this sandbox")
        task = asyncio.get_running_loop().create_task(self._run(exec_id, start))
        self._running[exec_id] = task
        return await task

    async def _run(self, exec_id: str, start: Callable[[], Awaitable[ExecOutcome]]) -> ExecOutcome:
        try:
            outcome = await start()
        finally:
            del self._running[exec_id]
        self._finished[exec_id] = outcome
        self._bytes += _size(outcome)
        while self._bytes > self._remembered_bytes and len(self._finished) > 1:
            self._bytes -= _size(self._finished.popitem(last=False)[1])
        return outcome


def _size(outcome: ExecOutcome) -> int:
    return _ENTRY_BYTES + len(outcome.stdout) + len(outcome.stderr)
