import asyncio
import sqlite3
from typing import Any

import pytest

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.convert import archived_event
from console.spans import Span
from console.writer import ArchiveWriter
from servicekit.errors import Unavailable


def span(number: int) -> Span:
    return Span(
        trace_id="ab" * 16,
        span_id=f"{number:016x}",
        service_name="s",
        name="n",
        start_ns=number,
        end_ns=number + 1,
    )


async def test_everything_handed_over_is_stored_before_close_returns(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    writer = ArchiveWriter(archive, max_waiting=4)
    async with writer, asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        for sequence, envelope in enumerate(demo.envelopes, start=1):
            await writer.put_event(archived_event(sequence, envelope))
        await writer.close()
    assert archive.cursor() == len(demo.envelopes)
    assert writer.num_stored == len(demo.envelopes)
    assert len(list(reader.run_events("run-1"))) == len(demo.envelopes)


async def test_put_spans_returns_once_they_are_stored(
    archive: Archive, reader: ArchiveReader
) -> None:
    writer = ArchiveWriter(archive)
    async with writer, asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        await asyncio.gather(*(writer.put_spans([span(i)]) for i in range(100)))
        assert len(reader.spans("ab" * 16)) == 100
        await writer.close()
    with pytest.raises(Unavailable, match="is closing"):
        await writer.put_spans([span(1)])


class FullDisk:
    """An archive whose disk is full."""

    def write(self, events: object, spans: object) -> int:
        raise sqlite3.OperationalError("database or disk is full")


async def test_a_full_disk_ends_the_writer_and_tells_those_who_wait() -> None:
    writer = ArchiveWriter(FullDisk())  # type: ignore[arg-type]
    async with writer:
        running = asyncio.create_task(writer.run())
        with pytest.raises(Unavailable, match="disk is full"):
            await writer.put_spans([span(1)])
        with pytest.raises(sqlite3.OperationalError):
            await running
        assert writer.failed
        with pytest.raises(Unavailable, match="cannot write: database or disk is full"):
            await writer.put_spans([span(2)])
        await writer.close()
