"""Imported root file systems: what a sandbox sees of them and can do to them, and when they are not used."""

import asyncio
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from small_root import add_program

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.roots import Roots, digest_of
from sandbox.rootfs import DEFAULT_ENV
from sandbox.spawner import syscalls
from sandbox.types import (
    MIB,
    BoxFile,
    BoxSpec,
    Command,
    FileKind,
    Limits,
    Template,
    Termination,
)
from servicekit.errors import FailedPrecondition

PROGRAMS = ("sh", "cat", "dd", "id", "ls", "mkdir", "mknod", "rm", "stat", "touch", "true")
LIMITS = Limits(memory_bytes=256 * MIB, disk_bytes=16 * MIB, max_inodes=2000, shm_bytes=MIB)


@pytest.fixture(scope="session")
def root_folder(tmp_path_factory) -> Path:
    """A small root: a shell, some programs, their libraries and an /etc of its own."""
    folder = tmp_path_factory.mktemp("root")
    for program in PROGRAMS:
        add_program(program, folder)
    (folder / "etc").mkdir()
    (folder / "etc/passwd").write_text("root:x:0:0:image:/root:/bin/sh\n")
    (folder / "etc/issue").write_text("an image of its own\n")
    (folder / "var/data").mkdir(parents=True)
    (folder / "var/data/big").write_bytes(bytes(range(256)) * 4096)
    (folder / "var/link").symlink_to("/etc/issue")
    return folder


@pytest.fixture
async def backend(tmp_path):
    made = LocalBackend(tmp_path / "data")
    try:
        await made.start()
    except FailedPrecondition as error:
        pytest.skip(f"no sandboxes on this machine: {error.message}")
    yield made
    await made.close()


class User:
    """Makes sandboxes from a root and runs commands in them."""

    def __init__(self, backend: LocalBackend, source: Path) -> None:
        self.backend = backend
        self.template = Template(name="image", rootfs=str(source))
        self.count = 0

    async def make(self, **changes):
        self.count += 1
        spec = BoxSpec(
            sandbox_id=f"sbx_roots_{os.getpid()}_{self.count:06d}",
            template=self.template,
            limits=LIMITS,
            **changes,
        )
        return await self.backend.create(spec, lambda _: None)

    async def sh(self, box, script: str):
        self.count += 1
        command = Command(exec_id=f"e{self.count}", argv=("sh", "-c", script), working_dir="/")
        return await box.run(command, DEFAULT_ENV, None)


@pytest.fixture
def user(backend, root_folder) -> User:
    return User(backend, root_folder)


async def test_a_sandbox_sees_the_image_and_nothing_of_the_host(user):
    box = await user.make()
    seen = await user.sh(
        box, "cat /etc/passwd /etc/issue; id -u; ls /; ls /dev; ls /proc/1 | wc -l"
    )
    text = seen.stdout.decode()
    assert text.startswith("root:x:0:0:image:/root:/bin/sh\nan image of its own\n0\n")
    assert {"dev", "etc", "proc", "tmp", "usr", "var", "work"} <= set(text.split())
    assert {"null", "urandom", "shm", "pts"} <= set(text.split())
    mounts = (await user.sh(box, "cat /proc/self/mounts")).stdout.decode().splitlines()
    kinds = {line.split()[1]: (line.split()[2], line.split()[3].split(",")) for line in mounts}
    assert set(kinds) >= {"/", "/dev", "/dev/shm", "/proc"}
    assert kinds["/"][0] == "overlay"
    assert {"nosuid", "nodev"} <= set(kinds["/"][1])
    assert not [line for line in mounts if str(user.template.rootfs) in line]
    refused = await user.sh(box, "mknod /tmp/null c 1 3; dd if=/dev/zero of=/dev/mem count=1")
    assert refused.exit_code
    await box.destroy()


async def test_what_one_writes_no_other_sees(user):
    first, second = await user.make(), await user.make()
    assert first.rootfs_digest == second.rootfs_digest
    done = await user.sh(
        first, "echo changed >/etc/issue; rm /var/data/big; touch /new; cat /etc/issue"
    )
    assert done.stdout == b"changed\n"
    seen = await user.sh(second, "cat /etc/issue; ls / /var/data")
    assert seen.stdout.startswith(b"an image of its own\n")
    assert b"big" in seen.stdout
    assert b"new" not in seen.stdout.split()
    assert (Path(user.template.rootfs) / "etc/issue").read_text() == "an image of its own\n"
    await asyncio.gather(first.destroy(), second.destroy())


async def test_08_rm_rf_leaves_the_base_and_the_neighbours(user, tmp_path):
    box, neighbour = await user.make(), await user.make()
    tree = tmp_path / "data/roots" / box.rootfs_digest.removeprefix("sha256:") / "tree"
    before = digest_of(tree)
    await user.sh(box, "rm -rf --no-preserve-root /")
    assert digest_of(tree) == before == box.rootfs_digest.removeprefix("sha256:")
    after = await user.sh(box, "echo still here")
    assert after.termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD
    assert (await user.sh(neighbour, "cat /etc/issue")).stdout == b"an image of its own\n"
    fresh = await user.make()
    assert (await user.sh(fresh, "cat /var/link")).stdout == b"an image of its own\n"
    await asyncio.gather(box.destroy(), neighbour.destroy(), fresh.destroy())


async def test_the_limits_of_disk_and_files_hold_over_a_base(user):
    box = await user.make()
    full = await user.sh(box, "dd if=/dev/zero of=/var/data/fill bs=1M count=64")
    assert b"No space left" in full.stderr
    size = int((await user.sh(box, "stat -c %s /var/data/fill")).stdout)
    assert size <= LIMITS.disk_bytes
    await user.sh(box, "rm /var/data/fill")
    script = "i=0; mkdir /many; while touch /many/$i; do i=$((i+1)); done; echo $i"
    made = await user.sh(box, script)
    assert b"No space left" in made.stderr
    assert 1000 < int(made.stdout) < LIMITS.max_inodes
    await box.destroy()


async def test_files_are_read_and_written_from_outside(user):
    box = await user.make()
    assert (await box.read_file("/var/link", 0, 0)).content == b"an image of its own\n"
    big = await box.read_file("/var/data/big", 256, 256)
    assert (big.content, big.size_bytes) == (bytes(range(256)), 256 * 4096)
    await box.write_file(BoxFile(path="/etc/issue", content=b"replaced"))
    assert (await user.sh(box, "cat /etc/issue")).stdout == b"replaced"
    entries = {entry.name: entry.kind for entry in await box.list_files("/var")}
    assert entries == {"data": FileKind.FOLDER, "link": FileKind.LINK}
    await box.destroy()


async def test_a_snapshot_holds_what_was_written_and_what_was_removed(user, tmp_path):
    box = await user.make()
    await user.sh(box, "echo kept >/var/data/new; rm /etc/issue; rm -r /var/data/big")
    saved = tmp_path / "saved.tar"
    await box.snapshot(saved)
    assert saved.stat().st_size < MIB  # the upper layer, without the base
    again = await user.make(snapshot=saved)
    seen = await user.sh(again, "cat /var/data/new; ls /etc /var/data")
    assert seen.stdout.split() == [b"kept", b"/etc:", b"passwd", b"/var/data:", b"new"]
    await asyncio.gather(box.destroy(), again.destroy())


async def test_equal_roots_have_one_digest_whatever_they_came_from(root_folder, tmp_path):
    archives = {"": "w", ".gz": "w:gz", ".xz": "w:xz"}
    sources = [root_folder]
    for ending, mode in archives.items():
        path = tmp_path / f"root.tar{ending}"
        with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as archive:
            archive.add(root_folder, arcname=".", filter=_as_another_user)
        sources.append(path)
    roots = Roots(tmp_path / "roots", os.geteuid())
    plans = [await asyncio.to_thread(roots.prepare, source) for source in sources]
    assert len({plan.digest for plan in plans}) == 1
    assert len({plan.base for plan in plans}) == 1
    assert plans[0].health_paths[0] == "/bin/sh"


def _as_another_user(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid, member.gid, member.uname, member.gname = 1234, 1234, "someone", "someone"
    return member


@pytest.fixture
def small(tmp_path) -> Path:
    """A root without programs, quick to import."""
    folder = tmp_path / "small"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/one").write_text("1")
    (folder / "run-as-root").write_text("#!/bin/sh\n")
    (folder / "run-as-root").chmod(0o4755)
    os.mkfifo(folder / "fifo")
    return folder


@pytest.fixture
def roots(tmp_path) -> Roots:
    return Roots(tmp_path / "roots", os.geteuid())


def test_set_uid_bits_and_special_files_are_left_out(roots, small):
    tree = Path(roots.prepare(small).base)
    assert stat.S_IMODE((tree / "run-as-root").stat().st_mode) == 0o755
    assert not (tree / "fifo").exists()
    assert stat.S_IMODE((tree / "tmp").stat().st_mode) == 0o1777


def test_a_base_that_changed_on_disk_is_imported_anew(roots, small):
    plan = roots.prepare(small)
    (Path(plan.base) / "etc/one").write_text("2")
    again = roots.prepare(small)
    assert again == plan
    assert (Path(plan.base) / "etc/one").read_text() == "1"
    assert f"sha256:{digest_of(Path(plan.base))}" == plan.digest


def test_a_source_that_changed_is_another_root(roots, small):
    first = roots.prepare(small)
    (small / "etc/one").write_text("2")
    second = roots.prepare(small)
    assert first.digest != second.digest
    assert (Path(first.base) / "etc/one").read_text() == "1"  # sandboxes may still stand on it
    assert (Path(second.base) / "etc/one").read_text() == "2"


def test_an_unchanged_source_is_not_imported_again(roots, small):
    plan = roots.prepare(small)
    before = Path(plan.base).stat().st_ino
    assert roots.prepare(small) == plan
    assert Path(plan.base).stat().st_ino == before


def test_half_an_import_is_never_used(roots, small, tmp_path):
    remains = tmp_path / "roots/.import-0"
    (remains / "tree/etc").mkdir(parents=True)
    plan = roots.prepare(small)
    assert not remains.exists()
    assert f"sha256:{digest_of(Path(plan.base))}" == plan.digest
    archive = tmp_path / "cut.tar.gz"
    with tarfile.open(archive, "w:gz") as whole:
        whole.add(small / "etc", arcname="etc")
        whole.add(shutil.which("sh"), arcname="sh")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(FailedPrecondition, match=r"cut\.tar\.gz.*cannot be unpacked"):
        roots.prepare(archive)
    names = {path.name for path in (tmp_path / "roots").iterdir() if path.is_dir()}
    assert names == {plan.digest.removeprefix("sha256:")}


async def test_two_managers_import_one_root_once(small, tmp_path):
    many = [Roots(tmp_path / "roots", os.geteuid()) for _ in range(4)]
    plans = await asyncio.gather(*(asyncio.to_thread(each.prepare, small) for each in many))
    assert len({plan.base for plan in plans}) == 1
    assert [path.name for path in (tmp_path / "roots").iterdir() if path.is_dir()] == [
        plans[0].digest.removeprefix("sha256:")
    ]


def test_what_cannot_be_a_root_is_refused_and_says_why(roots, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/dev").symlink_to("/dev")
    (tmp_path / "text").write_text("no archive")
    cases = {
        "/nowhere/at/all": "nothing is there",
        "relative/path": "not absolute",
        str(tmp_path / "empty"): "has nothing in it",
        str(tmp_path / "linked"): "/dev must be a folder",
        str(tmp_path / "text"): "cannot be unpacked",
    }
    for source, problem in cases.items():
        with pytest.raises(FailedPrecondition, match=problem) as caught:
            roots.prepare(Path(source))
        assert caught.value.reason == "ROOT_UNUSABLE"
        assert source in caught.value.message


async def test_a_root_that_cannot_be_used_leaves_nothing(backend):
    spec = BoxSpec(sandbox_id="sbx_none", template=Template(name="none", rootfs="/nowhere"))
    with pytest.raises(FailedPrecondition, match="nothing is there"):
        await backend.create(spec, lambda _: None)
    assert backend.live_count() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes are all that user's")
async def test_where_owners_cannot_be_mapped_imported_roots_work_all_the_same(
    root_folder, tmp_path, caplog
):
    for name in ("lower", "upper", "work", "data"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    data = tmp_path / "data"
    syscalls.mount("overlay", str(data), "overlay", 0, options)  # has no mapped owners
    made = LocalBackend(data)
    try:
        try:
            await made.start()
        except FailedPrecondition as error:
            pytest.skip(f"no sandboxes on this machine: {error.message}")
        template = Template(rootfs=str(root_folder))
        for name in ("a", "b"):
            spec = BoxSpec(sandbox_id=name, limits=LIMITS, template=template)
            box = await made.create(spec, lambda _: None)
            command = Command(
                exec_id="x",
                argv=("sh", "-c", "stat -c %u /etc/issue; rm /etc/issue; touch /etc/new"),
            )
            outcome = await box.run(command, DEFAULT_ENV, None)
            assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"0\n", b"")
        assert sum("share one user" in record.message for record in caplog.records) <= 1
    finally:
        await made.close()
        syscalls.unmount(str(data), syscalls.MNT_DETACH)
