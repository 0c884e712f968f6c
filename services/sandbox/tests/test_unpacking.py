"""Unpacking beneath a folder and packing it again, over plain folders: nothing leads out, and a copy is exact."""

import hashlib
import io
import os
import random
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.storage.archives import MemberKind, TarReader, TarWriter
from sandbox.storage.packing import ExactPacker, Packer
from sandbox.storage.trees import Stopped
from sandbox.storage.unpacking import Restorer, Unpacker
from servicekit.errors import DataLoss, FailedPrecondition, InvalidArgument

OWN_ID = os.getuid()


class Place:
    """A folder to work beneath, with a folder beside it that must stay as it is."""

    def __init__(self, base: Path) -> None:
        self.outside = base / "outside"
        self.inside = base / "inside"
        self.outside.mkdir()
        self.inside.mkdir()
        (self.outside / "secret").write_text("secret")
        (self.inside / "kept").write_text("kept")
        self._before = tree_hash(self.outside)
        self._names = iter(range(1_000_000))

    def make_name(self) -> str:
        return f".temporary-{next(self._names)}"

    def unpack(self, data: bytes, check: Callable[[], None] = lambda: None) -> None:
        top = os.open(self.inside, os.O_PATH)
        try:
            unpacker = Unpacker(top, owner=OWN_ID, make_name=self.make_name, check=check)
            unpacker.unpack(TarReader(io.BytesIO(data)))
        finally:
            os.close(top)

    def restore(self, data: bytes) -> None:
        top = os.open(self.inside, os.O_PATH)
        try:
            restorer = Restorer(top, owner=OWN_ID, make_name=self.make_name, check=lambda: None)
            restorer.restore(TarReader(io.BytesIO(data)), top)
        finally:
            os.close(top)

    def outside_is_untouched(self) -> bool:
        return tree_hash(self.outside) == self._before

    def names(self) -> set[str]:
        return {str(path.relative_to(self.inside)) for path in self.inside.rglob("*")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def tree_hash(folder: Path) -> str:
    """Hash all that a tree is: names, kinds, modes, owners, times, contents, targets, and which files are one."""
    digest = hashlib.sha256()
    numbers: dict[int, int] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        content = b""
        if stat.S_ISREG(kind):
            content = path.read_bytes()
        elif stat.S_ISLNK(kind):
            content = os.fsencode(os.readlink(path))
        line = (
            os.fsencode(path.relative_to(folder)),
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            numbers.setdefault(status.st_ino, len(numbers)) if stat.S_ISREG(kind) else -1,
            hashlib.sha256(content).hexdigest(),
        )
        digest.update(repr(line).encode())
    return digest.hexdigest()


def _member(name: str, kind: bytes, **fields: object) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type = kind
    for field, value in fields.items():
        setattr(header, field, value)
    return header


def _archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for member in members:
            header, content = member if isinstance(member, tuple) else (member, b"")
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return target.getvalue()


def _file(name: str, content: bytes = b"new", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.REGTYPE, **fields), content


def _hostile(place: Path) -> Iterator[tuple[str, list[object]]]:
    outside = str(place / "outside")
    link, hard, folder = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
    yield "absolute name", [_file(f"{outside}/new")]
    yield "going up", [_file("../outside/new")]
    yield "going up inside", [_file("a/../../outside/new")]
    yield "through an absolute link", [_member("l", link, linkname=outside), _file("l/secret")]
    yield "through a link up", [_member("l", link, linkname="../outside"), _file("l/secret")]
    yield (
        "through two links",
        [
            _member("a", folder),
            _member("a/l", link, linkname=".."),
            _member("m", link, linkname="a/l/../outside"),
            _file("m/secret"),
        ],
    )
    yield "a folder over a link", [_member("l", link, linkname=outside), _member("l", folder)]
    yield (
        "a link as the target",
        [_member("l", link, linkname=outside), _member("l/x/y", folder)],
    )
    yield "a hard link out", [_member("h", hard, linkname=f"{outside}/secret")]
    yield "a hard link up", [_member("h", hard, linkname="../outside/secret")]
    yield (
        "a hard link through a link",
        [_member("l", link, linkname="../outside"), _member("h", hard, linkname="l/secret")],
    )
    yield (
        "a hard link to a link",
        [_member("l", link, linkname="../outside/secret"), _member("h", hard, linkname="l")],
    )
    yield "a hard link to nothing", [_member("h", hard, linkname="nothing")]
    yield "a device", [_member("d", tarfile.CHRTYPE, devmajor=1, devminor=3)]
    yield "a disk", [_member("d", tarfile.BLKTYPE, devmajor=8, devminor=0)]
    yield "a FIFO", [_member("p", tarfile.FIFOTYPE)]
    yield "a link to itself", [_member("l", link, linkname="l"), _file("l/x")]
    yield "a link to nothing", [_member("l", link, linkname="nothing"), _file("l/x")]
    yield "below a file", [_file("kept/x")]
    yield "a file over a folder", [_member("d", folder), _file("d/x"), _file("d")]
    yield "a name too long", [_file("n" * 300)]
    yield "a path too long", [_file("n/" * 2500 + "x")]
    yield "an empty link", [_member("l", link, linkname="")]


@pytest.mark.parametrize("number", range(len(list(_hostile(Path("/"))))))
def test_a_hostile_archive_leads_nowhere(place, number):
    what, members = list(_hostile(place.inside.parent))[number]
    with pytest.raises(InvalidArgument, match="archive"):
        place.unpack(_archive(*members))
    assert place.outside_is_untouched(), what
    assert (place.inside / "kept").read_text() == "kept"
    assert not [name for name in place.names() if ".temporary" in name], what


def test_an_upload_is_unpacked_and_what_is_in_its_way_is_replaced(place):
    (place.inside / "old").symlink_to(place.outside / "secret")
    (place.inside / "d").write_text("a file where a folder comes")
    (place.inside / "way").symlink_to("real")
    (place.inside / "real").mkdir()
    place.unpack(
        _archive(
            _member("./", tarfile.DIRTYPE, mode=0o700),
            _file("old", b"replaced", mode=0o4755, mtime=1000),
            _member("d", tarfile.DIRTYPE, mode=0o2750, mtime=2000),
            _file("d/x/y", b"deep"),
            _member("d/h", tarfile.LNKTYPE, linkname="d/x/y"),
            _member("d/l", tarfile.SYMTYPE, linkname="/anywhere/../at all", mtime=3000),
            _file("way/through", b"a link that stays inside"),
            _file("d/x/y", b"again"),
        )
    )
    assert place.outside_is_untouched()
    inside = place.inside
    assert (inside / "old").read_bytes() == b"replaced"
    assert not (inside / "old").is_symlink()
    assert stat.S_IMODE((inside / "old").stat().st_mode) == 0o755
    assert (inside / "old").stat().st_mtime == 1000
    assert stat.S_IMODE((inside / "d").stat().st_mode) == 0o750
    assert (inside / "d").stat().st_mtime == 2000
    assert (inside / "d/x/y").read_bytes() == b"again"
    assert (inside / "d/h").read_bytes() == b"deep"
    assert os.readlink(inside / "d/l") == "/anywhere/../at all"
    assert (inside / "d/l").lstat().st_mtime == 3000
    assert (inside / "real/through").read_bytes() == b"a link that stays inside"
    assert stat.S_IMODE(inside.stat().st_mode) != 0o700


def test_the_same_hard_link_twice_leaves_no_other_name(place):
    link = _member("h", tarfile.LNKTYPE, linkname="x")
    place.unpack(_archive(_file("x"), link, link))
    assert place.names() == {"kept", "x", "h"}


@pytest.fixture
def deep_place(place) -> Iterator[Place]:
    """A place whose tree may be deeper than Python's own removal goes."""
    yield place
    subprocess.run(["rm", "-rf", place.inside / "d"], check=True)


@pytest.mark.slow
def test_folders_nest_as_deep_as_paths_go(deep_place):
    place = deep_place
    path = "d/" * 2000
    place.unpack(_archive(_file(f"{path}x", b"deep")))
    descriptor = os.open(place.inside, os.O_PATH)
    for _ in range(2000):
        inner = os.open("d", os.O_PATH, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    assert os.listdir(f"/proc/self/fd/{descriptor}") == ["x"]
    os.close(descriptor)
    packed = _pack(place.inside)
    assert max(len(member.path) for member in TarReader(io.BytesIO(packed)).members()) == 4001
    # Deeper than a path can say, as only a program that walks down step by step makes it.
    os.chdir(place.inside / ("d/" * 500))
    try:
        for _ in range(1500):
            os.chdir("d")
        for _ in range(200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir("/")
    with pytest.raises(FailedPrecondition) as caught:
        _pack(place.inside)
    assert (caught.value.reason, caught.value.attributable) == ("PATH_TOO_LONG", "workload")


def test_work_that_is_stopped_leaves_whole_files_only(place):
    calls = iter(range(1000))

    def stop_in_the_second_file() -> None:
        if next(calls) == 6:
            raise Stopped

    data = _archive(_file("a", b"1" * 600_000), _file("b", b"2" * 9_000_000))
    with pytest.raises(Stopped):
        place.unpack(data, stop_in_the_second_file)
    assert place.names() == {"kept", "a"}
    assert (place.inside / "a").stat().st_size == 600_000


def _pack(folder: Path, *, exact: bool = False, max_bytes: int = 1 << 40) -> bytes:
    target = io.BytesIO()
    writer = TarWriter(target, max_bytes)
    top = os.open(folder, os.O_RDONLY)
    try:
        if exact:
            ExactPacker(writer, lambda: None, OWN_ID).add_disk(top)
        else:
            Packer(writer, lambda: None).add_folder(top)
    finally:
        os.close(top)
    writer.close()
    return target.getvalue()


def _fill(folder: Path, seed: int) -> None:
    """Make a tree with everything that a tree can have."""
    rng = random.Random(seed)
    folders = [folder]
    for number in range(30):
        made = rng.choice(folders) / f"folder {number}"
        made.mkdir()
        folders.append(made)
    for number in range(80):
        path = rng.choice(folders) / f"file-{number}"
        path.write_bytes(rng.randbytes(rng.choice([0, 1, 511, 512, 513, 70_000])))
        path.chmod(rng.choice([0o644, 0o755, 0o600, 0o4755, 0o2711, 0o1777]))
        if not number % 10:
            os.link(path, rng.choice(folders) / f"hard-{number}")
        if not number % 7:
            os.symlink(f"file-{number}", rng.choice(folders) / f"link-{number}")
    with (folder / "sparse").open("wb") as file:
        file.seek(3 << 30)
        file.write(b"x" * 5000)
        file.seek(5 << 30)
        file.write(b"y")
        file.truncate(6 << 30)
    with (folder / "empty-sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(folder / "fifo", 0o640)
    (folder / os.fsdecode(b"not \xff utf-8")).write_bytes(b"")
    (folder / "line\nbreak").write_bytes(b"")
    for path in sorted(folder.rglob("*"), reverse=True):
        time = rng.randrange(2 * 10**18)
        os.utime(path, ns=(time, time), follow_symlinks=False)
    for made in folders:
        made.chmod(rng.choice([0o755, 0o700, 0o1777, 0o2775]))
    os.utime(folder, ns=(5, 7))


def _hash_with_sparse(folder: Path) -> str:
    """Hash a tree without reading terabytes of nothing."""
    parts = []
    for name in ("sparse", "empty-sparse"):
        path = folder / name
        status = path.lstat()
        parts.append((status.st_size, status.st_mtime_ns, status.st_mode, status.st_blocks > 100))
        descriptor = os.open(path, os.O_RDONLY)
        for place in (0, (3 << 30) - 10, 3 << 30, 5 << 30):
            parts.append(os.pread(descriptor, 5010, place))
        os.close(descriptor)
    hidden = folder.parent / f"{folder.name}-sparse"
    hidden.mkdir()
    times = folder.stat().st_mtime_ns
    for name in ("sparse", "empty-sparse"):
        os.rename(folder / name, hidden / name)
    os.utime(folder, ns=(times, times))
    return tree_hash(folder) + repr(parts)


def test_a_snapshot_brings_the_tree_back_exactly(place, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    _fill(source, seed=3)
    data = _pack(source, exact=True)
    assert len(data) < 8 << 20  # holes are not in it
    assert data == _pack(source, exact=True)  # in the same order every time
    _fill(place.inside, seed=4)  # what a fresh one had besides goes, whatever it is
    (place.inside / "fifo").unlink()
    (place.inside / "fifo/inner").mkdir(parents=True)
    (place.inside / "line\nbreak").unlink()
    (place.inside / "line\nbreak").symlink_to(place.outside)
    place.restore(data)
    assert _hash_with_sparse(place.inside) == _hash_with_sparse(source)
    assert place.outside_is_untouched()


def test_a_file_of_many_holes_is_kept_without_them(place, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    with (source / "holes").open("wb") as file:
        for number in range(3000):
            file.seek(number << 20)
            file.write(b"%d" % number)
    data = _pack(source, exact=True)
    assert len(data) < 3000 * 5000
    place.restore(data)
    status = (place.inside / "holes").stat()
    assert status.st_size == (2999 << 20) + 4
    assert status.st_blocks * 512 < 3000 * 5000
    with (place.inside / "holes").open("rb") as file:
        for number in (0, 1, 1500, 2999):
            file.seek(number << 20)
            assert file.read(10).rstrip(b"\0") == b"%d" % number


def test_a_snapshot_of_an_upper_layer_removes_what_that_removed(place, tmp_path):
    upper = tmp_path / "upper"
    (upper / "emptied").mkdir(parents=True)
    (upper / "emptied/new").write_text("new")
    try:
        os.mknod(upper / "gone", stat.S_IFCHR, os.makedev(0, 0))
        os.setxattr(upper / "emptied", "trusted.overlay.opaque", b"y")
    except OSError as error:
        pytest.skip(f"needs to make an overlay's marks: {error}")
    data = _pack(upper, exact=True)
    (place.inside / "gone/with").mkdir(parents=True)
    (place.inside / "emptied/old/deep").mkdir(parents=True)
    top = os.open(place.inside, os.O_PATH)
    fresh = os.open(tmp_path / "outside", os.O_PATH)
    restorer = Restorer(top, owner=OWN_ID, make_name=place.make_name, check=lambda: None)
    restorer.restore(TarReader(io.BytesIO(data)), fresh)
    os.close(top)
    os.close(fresh)
    assert place.names() == {"kept", "emptied", "emptied/new"}
    assert place.outside_is_untouched()


def test_a_broken_snapshot_is_data_loss(place):
    with pytest.raises(DataLoss):
        place.restore(_archive(_file("../x")))
    with pytest.raises(DataLoss):
        place.restore(b"")


def test_a_packed_folder_is_what_tar_reads(place):
    os.mkfifo(place.inside / "fifo")
    (place.inside / "b").write_bytes(b"1")
    (place.inside / "a").mkdir()
    (place.inside / "a/l").symlink_to("/etc/passwd")
    (place.inside / "b").chmod(0o4755)
    data = _pack(place.inside)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        seen = [(one.name, one.type, one.mode, one.linkname) for one in archive]
    modes = [oct(mode) for _, _, mode, _ in seen]
    assert [name for name, *_ in seen] == ["a", "a/l", "b", "kept"]
    assert modes[2] == "0o755"
    assert seen[1][3] == "/etc/passwd"


def test_files_that_change_while_they_are_packed_do_not_break_the_archive(tmp_path):
    """Each step of the walk changes what comes next: grown, cut, replaced, removed."""
    folder = tmp_path / "busy"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}").write_bytes(b"x" * 300_000)
    steps = iter(range(10_000))
    rng = random.Random(11)

    def change() -> None:
        path = folder / f"{rng.randrange(20):02}"
        what = next(steps) % 5
        if what == 0:
            path.unlink(missing_ok=True)
        elif what == 1 and path.is_file():
            os.truncate(path, rng.randrange(1000))
        elif what == 2 and path.is_file():
            with path.open("ab") as file:
                file.write(b"y" * 400_000)
        elif what == 3 and path.is_file():
            path.unlink()
            path.symlink_to("/etc/shadow")
        elif what == 4 and not path.exists():
            path.mkdir(exist_ok=True)

    target = io.BytesIO()
    writer = TarWriter(target, 1 << 40)
    top = os.open(folder, os.O_RDONLY)
    Packer(writer, change).add_folder(top)
    writer.close()
    os.close(top)
    with tarfile.open(fileobj=io.BytesIO(target.getvalue())) as archive:
        assert all(one.isfile() or one.isdir() or one.issym() for one in archive)
    for member in TarReader(io.BytesIO(target.getvalue())).members():
        assert member.kind in (MemberKind.FILE, MemberKind.FOLDER, MemberKind.LINK)
