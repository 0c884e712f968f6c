"""Files, archives and snapshots on the embedded backend, with workloads that do not want them to work."""

import asyncio
import gzip
import io
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.backends.local.backend import LocalBackend
from sandbox.types import MIB, Cause, FileKind, Limits, Purpose, Template
from servicekit.errors import (
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    OutOfRange,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

WALK = """
import hashlib, os, stat
own = os.lstat("/").st_dev
def look(path):
    status = os.lstat(path)
    if status.st_dev != own:
        return
    content = ""
    if stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(open(path, "rb").read()).hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    links = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
    print(ascii((path, status.st_mode, status.st_uid, status.st_gid, links, status.st_mtime_ns, content)))
    if stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            look(os.path.join(path, name))
look("/")
"""
"""Prints all that the sandbox's own disk is."""

MESS = """
import os, random
rng = random.Random(5)
folders = ["/work"]
for number in range(40):
    folders.append(os.path.join(rng.choice(folders), f"d{number}"))
    os.mkdir(folders[-1])
for number in range(150):
    path = os.path.join(rng.choice(folders), f"f{number}")
    with open(path, "wb") as file:
        file.write(rng.randbytes(rng.choice([0, 1, 512, 9000])))
    os.chmod(path, rng.choice([0o644, 0o755, 0o4755, 0o600]))
    if number % 9 == 0:
        os.link(path, os.path.join(rng.choice(folders), f"hard{number}"))
    if number % 7 == 0:
        os.symlink(rng.choice(["/usr/bin/python3", "../x", path]), os.path.join(rng.choice(folders), f"l{number}"))
with open("/work/sparse", "wb") as file:
    file.truncate(30 << 20)
    file.seek(20 << 20)
    file.write(b"in the middle")
os.mkfifo("/work/fifo", 0o600)
open(b"/work/not \\xff utf-8", "w").close()
open("/work/line\\nbreak", "w").close()
os.remove("/etc/hosts")
os.rmdir("/srv")
os.chmod("/opt", 0o2700)
os.rename("/home", "/home-moved")
open("/etc/profile", "w").write("changed")
for folder in folders:
    os.utime(folder, ns=(1, rng.randrange(2 * 10**18)))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager_over_local(tmp_path_factory, suite_maker, starter):
    """One manager for all: starting one costs more than most of them."""
    folder = tmp_path_factory.mktemp("files")
    made = suite_maker(LocalBackend(folder), folder, time.time)
    await starter(made)
    made.folder = folder
    yield made
    await made.manager.close()


@pytest_asyncio.fixture(loop_scope="module")
async def real(manager_over_local):
    """The manager, without sandboxes before and after, and nothing left of any call."""
    yield manager_over_local
    await manager_over_local.fleet.destroy_all(Cause.CANCELLED)
    assert list((manager_over_local.folder / "spool").iterdir()) == []
    assert list((manager_over_local.folder / "snapshots").glob(".new-*")) == []


@pytest_asyncio.fixture(loop_scope="module")
async def box(real, use):
    """One real sandbox."""
    return use(real, (await real.create(real.rollout_id())).info)


@pytest.fixture
def host_folder():
    """A folder of the host that no sandbox has."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "secret").write_text("of the host")
        yield Path(folder)


def _limits(**changes: int) -> Limits:
    base = {"memory_bytes": 256 * MIB, "disk_bytes": 64 * MIB, "shm_bytes": 16 * MIB}
    return Limits(**(base | changes))  # type: ignore[arg-type]


def _archive(*entries: tuple[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in entries:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return target.getvalue()


def _gzip_of(*parts: tuple[bytes, int]) -> bytes:
    """Compress each part so many times over, without holding it all."""
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1) as file:
        for data, times in parts:
            for _ in range(times):
                file.write(data)
    return target.getvalue()


def _header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, size
    return header.tobuf(tarfile.GNU_FORMAT)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _temporary_names(box) -> bytes:
    return (await box.sh("find / -xdev -name '.hone-*'")).stdout


async def test_a_folder_is_listed_in_order_with_what_its_entries_are(box):
    await box.sh(
        "cd /work && mkdir d && echo 1 > b && chmod 640 b && touch -d @1000 b && ln -s ../x l && mkfifo p "
        "&& touch A 'line\nbreak'"
    )
    seen = await box.list_files("/work")
    assert [entry.name for entry in seen] == ["A", "b", "d", "l", "line\nbreak", "p"]
    kinds = [FileKind.FILE, FileKind.FILE, FileKind.FOLDER, FileKind.LINK, FileKind.FILE]
    assert [entry.kind for entry in seen] == [*kinds, FileKind.OTHER]
    assert (seen[1].size_bytes, seen[1].mode, seen[1].modify_time) == (2, 0o640, 1000.0)
    assert seen[3].link_target == "../x"
    assert await box.stat_file("/work/b") == seen[1]
    assert (await box.stat_file("/work/l")) == seen[3]
    assert (await box.stat_file("/")).kind is FileKind.FOLDER
    assert "python3" in [entry.name for entry in await box.list_files("/usr/bin")]
    with pytest.raises(NotFound):
        await box.list_files("/work/missing")
    with pytest.raises(InvalidArgument):
        await box.list_files("/work/b")


async def test_a_folder_that_is_too_large_is_not_listed(real, use):
    limits = _limits(memory_bytes=512 * MIB, disk_bytes=256 * MIB, max_inodes=120_000)
    box = use(real, (await real.create(real.rollout_id(), limits=limits)).info)
    script = "for i in range(100_001): open(f'/work/{i}', 'w').close()"
    assert (await box.python(script)).exit_code == 0
    with pytest.raises(OutOfRange):
        await box.list_files("/work")
    await box.sh("rm /work/77")
    assert len(await box.list_files("/work")) == 100_000


async def test_what_is_looked_at_is_the_sandboxs_and_nothing_of_the_manager(box, host_folder):
    await box.sh(f"ln -s {host_folder} /work/out; ln -s / /work/top; ln -s /proc/1/cwd /work/magic")
    for path in ("/work/out", "/work/out/secret", f"{host_folder}/secret"):
        with pytest.raises(NotFound):
            await box.list_files(path)
    with pytest.raises(NotFound):
        await box.stat_file("/work/out/secret")
    with pytest.raises(HoneError):
        await box.list_files("/work/magic")
    with pytest.raises(HoneError):
        await box.list_files("/proc/1")
    assert (await box.stat_file("/proc/1/exe")).link_target == ""
    names = [entry.name for entry in await box.list_files("/work/top")]
    assert "proc" in names
    assert "secret" not in names


async def test_an_archive_goes_in_and_comes_out(box):
    rng = random.Random(1)
    entries = [
        (f"d{number % 7}/f{number}", rng.randbytes(rng.randrange(30_000))) for number in range(200)
    ]
    assert await box.upload("/work/in", _archive(*entries), piece_bytes=100_001) > 0
    assert (
        await box.sh("stat -c %u /work/in/d0/f0; find /work/in -type f | wc -l")
    ).stdout == b"0\n200\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("/work/in"))) as archive:
        read = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}
    assert read == dict(entries)
    await box.sh("cd /work && tar czf own.tgz in && rm -rf in")
    with tarfile.open(fileobj=io.BytesIO(await box.download("/work/own.tgz"))) as outer:
        own = outer.extractfile("own.tgz").read()
    await box.upload("/", own)
    assert (await box.sh("find /in -type f | wc -l")).stdout == b"200\n"


async def test_an_upload_leads_nowhere(box, host_folder):
    await box.sh(f"ln -s {host_folder} /work/out; ln -s {host_folder} /work/in")
    for folder in ("/work/out", "/work/out/deeper", f"{host_folder}"):
        try:
            await box.upload(folder, _archive(("secret", b"changed"), ("new", b"")))
        except HoneError:
            continue
        # A folder of that name inside the sandbox is what the path means there.
        assert (await box.sh(f"cat {folder}/secret")).stdout == b"changed"
    for folder in ("/usr/lib", "/proc/self", "/dev", "/dev/shm", "/work/x\0y"):
        with pytest.raises((HoneError, ValueError)):
            await box.upload(folder, _archive(("new", b"")))
    for name in ("usr/new", "proc/self/new", "dev/new", "etc/../new", "/new"):
        with pytest.raises(InvalidArgument):
            await box.upload("/", _archive((name, b"")))
    assert sorted(path.name for path in host_folder.iterdir()) == ["secret"]
    assert (host_folder / "secret").read_text() == "of the host"
    assert await _temporary_names(box) == b""


async def test_a_workload_that_swaps_folders_for_links_meanwhile_gains_nothing(box, host_folder):
    script = f"""
import os
os.makedirs("/work/in", exist_ok=True)
while not os.path.exists("/work/stop"):
    try:
        os.rename("/work/in/d", "/work/aside")
        os.symlink("{host_folder}", "/work/in/d")
        os.unlink("/work/in/d")
        os.rename("/work/aside", "/work/in/d")
    except OSError:
        pass
"""
    swapping = asyncio.ensure_future(box.python(script))
    entries = [(f"d/f{number}", b"x" * 100) for number in range(50)] + [("d/secret", b"changed")]
    for _ in range(30):
        try:
            await box.upload("/work/in", _archive(*entries))
            await box.download("/work/in")
        except HoneError as error:
            assert error.attributable in ("client", "workload"), error.message
    assert not swapping.done()
    await box.write("/work/stop", b"")
    assert (await swapping).exit_code == 0
    assert sorted(path.name for path in host_folder.iterdir()) == ["secret"]
    assert (host_folder / "secret").read_text() == "of the host"


async def test_a_bomb_of_bytes_ends_at_the_disks_size(real, use):
    box = use(real, (await real.create(real.rollout_id(), limits=_limits())).info)
    zeros = bytes(MIB)
    bomb = _gzip_of((_header("zeros", size=1024 * MIB), 1), (zeros, 1024), (bytes(1024), 1))
    before = _resident_bytes()
    with pytest.raises(FailedPrecondition) as caught:
        await box.upload("/work", bomb)
    assert (caught.value.reason, caught.value.attributable) == ("DISK_FULL", "workload")
    assert _resident_bytes() < before + 32 * MIB
    assert await _temporary_names(box) == b""
    assert (await box.sh("df --output=used -B1M / | tail -1")).stdout.split() == [b"1"]


async def test_a_bomb_of_entries_ends_at_the_disks_number_of_files(real, use):
    box = use(real, (await real.create(real.rollout_id(), limits=_limits(max_inodes=3000))).info)
    many = io.BytesIO()
    with gzip.GzipFile(fileobj=many, mode="wb", compresslevel=1) as file:
        for number in range(10_000):
            file.write(_header(f"f{number}"))
        file.write(_header("same") * 990_000)
    before = _resident_bytes()
    with pytest.raises(FailedPrecondition) as caught:
        await box.upload("/work", many.getvalue())
    assert caught.value.reason == "DISK_FULL"
    assert _resident_bytes() < before + 32 * MIB
    assert await _temporary_names(box) == b""


async def test_a_bomb_of_folders_ends_at_the_length_of_a_path(box):
    deep = _header("d/" * 3000 + "x")
    with pytest.raises(InvalidArgument, match="4095"):
        await box.upload("/work", deep + bytes(1024))
    await box.upload("/work", _header("d/" * 2000, tarfile.DIRTYPE) + bytes(1024))
    assert (await box.sh("find /work -type d | wc -l")).stdout == b"2001\n"


async def test_packing_the_root_takes_the_own_disk_alone(box):
    await box.sh("echo mine > /work/mine; head -c 1000 /dev/zero > /dev/shm/x; mkfifo /work/fifo")
    with tarfile.open(fileobj=io.BytesIO(await box.download("/"))) as archive:
        names = archive.getnames()
    assert "work/mine" in names
    assert "etc/passwd" in names
    outside = [name for name in names if name.split("/")[0] in ("usr", "proc", "dev")]
    assert outside == []
    assert "work/fifo" not in names
    for path in ("/proc", "/dev", "/proc/1/environ", "/work/fifo"):
        with pytest.raises(InvalidArgument):
            await box.download(path)
    with pytest.raises(NotFound):
        await box.download("/nothing")


async def test_what_is_too_large_to_pack_is_refused_at_once(box):
    await box.sh("truncate -s 5T /work/sparse")
    begun = time.monotonic()
    with pytest.raises(OutOfRange):
        await box.download("/work")
    assert time.monotonic() - begun < 60  # it would take hours


async def test_files_that_change_meanwhile_are_packed_each_as_it_was(box):
    script = """
import os, random
rng = random.Random(2)
os.makedirs("/work/busy", exist_ok=True)
while not os.path.exists("/work/stop"):
    path = f"/work/busy/{rng.randrange(20)}"
    what = rng.randrange(4)
    try:
        if what == 0:
            os.remove(path)
        elif what == 1:
            os.truncate(path, rng.randrange(100_000))
        else:
            with open(path, "ab" if what == 2 else "wb") as file:
                file.write(b"x" * rng.randrange(300_000))
    except OSError:
        pass
"""
    busy = asyncio.ensure_future(box.python(script))
    packed = 0
    while packed < 20:
        assert not busy.done(), busy.result()
        try:
            data = await box.download("/work/busy")
        except NotFound:
            continue  # it has not begun
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for one in archive:
                content = archive.extractfile(one).read()
                assert len(content) == one.size
                assert set(content) <= {0, ord("x")}
        packed += 1
    await box.write("/work/stop", b"")
    assert (await busy).exit_code == 0


async def test_a_snapshot_brings_the_disk_back_exactly(box, use):
    assert (await box.python(MESS)).exit_code == 0
    before = await box.python(WALK, max_output_bytes=3 * MIB)
    assert before.exit_code == 0, before.stderr
    saved = await box.save("s-1")
    assert saved.size_bytes < 4 * MIB  # holes are not in it
    assert (await box.python(WALK, max_output_bytes=3 * MIB)).stdout == before.stdout
    made = await box.suite.create(box.info.key.rollout_id, sequence=1, snapshot_id="s-1")
    again = use(box.suite, made.info)
    after = await again.python(WALK, max_output_bytes=3 * MIB)
    assert after.stdout.splitlines() == before.stdout.splitlines()
    assert b"/etc/hosts'" not in after.stdout
    assert (await again.sh("ls /srv")).exit_code != 0
    await again.sh("echo more > /work/more && rm /work/sparse")
    assert (await box.python(WALK, max_output_bytes=3 * MIB)).stdout == before.stdout
    second = await again.save("s-2")
    assert second.sha256 != saved.sha256
    third = await box.suite.create(box.info.key.rollout_id, sequence=2, snapshot_id="s-2")
    assert (await use(box.suite, third.info).sh("cat /work/more")).stdout == b"more\n"


async def test_a_grading_box_starts_from_what_the_agent_left(box, use):
    await box.sh("echo answer > /work/answer")
    await box.save("end")
    rollout_id = box.info.key.rollout_id
    made = await box.suite.create(rollout_id, purpose=Purpose.GRADE, snapshot_id="end")
    grading = use(box.suite, made.info)
    grading.caller = replace(grading.caller, role="grader")
    assert (await grading.sh("cat /work/answer")).stdout == b"answer\n"
    assert made.info.rootfs_digest == box.info.rootfs_digest


async def test_a_snapshot_that_does_not_fit_makes_no_sandbox(box):
    await box.sh("head -c 40000000 /dev/urandom > /work/large")
    await box.save("large")
    live = box.suite.fleet.stats().live_count
    with pytest.raises(FailedPrecondition) as caught:
        await box.suite.create(
            box.info.key.rollout_id,
            sequence=1,
            snapshot_id="large",
            limits=_limits(disk_bytes=20 * MIB),
        )
    assert caught.value.reason == "DISK_FULL"
    assert box.suite.fleet.stats().live_count == live


async def test_a_workload_that_ends_the_walk_is_to_blame_for_it(box):
    script = """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""
    assert (await box.python(script)).exit_code == 0
    for call in (box.save("deep"), box.download("/work")):
        with pytest.raises(FailedPrecondition) as caught:
            await call
        assert (caught.value.reason, caught.value.attributable) == ("PATH_TOO_LONG", "workload")


async def test_long_work_that_is_cancelled_leaves_nothing(real, use):
    limits = _limits(memory_bytes=1024 * MIB, disk_bytes=600 * MIB)
    box = use(real, (await real.create(real.rollout_id(), limits=limits)).info)
    zeros = bytes(MIB)
    data = _gzip_of((_header("zeros", size=500 * MIB), 1), (zeros, 500), (bytes(1024), 1))
    upload = asyncio.ensure_future(box.upload("/work", data))
    while not await _temporary_names(box):
        assert not upload.done(), "it was too quick to be cancelled"
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await _temporary_names(box) == b""
    assert (await box.sh("ls /work")).stdout == b""


async def test_a_sandbox_that_is_destroyed_meanwhile_ends_the_work_and_keeps_no_descriptor(
    real, use
):
    before = len(os.listdir("/proc/self/fd"))
    for what in ("save", "download"):
        limits = _limits(memory_bytes=1024 * MIB, disk_bytes=600 * MIB)
        box = use(real, (await real.create(real.rollout_id(), limits=limits)).info)
        await box.sh("head -c 500000000 /dev/zero > /work/large")
        call = box.save("s-1") if what == "save" else box.download("/work")
        task = asyncio.ensure_future(call)
        folder = real.folder / ("snapshots" if what == "save" else "spool")
        while not any(path.is_file() and path.stat().st_size for path in folder.rglob("*")):
            await asyncio.sleep(0)
        await real.fleet.destroy(real.fleet.find(box.info.sandbox_id), Cause.REQUESTED)
        with pytest.raises(NotFound):
            await task
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("killed", [False, True])
async def test_survivors_die_with_their_command_where_asked(box, killed):
    other = await box.sh("setsid sleep 791 >/dev/null 2>&1 & echo other")
    assert other.stdout == b"other\n"
    outcome = await box.sh(
        "setsid sleep 790 & setsid sh -c 'sleep 790; true' & echo up", kill_survivors=killed
    )
    assert (outcome.stdout, outcome.exit_code) == (b"up\n", 0)
    assert outcome.output_incomplete is not killed
    count = "ps ax | grep -c '[s]leep 790'; ps ax | grep -c '[s]leep 791'"
    if not killed:
        async with asyncio.timeout(10):  # the last of them may not have been started yet
            while (await box.sh(count)).stdout != b"3\n1\n":
                pass
    else:
        assert (await box.sh(count)).stdout == b"0\n1\n"


PROGRAMS = ("sh", "rm", "mkdir", "chmod", "mv", "ln", "touch")


@pytest.fixture
def image(tmp_path) -> Path:
    """A root with a shell, some programs, and files for the layer above to remove and change."""
    folder = tmp_path / "image"
    for program in PROGRAMS:
        place = shutil.which(program, path="/usr/bin:/bin")
        if place is None:
            pytest.skip(f"the host has no {program} to make a root from")
        _copy_with_libraries(Path(place), folder)
    for name in ("kept/a", "emptied/deep/b", "gone/c", "swapped/d", "replaced", "changed", "same"):
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def _copy_with_libraries(program: Path, folder: Path) -> None:
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [Path(word) for word in linked.split() if word.startswith("/")]
    for source in (program.resolve(), *libraries):
        target = folder / source.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    place = folder / "bin" / program.name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(program.resolve())


async def _seen(box, folder: str = "/data") -> dict[str, object]:
    """Look at all that is below a folder, through the sandbox's root."""
    seen: dict[str, object] = {}
    for entry in await box.list_files(folder):
        path = f"{folder}/{entry.name}"
        what = (entry.kind, entry.mode, entry.modify_time, entry.link_target)
        if entry.kind is FileKind.FOLDER:
            seen |= await _seen(box, path)
            seen[path] = what
        else:
            content = await box.read(path) if entry.kind is FileKind.FILE else b""
            seen[path] = (*what, content)
    return seen


async def test_a_snapshot_over_an_imported_root_brings_back_what_was_removed_from_it(
    tmp_path, image, suite_maker, starter, use
):
    suite = suite_maker(LocalBackend(tmp_path / "manager"), tmp_path / "manager", time.time)
    await starter(suite)
    template = Template(name="image", rootfs=str(image))
    rollout_id = suite.rollout_id()
    try:
        box = use(suite, (await suite.create(rollout_id, template=template)).info)
        outcome = await box.sh(
            "cd /data && rm -r gone && rm -r emptied && mkdir emptied && echo n > emptied/new "
            "&& echo more >> changed && chmod 700 kept && rm -r swapped && ln -s kept swapped "
            "&& rm replaced && mkdir replaced && echo x > replaced/x && rm -r /var/tmp /bin/touch; "
            "mv same moved && ln moved hard"
        )
        assert outcome.exit_code == 0, outcome.stderr
        before = await _seen(box)
        await box.save("s-1")
        changes = {"template": template, "snapshot_id": "s-1"}
        again = use(suite, (await suite.create(rollout_id, sequence=1, **changes)).info)
        assert await _seen(again) == before
        assert "/data/gone" not in before
        assert "/data/emptied/deep" not in before
        assert before["/data/changed"][-1] == b"changedmore\n"
        assert await _seen(again, "/bin") == await _seen(box, "/bin")
        # A snapshot of what began as one says the same again.
        await again.save("s-2")
        changes["snapshot_id"] = "s-2"
        third = use(suite, (await suite.create(rollout_id, sequence=2, **changes)).info)
        assert await _seen(third) == before
        plain = use(suite, (await suite.create(rollout_id, sequence=3, template=template)).info)
        assert "/data/gone/c" in await _seen(plain)
        with pytest.raises(FailedPrecondition) as caught:
            await suite.create(rollout_id, sequence=4, snapshot_id="s-1")
        assert caught.value.reason == "SNAPSHOT_MISMATCH"
    finally:
        await suite.manager.close()
