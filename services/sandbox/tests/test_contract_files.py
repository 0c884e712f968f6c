"""What every backend with files, archives or snapshots has to keep of `backends/protocol.py`."""

import io
import itertools
import tarfile

import pytest
import pytest_asyncio
from backends_under_test import UNDER_TEST, rows
from rig import Rig, running_rig

from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import MIB, BoxFile, Command, Feature, FileKind
from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument, NotFound, OutOfRange

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=rows())
async def running(request, tmp_path_factory, suite_maker, use):
    """One manager over each backend for the whole suite."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    async with running_rig(name, UNDER_TEST[name], folder, suite_maker, use) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(running: Rig):
    """The manager, without sandboxes before and after."""
    yield running
    await running.clear()


@pytest_asyncio.fixture(loop_scope="module")
async def box(rig: Rig):
    """A sandbox of a backend that has archives, and so files."""
    rig.need(Feature.ARCHIVES)
    return await rig.create()


MODE = "python3 -c 'import os, sys; print(oct(os.stat(sys.argv[1]).st_mode)[-3:])'"
"""Prints a path's mode; stat of new coreutils asks for more than an old gVisor answers."""


async def sh(box, script: str) -> bytes:
    command = Command(exec_id=f"f{next(_numbers)}", argv=("sh", "-c", script), timeout_seconds=20.0)
    outcome = await box.run(command, DEFAULT_ENV, None)
    assert outcome.exit_code == 0, outcome
    return outcome.stdout


def _member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type = kind
    for field, value in fields.items():
        setattr(header, field, value)
    return header


def _archive(rig: Rig, *members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]):
    """Write an archive where the manager keeps them."""
    path = rig.scratch / f"{next(_numbers)}.tar"
    with tarfile.open(path, mode="w") as archive:
        for member in members:
            header, content = member if isinstance(member, tuple) else (member, b"")
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


def _read(path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}


async def test_a_file_is_written_whole_and_read_in_parts(box):
    content = bytes(range(256)) * 1000
    await box.write_file(BoxFile(path="/work/a/b/c", content=content, mode=0o750))
    await box.write_file(BoxFile(path="/work/a/b/c", content=content[::-1], mode=0o640))
    assert await sh(box, f"wc -c < /work/a/b/c; {MODE} /work/a/b/c") == b"256000\n640\n"
    read = await box.read_file("/work/a/b/c", 1000, 50)
    assert (read.content, read.size_bytes) == (content[::-1][1000:1050], 256_000)
    for path, kind in (("/work/none", NotFound), ("/work/a", InvalidArgument)):
        with pytest.raises(kind):
            await box.read_file(path, 0, 0)


async def test_a_folder_is_listed_in_order(box):
    await sh(box, "mkdir -p /work/l/d && cd /work/l && echo 1 > b && chmod 640 b && ln -s ../x A")
    seen = await box.list_files("/work/l")
    assert [entry.name for entry in seen] == ["A", "b", "d"]
    kinds = [FileKind.LINK, FileKind.FILE, FileKind.FOLDER]
    assert [entry.kind for entry in seen] == kinds
    assert seen[0].link_target == "../x"
    assert (seen[1].size_bytes, seen[1].mode) == (2, 0o640)
    for entry in seen:
        one = await box.stat_file(f"/work/l/{entry.name}")
        assert (one.name, one.kind, one.mode) == (entry.name, entry.kind, entry.mode)
    for call, kind in (
        (box.list_files("/work/none"), NotFound),
        (box.list_files("/work/l/b"), InvalidArgument),
        (box.stat_file("/work/none"), NotFound),
    ):
        with pytest.raises(kind):
            await call


async def test_an_archive_goes_in_and_comes_out(rig: Rig, box):
    content = bytes(range(256)) * 5000
    archive = _archive(
        rig,
        _member("d", tarfile.DIRTYPE, mode=0o755),
        (_member("d/f", mode=0o755), content),
        (_member("e" * 120), b"long name"),
        _member("l", tarfile.SYMTYPE, linkname="d/f"),
    )
    await box.unpack("/work/in", archive)
    assert await sh(box, f"cd /work/in && wc -c < l && {MODE} d/f") == b"1280000\n755\n"
    packed = rig.scratch / "packed.tar"
    await box.pack("/work/in", packed, 100 * MIB)
    found = {name.removeprefix("./"): data for name, data in _read(packed).items()}
    assert found == {"d/f": content, "e" * 120: b"long name"}
    one = rig.scratch / "one.tar"
    await box.pack("/work/in/d/f", one, 100 * MIB)
    assert list(_read(one).values()) == [content]


HOSTILE = {
    "absolute": lambda: [(_member("/tmp/out"), b"x")],
    "up": lambda: [(_member("../out"), b"x")],
    "up inside": lambda: [(_member("a/../../out"), b"x")],
    "through a link": lambda: [
        _member("l", tarfile.SYMTYPE, linkname="/tmp"),
        (_member("l/out"), b"x"),
    ],
    "through a link up": lambda: [
        _member("l", tarfile.SYMTYPE, linkname="../../tmp"),
        (_member("l/out"), b"x"),
    ],
    "a hard link out": lambda: [_member("h", tarfile.LNKTYPE, linkname="/etc/passwd")],
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_nothing_is_unpacked_outside_the_folder(rig: Rig, box, what):
    with pytest.raises(InvalidArgument):
        await box.unpack("/work/in", _archive(rig, *HOSTILE[what]()))
    assert await sh(box, "for f in /tmp/out /work/out; do [ ! -e $f ] || echo $f; done") == b""


async def test_what_cannot_be_unpacked_or_packed_says_why(rig: Rig, box):
    no_archive = rig.scratch / "none.tar"
    no_archive.write_bytes(b"no archive" * 1000)
    with pytest.raises(InvalidArgument):
        await box.unpack("/work/in", no_archive)
    with pytest.raises(NotFound):
        await box.pack("/work/none", rig.scratch / "x.tar", MIB)
    await sh(box, "mkdir -p /work/p && head -c 300000 /dev/zero > /work/p/f")
    with pytest.raises(OutOfRange):
        await box.pack("/work/p", rig.scratch / "y.tar", 100_000)


async def test_an_archive_that_does_not_fit_is_the_workloads_or_callers_doing(rig: Rig, box):
    if not rig.name.startswith(("local", "runsc")):
        pytest.skip(f"{rig.name} has no disk of bounded size here")
    with pytest.raises(FailedPrecondition) as caught:
        await box.unpack("/work/in", _archive(rig, (_member("big"), bytes(80 * MIB))))
    assert caught.value.attributable in ("workload", "client")


async def test_a_snapshot_brings_back_what_was_written_and_removed(rig: Rig):
    rig.need(Feature.SNAPSHOTS)
    box = await rig.create()
    await sh(
        box,
        "cd /work && mkdir d && echo kept > d/f && chmod 750 d/f && ln -s d/f l && echo x > gone && rm gone",
    )
    saved = rig.scratch / "saved"
    await box.snapshot(saved)
    await sh(box, "echo later > /work/later")
    again = await rig.create(snapshot=saved)
    assert again.rootfs_digest == box.rootfs_digest
    assert await sh(again, f"cd /work && ls && cat l && {MODE} d/f") == b"d\nl\nkept\n750\n"
    await sh(again, "echo changed > /work/d/f")
    assert await sh(box, "cat /work/d/f") == b"kept\n"


async def test_what_does_not_exist_any_more_makes_no_sandbox(rig: Rig):
    rig.need(Feature.SNAPSHOTS)
    before = rig.backend.live_count()
    # The manager looks before it asks; here it went in between.
    with pytest.raises((HoneError, FileNotFoundError)):
        await rig.create(snapshot=rig.scratch / "none")
    assert rig.backend.live_count() == before
