"""Follows the event stream from the stored cursor into the archive, and lets sealed runs leave the stream.

The one file of the console that knows the bus. Reading never acknowledges anything: the cursor lives in the
archive, and moves in the transaction that stores the event.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta

from console.archive import microseconds
from console.archive_reader import ArchiveReader
from console.audit import AuditReport
from console.convert import archived_event
from console.facts import ArchivedEvent
from console.writer import ArchiveWriter
from eventbus.blobs import Blobs
from eventbus.bus import EventBus, LoggedEvent
from eventbus.errors import EventUnreadable, LogTruncated
from servicekit.errors import DataLoss, HoneError, InvalidArgument, NotFound, Unavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
SEAL_EVERY_SECONDS = 60.0


class LogArchiver:
    """Keeps the archive up with the stream."""

    def __init__(
        self,
        writer: ArchiveWriter,
        reader: ArchiveReader,
        *,
        connect: Callable[[], Awaitable[EventBus]],
        cursor: int,
        audit: Callable[[str], AuditReport],
        clock: Callable[[], datetime],
        seal_after_seconds: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            writer: Where events go; this runs it.
            reader: To find runs to seal.
            connect: Returns the bus once it is there.
            cursor: Last sequence that the archive holds.
            audit: Checks one run.
            clock: Says what time it is, in UTC.
            seal_after_seconds: How long a completed run stays in the stream; 0 means for ever.
        """
        self._writer = writer
        self._reader = reader
        self._connect = connect
        self._cursor = cursor
        self._audit = audit
        self._clock = clock
        self._seal_after = timedelta(seconds=seal_after_seconds)
        self._kept: set[str] = set()

    async def run(
        self, stop: asyncio.Event, *, before_last_write: Callable[[], Awaitable[None]]
    ) -> None:
        """Archives until stopped, then stores what still waits.

        Args:
            stop: Ends it.
            before_last_write: Called when no more events come, to end other sources of writes.
        """
        async with self._writer, asyncio.TaskGroup() as group:
            group.create_task(self._writer.run(), name="write")
            await self._archive_until(stop)
            await before_last_write()
            await self._writer.close()

    async def _archive_until(self, stop: asyncio.Event) -> None:
        bus = await _unless_stopped(self._connect(), stop)
        if bus is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                if self._seal_after:
                    group.create_task(self._seal_runs(bus, stop), name="seal")
                await self.follow(bus, stop)
        finally:
            await bus.close()

    async def follow(self, bus: EventBus, stop: asyncio.Event) -> None:
        """Hands every event after the cursor to the writer, then each as it comes, until stopped.

        A stream that has lost what the cursor points at (purged, or made anew) is read from its beginning: what the
        archive holds already changes nothing.
        """
        blobs = await bus.blobs()
        start = self._cursor + 1 if self._cursor else 0
        while not stop.is_set():
            try:
                async with aclosing(
                    bus.read(start_sequence=start, follow=True, stop=stop)
                ) as events:
                    async for logged in events:
                        await self._writer.put_event(await _archived(logged, blobs))
                        start = logged.sequence + 1
            except LogTruncated as err:
                log.warning("stream does not hold the cursor", extra={"detail": err.message})
                start = 0
            except EventUnreadable as err:
                # One message that is no event must not hide all that come after it.
                log.error(
                    "message skipped", extra={"sequence": err.sequence, "detail": err.message}
                )
                start = err.sequence + 1
            except Unavailable as err:
                if not err.retryable or self._writer.failed:
                    raise
                log.warning("stream is away", extra={"detail": err.message})
                await _pause(stop, RETRY_SECONDS)

    async def _seal_runs(self, bus: EventBus, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.seal_due_runs(bus)
            await _pause(stop, SEAL_EVERY_SECONDS)

    async def seal_due_runs(self, bus: EventBus) -> None:
        """Purges from the stream what completed long enough ago and passes its audit."""
        before_us = microseconds(self._clock() - self._seal_after)
        due = await asyncio.to_thread(self._reader.unsealed_runs, completed_before_us=before_us)
        for run_id in due:
            report = await asyncio.to_thread(self._audit, run_id)
            if not report.findings:
                await self._seal(bus, run_id)
            elif run_id not in self._kept:
                self._kept.add(run_id)
                log.warning(
                    "run stays in the stream: its audit is not clean",
                    extra={"run_id": run_id, "findings": len(report.findings)},
                )

    async def _seal(self, bus: EventBus, run_id: str) -> None:
        try:
            num_events = await bus.purge_run(run_id)
        except HoneError as err:
            # The run waits for the next round: archiving must not end because a purge went wrong.
            log.warning("run not purged", extra={"run_id": run_id, "detail": err.message})
            return
        await self._writer.mark_sealed(run_id, self._clock())
        log.info("run sealed", extra={"run_id": run_id, "num_events": num_events})


async def _archived(logged: LoggedEvent, blobs: Blobs) -> ArchivedEvent:
    envelope = logged.envelope
    record: bytes | None = None
    record_error = ""
    finished = envelope.rollout_finished
    if envelope.WhichOneof("payload") == "rollout_finished" and finished.HasField("blob"):
        try:
            record = await blobs.get(finished.blob)
        except (NotFound, DataLoss, InvalidArgument) as err:
            # Gone for good: the event is worth keeping without it, and the audit says so.
            log.error(
                "record lost", extra={"rollout_id": envelope.rollout_id, "detail": err.message}
            )
            record_error = err.message
    return archived_event(logged.sequence, envelope, record=record, record_error=record_error)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _unless_stopped(connecting: Awaitable[EventBus], stop: asyncio.Event) -> EventBus | None:
    """Waits for the bus as long as it takes, or until stopped."""
    bus = asyncio.ensure_future(connecting)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({bus, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return bus.result() if bus.done() else None
    finally:
        for future in (bus, stopped):
            if not future.done():
                future.cancel()
        await asyncio.gather(bus, stopped, return_exceptions=True)
