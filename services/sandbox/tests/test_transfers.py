"""Archives and snapshots through the manager, over a scripted box: nothing is left on the disk, however a call ends."""

import asyncio
import hashlib
import time
from pathlib import Path

import pytest

from sandbox.storage.spool import room_is_ours
from sandbox.types import ArchiveEnd, Caller, Cause, Purpose, Role
from servicekit.errors import (
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)


@pytest.fixture
async def limited(backend, suite_maker, tmp_path):
    """A manager with small limits."""
    made = suite_maker(
        backend,
        tmp_path,
        time.time,
        snapshots_bytes=20,
        transfer_limits={
            "parallel": 1,
            "queue_seconds": 0.05,
            "transfer_seconds": 0.3,
            "max_archive_bytes": 100,
        },
    )
    await made.manager.start()
    yield made
    await made.manager.close()


class Work:
    """One rollout's sandbox and the calls about it."""

    def __init__(self, suite, info, box, folder: Path) -> None:
        self.suite, self.info, self.box = suite, info, box
        self.folder = folder
        self.rollout_id = info.key.rollout_id
        self.caller = Caller(rollout_id=self.rollout_id, epoch=1, role=Role.AGENT)
        self.grader = Caller(rollout_id=self.rollout_id, epoch=1, role=Role.GRADER)

    @classmethod
    async def begin(cls, suite, folder: Path, **changes):
        info = (await suite.create(suite.rollout_id(), **changes)).info
        return cls(suite, info, suite.backend.boxes[info.sandbox_id], folder)

    def left(self) -> list[str]:
        """Name what lies on the manager's disk for calls under way."""
        spool = self.folder / "spool"
        unfinished = (self.folder / "snapshots").glob(".new-*")
        return [path.name for path in (*spool.iterdir(), *unfinished)]

    async def upload(self, pieces) -> int:
        return await self.suite.transfers.upload_tar(
            self.caller, self.rollout_id, self.info.sandbox_id, "/work/in", pieces
        )

    def download(self):
        return self.suite.transfers.download_tar(
            self.caller, self.rollout_id, self.info.sandbox_id, "/work/out"
        )

    async def save(self, snapshot_id: str = "s-1", caller: Caller | None = None):
        return await self.suite.transfers.create_snapshot(
            caller or self.caller, self.rollout_id, self.info.sandbox_id, snapshot_id
        )


@pytest.fixture
async def work(suite, tmp_path) -> Work:
    return await Work.begin(suite, tmp_path)


async def _pieces(*pieces: bytes):
    for piece in pieces:
        yield piece


async def _endless(begun: asyncio.Event):
    yield b"x"
    begun.set()
    await asyncio.Event().wait()


async def test_an_archive_goes_up_and_nothing_of_it_is_left(work):
    assert await work.upload(_pieces(b"ab", b"", b"cd")) == 4
    assert work.box.unpacked == [("/work/in", b"abcd")]
    assert work.left() == []


async def test_an_archive_comes_down_with_its_digest(work):
    work.box.archive = bytes(range(256)) * 10_000
    events = [event async for event in work.download()]
    assert b"".join(events[:-1]) == work.box.archive
    digest = hashlib.sha256(work.box.archive).hexdigest()
    assert events[-1] == ArchiveEnd(size_bytes=2_560_000, sha256=digest)
    assert len(events) == 4
    assert work.left() == []


async def test_a_caller_that_gives_up_leaves_nothing(work):
    begun = asyncio.Event()
    upload = asyncio.create_task(work.upload(_endless(begun)))
    await begun.wait()
    assert len(work.left()) == 1
    upload.cancel()
    await asyncio.wait([upload])
    assert work.left() == []
    for call in (work.upload(_pieces(b"x")), anext(work.download()), work.save()):
        work.box.release.clear()
        work.box.inside.clear()
        task = asyncio.ensure_future(call)
        await work.box.inside.wait()
        assert len(work.left()) == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert work.left() == []
    work.box.release.set()
    stream = work.download()
    await anext(stream)
    assert work.left() == []  # while it is read it has no name
    await stream.aclose()


@pytest.mark.parametrize("what", ["upload", "download", "save"])
async def test_a_sandbox_that_ends_meanwhile_ends_the_call(work, what):
    calls = {
        "upload": lambda: work.upload(_pieces(b"x")),
        "download": lambda: anext(work.download()),
        "save": work.save,
    }
    work.box.release.clear()
    task = asyncio.ensure_future(calls[what]())
    await work.box.inside.wait()
    entry = work.suite.fleet.find(work.info.sandbox_id)
    await work.suite.fleet.destroy(entry, Cause.LIFETIME)
    work.box.release.set()
    with pytest.raises(FailedPrecondition) as caught:
        await task
    assert caught.value.reason == "ROLLOUT_TIMEOUT"
    assert work.left() == []


async def test_the_lease_holds_while_an_archive_is_under_way(work, clock):
    work.box.release.clear()
    task = asyncio.ensure_future(work.upload(_pieces(b"x")))
    await work.box.inside.wait()
    clock.now += 1000
    await work.suite.fleet.expire()
    assert not work.box.destroyed
    work.box.release.set()
    await task
    clock.now += 61
    await work.suite.fleet.expire()
    assert work.box.destroyed


async def test_an_archive_has_a_largest_size(limited, tmp_path):
    work = await Work.begin(limited, tmp_path)
    assert await work.upload(_pieces(b"x" * 60, b"y" * 40)) == 100
    with pytest.raises(InvalidArgument, match="more than 100"):
        await work.upload(_pieces(b"x" * 60, b"y" * 41))
    assert work.left() == []


async def test_a_caller_that_stalls_loses_its_place(limited, tmp_path):
    work = await Work.begin(limited, tmp_path)
    begun = asyncio.Event()
    stalled = asyncio.create_task(work.upload(_endless(begun)))
    await begun.wait()
    with pytest.raises(ResourceExhausted) as full:
        await work.upload(_pieces(b"x"))
    assert (full.value.reason, full.value.retry_after_seconds) == ("TRANSFERS_FULL", 1.0)
    with pytest.raises(DeadlineExceeded) as late:
        await stalled
    assert (late.value.reason, late.value.attributable) == ("TRANSFER_TIMEOUT", "client")
    assert work.left() == []
    stream = work.download()
    await anext(stream)  # and then nothing more is taken for a while
    while limited.transfers.full:
        await asyncio.sleep(0.01)
    await work.upload(_pieces(b"x"))
    with pytest.raises(DeadlineExceeded):
        await anext(stream)


async def test_a_snapshot_is_kept_once_under_its_id(work):
    work.box.archive = b"state"
    first = await work.save()
    assert (first.size_bytes, first.sha256) == (5, hashlib.sha256(b"state").hexdigest())
    assert first.path.read_bytes() == b"state"
    work.box.archive = b"other"
    assert await work.save() == first
    both = await asyncio.gather(work.save("s-2"), work.save("s-2"))
    assert both[0] == both[1]
    assert len(work.box.paths) == 2
    other = await work.suite.create(work.rollout_id, sequence=1)
    with pytest.raises(AlreadyExists):
        await work.suite.transfers.create_snapshot(
            work.caller, work.rollout_id, other.info.sandbox_id, "s-1"
        )


async def test_a_sandbox_starts_from_a_snapshot(work, backend):
    saved = await work.save()
    made = await work.suite.create(work.rollout_id, sequence=1, snapshot_id="s-1")
    assert backend.specs[-1].snapshot == saved.path
    assert not made.info.warm
    work.suite.transfers.delete_snapshot(work.caller, work.rollout_id, "s-1")
    again = await work.suite.create(work.rollout_id, sequence=1, snapshot_id="s-1")
    assert not again.created  # it lives; what it started from does not matter any more
    with pytest.raises(NotFound) as caught:
        await work.suite.create(work.rollout_id, sequence=2, snapshot_id="s-1")
    assert caught.value.reason == "SNAPSHOT_UNKNOWN"
    work.suite.transfers.delete_snapshot(work.caller, work.rollout_id, "s-1")
    assert not saved.path.exists()


async def test_a_grader_starts_from_the_agents_snapshot_and_an_agent_not_from_the_graders(work):
    await work.save("of-the-agent")
    created = await work.suite.create(
        work.rollout_id, purpose=Purpose.GRADE, snapshot_id="of-the-agent"
    )
    grading = work.suite.transfers.create_snapshot(
        work.grader, work.rollout_id, created.info.sandbox_id, "of-the-grader"
    )
    await grading
    with pytest.raises(PermissionDenied) as caught:
        await work.suite.create(work.rollout_id, sequence=1, snapshot_id="of-the-grader")
    assert caught.value.reason == "WRONG_ROLE"
    spec = work.suite.spec(work.rollout_id, sequence=1, snapshot_id="of-the-grader")
    with pytest.raises(PermissionDenied, match="grading box's"):  # nor by a grader's hand
        await work.suite.manager.create(work.grader, spec)
    with pytest.raises(PermissionDenied):
        work.suite.transfers.delete_snapshot(work.caller, work.rollout_id, "of-the-grader")
    work.suite.transfers.delete_snapshot(work.grader, work.rollout_id, "of-the-grader")


async def test_a_snapshot_of_another_rollout_is_none(work):
    await work.save()
    with pytest.raises(NotFound):
        await work.suite.create(work.suite.rollout_id(), snapshot_id="s-1")


async def test_a_snapshot_of_another_root_is_refused(work, backend):
    await work.save()
    backend.digest = "sha256:1"
    with pytest.raises(FailedPrecondition) as caught:
        await work.suite.create(work.rollout_id, sequence=1, snapshot_id="s-1")
    assert caught.value.reason == "SNAPSHOT_MISMATCH"
    assert backend.live_count() == 1


async def test_a_snapshot_that_was_changed_on_disk_is_data_loss(work):
    saved = await work.save()
    saved.path.write_bytes(b"Archive")
    with pytest.raises(DataLoss) as caught:
        await work.suite.create(work.rollout_id, sequence=1, snapshot_id="s-1")
    assert caught.value.attributable == "infra"


async def test_snapshots_have_a_largest_size_together(limited, tmp_path):
    work = await Work.begin(limited, tmp_path)
    work.box.archive = b"x" * 12
    await work.save("s-1")
    with pytest.raises(ResourceExhausted) as caught:
        await work.save("s-2")
    assert caught.value.reason == "SNAPSHOTS_FULL"
    assert work.left() == []
    limited.transfers.delete_snapshot(work.caller, work.rollout_id, "s-1")
    await work.save("s-2")
    assert limited.snapshots.used_bytes == 12


async def test_snapshots_end_with_their_rollout(work, tmp_path):
    other = await Work.begin(work.suite, tmp_path)
    saved, kept = await work.save(), await other.save()
    work.box.release.clear()
    work.box.inside.clear()
    late = asyncio.ensure_future(work.save("late"))
    await work.box.inside.wait()
    ending = asyncio.ensure_future(work.suite.fleet.end_rollout(work.rollout_id))
    await asyncio.wait([ending])
    work.box.release.set()
    with pytest.raises(HoneError):
        await late
    assert not saved.path.exists()
    assert kept.path.exists()
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [other.rollout_id]


async def test_snapshots_outlive_a_manager_but_not_their_rollout_nor_a_day(
    work, tmp_path, suite_maker, backend, clock
):
    ended, old = await Work.begin(work.suite, tmp_path), await Work.begin(work.suite, tmp_path)
    kept, of_ended, of_old = await work.save(), await ended.save(), await old.save()
    work.suite.records.end_rollout(ended.rollout_id)  # and then it dies before the snapshot goes
    broken = tmp_path / "snapshots" / work.rollout_id / "broken"
    unfinished = tmp_path / "snapshots" / ".new-1"
    for folder in (broken, unfinished):
        folder.mkdir()
        (folder / "state").write_bytes(b"")
    (tmp_path / "spool/left").write_bytes(b"")
    await work.suite.manager.close()
    after = suite_maker(backend, tmp_path, clock)
    after.ids = work.suite.ids
    await after.manager.start()
    assert after.snapshots.find(work.rollout_id, "s-1") == kept
    assert not of_ended.path.exists()
    assert not broken.exists()
    assert not unfinished.exists()
    assert not (tmp_path / "spool/left").exists()
    clock.now += 90_000
    assert of_old.path.exists()
    again = await Work.begin(after, tmp_path)
    await again.save()
    assert not of_old.path.exists()
    await after.manager.close()


async def test_a_stored_rollout_is_graded_again_after_its_outcome(work, clock):
    await work.suite.fleet.end_rollout(work.rollout_id)
    with pytest.raises(FailedPrecondition) as caught:
        await work.suite.create(work.rollout_id, sequence=1)
    assert caught.value.reason == "ROLLOUT_ENDED"
    made = await work.suite.create(work.rollout_id, purpose=Purpose.GRADE)
    await work.suite.fleet.end_rollout(work.rollout_id)  # the same outcome, told once more
    sandbox_id = made.info.sandbox_id
    assert (await work.suite.manager.get(work.grader, work.rollout_id, sandbox_id)) is not None
    with pytest.raises(FailedPrecondition) as caught:
        await work.suite.transfers.create_snapshot(
            work.grader, work.rollout_id, sandbox_id, "too-late"
        )
    assert caught.value.reason == "ROLLOUT_ENDED"
    clock.now += 61
    await work.suite.fleet.expire()
    assert work.suite.events.causes(sandbox_id) == ["idle"]


async def test_a_grading_box_that_was_lost_is_made_anew(work):
    first = await work.suite.create(work.rollout_id, purpose=Purpose.GRADE)
    await work.suite.fleet.destroy(work.suite.fleet.find(first.info.sandbox_id), Cause.MANAGER_LOST)
    with pytest.raises(Unavailable) as caught:
        await work.suite.manager.get(work.grader, work.rollout_id, first.info.sandbox_id)
    assert caught.value.reason == "SANDBOX_LOST"
    second = await work.suite.create(work.rollout_id, purpose=Purpose.GRADE)
    assert second.created
    assert second.info.sandbox_id != first.info.sandbox_id


def test_a_full_disk_of_the_manager_is_ours():
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(ResourceExhausted) as caught,
        room_is_ours(),
    ):
        full.write(b"x")
    assert (caught.value.reason, caught.value.attributable) == ("MANAGER_DISK_FULL", "infra")


async def test_a_sandbox_that_dies_is_told_as_lost(work):
    work.box.release.clear()
    task = asyncio.ensure_future(work.upload(_pieces(b"x")))
    await work.box.inside.wait()
    work.box.destroyed = True
    work.box.release.set()
    with pytest.raises(Unavailable) as caught:
        await task
    assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
