"""Archives as streams: what is read is what was written, and a hostile one ends in a typed error with flat memory."""

import gzip
import io
import random
import tarfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.storage.archives import Member, MemberKind, TarReader, TarWriter
from servicekit.errors import InvalidArgument, OutOfRange

MIB = 1024 * 1024

names = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=()) | st.just("\udcff"),
    min_size=1,
    max_size=150,
).filter(lambda name: name not in (".", "..") and _encodable(name))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
times = st.integers(-(10**18), 4 * 10**18)


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _read(data: bytes) -> list[tuple[Member, bytes]]:
    reader = TarReader(io.BytesIO(data))
    return [(member, _content(reader)) for member in reader.members()]


def _content(reader: TarReader) -> bytes:
    return b"".join(iter(reader.read, b""))


def _write(members: list[tuple[Member, bytes]], max_bytes: int = 1 << 40) -> bytes:
    target = io.BytesIO()
    writer = TarWriter(target, max_bytes)
    for member, content in members:
        writer.add(member)
        if content:
            writer.write(content)
    writer.close()
    assert writer.size_bytes == len(target.getvalue())
    return target.getvalue()


def _archive(*entries: tuple[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=kind) as archive:
        for name, content in entries:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return target.getvalue()


def _block(name: bytes, kind: bytes, size: bytes = b"00000000000\0") -> bytes:
    """Build one header block by hand, as a hostile writer would."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = block[108:116] = block[116:124] = b"0000644\0"
    block[124:136] = size
    block[136:148] = b"00000000000\0"
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@given(paths, paths, st.binary(max_size=2000), times, st.integers(0, 0o7777))
def test_what_is_written_is_read_and_tarfile_reads_it_too(path, target, content, time_ns, mode):
    common = {"path": path, "mode": mode, "modify_ns": time_ns, "uid": 7, "gid": 70000}
    members = [
        (Member(kind=MemberKind.FILE, size=len(content), **common), content),
        (Member(kind=MemberKind.FOLDER, **common), b""),
        (Member(kind=MemberKind.LINK, link_target=target, **common), b""),
        (Member(kind=MemberKind.HARD_LINK, link_target=target, **common), b""),
        (Member(kind=MemberKind.FIFO, **common), b""),
    ]
    data = _write(members)
    assert _read(data) == members
    assert _read(gzip.compress(data, 1, mtime=0)) == members
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        seen = archive.getmembers()
    assert [one.name for one in seen] == [path] * 5
    assert [one.linkname for one in seen[2:4]] == [target] * 2


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_others_write_is_read(kind):
    long = "a" * 99 if kind == tarfile.USTAR_FORMAT else "d/" * 120 + "file"
    entries = [("x", b""), (long, b"content" * 300), ("./y/z", b"1")]
    read = _read(_archive(*entries, kind=kind))
    assert [(member.path, content) for member, content in read] == entries


def test_content_that_is_not_read_is_skipped():
    data = _archive(("a", b"1" * 5000), ("b", b"2" * 512), ("c", b"3"))
    reader = TarReader(io.BytesIO(data))
    assert [member.path for member in reader.members()] == ["a", "b", "c"]


def test_an_archive_has_a_largest_size():
    member = Member(path="x", kind=MemberKind.FILE, size=5000)
    size = len(_write([(member, b"x" * 5000)]))
    assert len(_write([(member, b"x" * 5000)], max_bytes=size)) == size
    with pytest.raises(OutOfRange):
        _write([(member, b"x" * 5000)], max_bytes=size - 1)


@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_that_is_cut_off_or_changed_is_refused_or_read_but_breaks_nothing(packed):
    rng = random.Random(7)
    whole = _archive(("a" * 200, b"1" * 700), ("b", b"2" * 300))
    whole = gzip.compress(whole, 1, mtime=0) if packed else whole
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        if rng.random() < 0.5:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            _read(bytes(data))
        except InvalidArgument:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "data", [b"", b"x", b"hello world" * 100, gzip.compress(b"no tar", mtime=0)]
)
def test_what_is_no_archive_is_refused(data):
    with pytest.raises(InvalidArgument, match="archive"):
        _read(data)


HOSTILE = {
    "a size below zero": _block(b"x", b"0", b"\xff" * 12),
    "a size beyond all": _block(b"x", b"0", b"\x80" + b"\x7f" * 11),
    "an extension without end": _block(b"x", b"x", b"77777777777\0"),
    "a long name without end": _block(b"x", b"L", b"77777777777\0"),
    "extensions upon extensions": (_block(b"x", b"x", b"00003777777\0") + bytes(1 << 20)) * 9,
    "a sparse file": _block(b"x", b"S"),
    "an unknown kind": _block(b"x", b"Z"),
    "an extension with a wrong length": _block(b"x", b"x", b"00000000012\0")
    + b"99 path=x\n".ljust(512, b"\0"),
    "an extension with length zero": _block(b"x", b"x", b"00000000012\0")
    + b"0 path=xx\n".ljust(512, b"\0"),
    "a sparse file by extension": _block(b"x", b"x", b"00000000027\0")
    + b"23 GNU.sparse.major=1 \n".ljust(512, b"\0")
    + _block(b"x", b"0"),
    "a size that is no number": _block(b"x", b"x", b"00000000013\0")
    + b"11 size=-5\n".ljust(512, b"\0")
    + _block(b"x", b"0"),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("packed", [False, True])
def test_a_hostile_archive_is_refused_with_little_memory(what, packed):
    data = HOSTILE[what]
    if packed:
        data = gzip.compress(data + bytes(64 * MIB), 1)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="archive"):
            _read(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_many_members_cost_no_memory():
    one = _block(b"same", b"0")
    data = gzip.compress(one * 20_000, 1, mtime=0)
    tracemalloc.start()
    try:
        count = sum(1 for _ in TarReader(io.BytesIO(data)).members())
        assert count == 20_000
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
