"""Commands by exec_id: repeating an id in its sandbox returns the first result instead of running again.

What is remembered is bounded for each sandbox and for all together: results hold what workloads wrote.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from sandbox.types import MIB, ExecOutcome
from servicekit.errors import AlreadyExists

_ENTRY_BYTES = 512
"""What a remembered result costs without its output."""


class ExecMemory:
    """The results that the books of all sandboxes remember; the oldest are forgotten first."""

    def __init__(self, book_bytes: int = 8 * MIB, all_bytes: int = 256 * MIB) -> None:
        """Starts empty.

        Args:
            book_bytes: Of the results of one sandbox.
            all_bytes: Of those of all sandboxes together.
        """
        self._book_bytes = book_bytes
        self._all_bytes = all_bytes
        self._bytes = 0
        self._order: OrderedDict[tuple[ExecBook, str], None] = OrderedDict()

    def keep(self, book: "ExecBook", exec_id: str, outcome: ExecOutcome) -> None:
        """Remember a result."""
        book.finished[exec_id] = outcome
        self._order[book, exec_id] = None
        book.num_bytes += _size(outcome)
        self._bytes += _size(outcome)
        while book.num_bytes > self._book_bytes and len(book.finished) > 1:
            self._drop(book, next(iter(book.finished)))
        while self._bytes > self._all_bytes and len(self._order) > 1:
            self._drop(*next(iter(self._order)))

    def forget(self, book: "ExecBook") -> None:
        """Forget all results of a sandbox."""
        for exec_id in list(book.finished):
            self._drop(book, exec_id)

    def _drop(self, book: "ExecBook", exec_id: str) -> None:
        del self._order[book, exec_id]
        size = _size(book.finished.pop(exec_id))
        book.num_bytes -= size
        self._bytes -= size


class ExecBook:
    """What ran in one sandbox, and what is running."""

    def __init__(self, memory: ExecMemory) -> None:
        """Starts empty; `memory` says what is forgotten."""
        self._memory = memory
        self._running: dict[str, asyncio.Task[ExecOutcome]] = {}
        self.finished: dict[str, ExecOutcome] = {}
        """Remembered results, oldest first; the memory's to change, as is their size."""
        self.num_bytes = 0

    async def run_once(
        self, exec_id: str, start: Callable[[], Awaitable[ExecOutcome]]
    ) -> ExecOutcome:
        """Return the result of this id: remembered, of the one under way, or of a new start.

        A caller that gives up does not stop the command: it may come back for the result.
        """
        finished = self.finished.get(exec_id)
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
        if exec_id in self.finished or exec_id in self._running:
            raise AlreadyExists(f"exec_id {exec_id!r} was used before in this sandbox")
        task = asyncio.get_running_loop().create_task(self._run(exec_id, start))
        self._running[exec_id] = task
        return await task

    def forget(self) -> None:
        """Forget all results: the sandbox is gone."""
        self._memory.forget(self)

    async def _run(self, exec_id: str, start: Callable[[], Awaitable[ExecOutcome]]) -> ExecOutcome:
        try:
            outcome = await start()
        finally:
            del self._running[exec_id]
        self._memory.keep(self, exec_id, outcome)
        return outcome


def _size(outcome: ExecOutcome) -> int:
    return _ENTRY_BYTES + len(outcome.stdout) + len(outcome.stderr)
