import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from hone.common.v1 import blob_pb2
from hone.events.v1 import events_pb2

from console.archive import Archive
from console.archive_reader import ArchiveReader
from console.audit import AuditReport, audit_run
from console.consumer import LogArchiver
from console.convert import stored_row
from console.writer import ArchiveWriter
from eventbus.errors import EventUnreadable
from eventbus.memory_bus import MemoryBus
from servicekit.errors import DataLoss


async def nothing() -> None:
    """Ends no other source of writes."""


class Follower:
    """An archiver under test, at a time of its own."""

    def __init__(self, archive: Archive, reader: ArchiveReader, bus: MemoryBus) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.stop = asyncio.Event()
        self.archive, self.reader, self.bus = archive, reader, bus
        self.writer = ArchiveWriter(archive)

        async def connect() -> MemoryBus:
            return bus

        self.archiver = LogArchiver(
            self.writer,
            reader,
            connect=connect,
            cursor=archive.cursor(),
            audit=self.audit,
            clock=lambda: self.now,
            seal_after_seconds=60.0,
        )

    def audit(self, run_id: str) -> AuditReport:
        return audit_run(map(stored_row, self.reader.run_log(run_id)))

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Follower"]:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(self.archiver.run(self.stop, before_last_write=nothing))
            yield self
            self.stop.set()

    async def reach(self, sequence: int) -> None:
        """Waits until the archive holds an event of the stream."""
        while self.archive.cursor() < sequence:
            await self.writer.flush()


async def publish(bus: MemoryBus, envelopes: list[events_pb2.Envelope]) -> None:
    for envelope in envelopes:
        await bus.publish(envelope)


async def test_events_before_and_after_the_start_are_archived(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    bus = MemoryBus()
    await publish(bus, demo.envelopes[:5])
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(5)
        await publish(bus, demo.envelopes[5:])
        await follower.reach(len(demo.envelopes))
    assert len(list(reader.run_events("run-1"))) == len(demo.envelopes)


async def test_a_second_start_goes_on_at_the_cursor(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    bus = MemoryBus()
    await publish(bus, demo.envelopes[:5])
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(5)
    longer = MemoryBus()
    await publish(longer, demo.envelopes)
    async with Follower(archive, reader, longer).following() as follower:
        await follower.reach(len(demo.envelopes))
    assert follower.writer.num_stored == len(demo.envelopes) - 5


async def test_a_stream_made_anew_is_read_from_its_beginning(
    archive: Archive, reader: ArchiveReader, demo: Any, run_writer: Any
) -> None:
    old = MemoryBus()
    await publish(old, demo.envelopes)
    async with Follower(archive, reader, old).following() as follower:
        await follower.reach(len(demo.envelopes))
    run_writer.run_id = "run-2"
    run_writer.start()
    new = MemoryBus()
    await publish(new, run_writer.envelopes)
    async with Follower(archive, reader, new).following() as follower:
        while reader.run("run-2") is None:
            await follower.writer.flush()
    assert archive.cursor() == 1
    assert reader.run("run-1") is not None


async def test_a_record_given_by_blob_is_fetched_and_stored(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    bus = MemoryBus()
    envelope = run_writer.finish("r" * 36)
    data = envelope.rollout_finished.inline.SerializeToString()
    ref = await (await bus.blobs()).put("records/r", data)
    envelope.rollout_finished.blob.CopyFrom(ref)
    await bus.publish(envelope)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(1)
    (stored,) = reader.rollout_events("r" * 36)
    assert stored.record == data
    entry = reader.rollout("r" * 36)
    assert entry is not None and entry.sampled_token_count == 5


async def test_a_record_whose_blob_is_gone_is_said_and_the_log_goes_on(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    bus = MemoryBus()
    run_writer.request("r" * 36)
    envelope = run_writer.finish("r" * 36)
    ref = await (await bus.blobs()).put("other", b"x")
    gone = blob_pb2.BlobRef(bucket=ref.bucket, name="gone", size_bytes=1, sha256="00")
    envelope.rollout_finished.blob.CopyFrom(gone)
    run_writer.score("r" * 36, 1.0)
    await publish(bus, run_writer.envelopes)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(len(run_writer.envelopes))
    findings = follower.audit("run-1").findings
    assert [f.rule for f in findings] == ["record_unreadable"]
    assert "gone" in findings[0].detail


async def test_a_completed_run_with_a_clean_audit_leaves_the_stream_after_its_time(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    bus = MemoryBus()
    run_writer.start()
    run_writer.request("r" * 36)
    run_writer.begin("r" * 36)
    run_writer.finish("r" * 36)
    run_writer.score("r" * 36, 1.0)
    run_writer.end()
    await publish(bus, run_writer.envelopes)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(len(run_writer.envelopes))
        await follower.archiver.seal_due_runs(bus)
        assert len([e async for e in bus.read()]) == len(run_writer.envelopes)
        follower.now += timedelta(seconds=120)
        await follower.archiver.seal_due_runs(bus)
        assert [e async for e in bus.read()] == []
    assert len(list(reader.run_events("run-1"))) == len(run_writer.envelopes)
    assert reader.unsealed_runs(completed_before_us=1 << 60) == []


async def test_a_run_whose_audit_is_not_clean_stays_in_the_stream(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    bus = MemoryBus()
    run_writer.start()
    run_writer.request("r" * 36)
    run_writer.end()
    await publish(bus, run_writer.envelopes)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(3)
        follower.now += timedelta(days=1)
        await follower.archiver.seal_due_runs(bus)
        assert len([e async for e in bus.read()]) == 3


class HoledBus(MemoryBus):
    """Has an unreadable message far beyond a purged gap, and cannot purge."""

    unreadable = 500_000

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []

    async def read(self, *args: Any, start_sequence: int = 0, **options: Any) -> Any:
        self.starts.append(start_sequence)
        if len(self.starts) == 1:
            raise EventUnreadable(sequence=self.unreadable, subject="s", problem="no protobuf")
        async with aclosing(super().read(*args, **options)) as events:
            async for event in events:
                yield event

    async def purge_run(self, run_id: str) -> int:
        raise DataLoss("sequence 7 is not an event")


async def test_an_unreadable_message_is_jumped_over_at_once(
    archive: Archive, reader: ArchiveReader, demo: Any
) -> None:
    bus = HoledBus()
    await publish(bus, demo.envelopes)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(len(demo.envelopes))
    assert bus.starts == [0, HoledBus.unreadable + 1]


async def test_a_run_that_cannot_be_purged_stays_and_archiving_goes_on(
    archive: Archive, reader: ArchiveReader, run_writer: Any
) -> None:
    bus = HoledBus()
    run_writer.start()
    run_writer.end()
    await publish(bus, run_writer.envelopes)
    async with Follower(archive, reader, bus).following() as follower:
        await follower.reach(2)
        follower.now += timedelta(days=1)
        await follower.archiver.seal_due_runs(bus)
        run_writer.run_id = "run-2"
        run_writer.start()
        await publish(bus, run_writer.envelopes[2:])
        await follower.reach(3)
    assert reader.unsealed_runs(completed_before_us=1 << 60) == ["run-1"]


async def test_stopping_while_the_bus_is_away_ends_at_once(
    archive: Archive, reader: ArchiveReader
) -> None:
    connecting = asyncio.Event()

    async def never() -> MemoryBus:
        connecting.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    stop = asyncio.Event()
    archiver = LogArchiver(
        ArchiveWriter(archive),
        reader,
        connect=never,
        cursor=0,
        audit=lambda run_id: audit_run([]),
        clock=lambda: datetime(2026, 3, 1, tzinfo=UTC),
        seal_after_seconds=0.0,
    )
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(archiver.run(stop, before_last_write=nothing))
        await connecting.wait()
        stop.set()
