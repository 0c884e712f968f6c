"""Feeds the archive off the event loop: many writers in, one thread and few transactions out.

Whatever waits is written together, so that a burst costs one commit. When the disk is slower than the services,
the queue fills and callers wait: nothing is dropped. A failed write ends `run` with the error; the process
should end with it, since the stream tells everything again from the stored cursor.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from console.archive import Archive
from console.facts import ArchivedEvent
from console.spans import Span
from servicekit.errors import Unavailable

MAX_BATCH = 512
"""Writes per transaction at most."""


@dataclass(slots=True, kw_only=True)
class _Write:
    event: ArchivedEvent | None = None
    spans: Sequence[Span] = ()
    done: asyncio.Future[None] | None = None


class ArchiveWriter:
    """Batches writes; use as an async context manager with `run` going."""

    def __init__(self, archive: Archive, *, max_waiting: int = 2048) -> None:
        """Takes over the archive: nobody else may write to it.

        Args:
            archive: Where to write.
            max_waiting: Writes that may wait before callers do.
        """
        self._archive = archive
        self._queue: asyncio.Queue[_Write | None] = asyncio.Queue(max_waiting)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")
        self._error: BaseException | None = None
        self._closing = False
        self.num_stored = 0
        """New events stored so far."""

    @property
    def failed(self) -> bool:
        """Whether a write went wrong, so that no other will be taken."""
        return self._error is not None

    async def put_event(self, event: ArchivedEvent) -> None:
        """Hands over an event; returns before it is stored (the cursor moves with it)."""
        self._refuse_when_closed()
        await self._queue.put(_Write(event=event))

    async def put_spans(self, spans: Sequence[Span]) -> None:
        """Stores spans; returns when they are stored.

        Raises:
            Unavailable: the archive is closing or cannot write.
        """
        self._refuse_when_closed()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Write(spans=spans, done=done))
        if self._error is not None:
            # `run` has ended while this waited for room: nobody will answer.
            self._refuse_when_closed()
        await done

    async def mark_sealed(self, run_id: str, when: datetime) -> None:
        """Remembers that the stream's copy of a run was purged."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._archive.mark_sealed, run_id, when)

    async def flush(self) -> None:
        """Returns when everything handed over so far is stored."""
        await self.put_spans(())

    async def run(self) -> None:
        """Writes until `close`; raises what went wrong with the disk."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            writes = [write for write in batch if write is not None]
            try:
                await self._store(writes)
            except BaseException as err:
                self._fail(writes, err)
                raise
            if len(writes) < len(batch):
                return

    async def close(self) -> None:
        """Lets `run` write what waits and then return."""
        if not self._closing:
            self._closing = True
            await self._queue.put(None)

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the writing thread."""
        self._closing = True
        self._thread.shutdown(wait=True)

    async def _store(self, writes: Sequence[_Write]) -> None:
        events = [write.event for write in writes if write.event is not None]
        spans = [span for write in writes for span in write.spans]
        loop = asyncio.get_running_loop()
        self.num_stored += await loop.run_in_executor(
            self._thread, self._archive.write, events, spans
        )
        for write in writes:
            if write.done is not None and not write.done.done():
                write.done.set_result(None)

    def _fail(self, writes: Sequence[_Write], error: BaseException) -> None:
        self._error = error
        self._closing = True
        waiting = list(writes)
        while not self._queue.empty():
            later = self._queue.get_nowait()
            if later is not None:
                waiting.append(later)
        for write in waiting:
            if write.done is not None and not write.done.done():
                write.done.set_exception(Unavailable(f"the archive cannot write: {error}"))

    def _refuse_when_closed(self) -> None:
        if self._closing:
            reason = f"cannot write: {self._error}" if self._error else "is closing"
            raise Unavailable(f"the archive {reason}", retry_after_seconds=1.0)
