"""Tar archives as streams: one member after the other, with flat memory, whatever the archive says of itself.

Python's tarfile makes and reads the header blocks; walking the archive is done here, because what tarfile does there
(keeping every member, reading extensions of any size at once, recursing over them) can be driven by a hostile archive.
Nothing here touches a file system: see `unpacking` and `packing`.
"""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO

from servicekit.errors import InvalidArgument, OutOfRange

CHUNK_BYTES = 256 * 1024
"""Content is read and written in pieces of this size."""

MAX_EXTENSION_BYTES = 1024 * 1024
"""Of all extended headers of one member: long names and times, and what of others is not understood."""

_BLOCK = tarfile.BLOCKSIZE
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_SIZE = 1 << 62
_KEYS = frozenset({"path", "linkpath", "size", "mtime"})
_SPARSE_PREFIX = "GNU.sparse."
_OWN_KEYS = frozenset({"HONE.size", "HONE.extents", "HONE.opaque"})
_TIME = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,32}))?")
_READ_ERRORS = (gzip.BadGzipFile, zlib.error, EOFError)


class MemberKind(StrEnum):
    """What a member of an archive is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    HARD_LINK = "hard link"
    FIFO = "FIFO"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of an archive, as the archive says it; nothing of it has been checked against a file system."""

    path: str
    kind: MemberKind
    size: int = 0
    """Bytes of content that follow."""
    mode: int = 0o644
    """Permission bits, with set-uid, set-gid and sticky."""
    uid: int = 0
    gid: int = 0
    modify_ns: int = 0
    link_target: str = ""
    """Of a link what it says, of a hard link the path of another member."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What only our own snapshots say, see `packing`."""


_KINDS = {
    tarfile.REGTYPE: MemberKind.FILE,
    tarfile.AREGTYPE: MemberKind.FILE,
    tarfile.CONTTYPE: MemberKind.FILE,
    tarfile.DIRTYPE: MemberKind.FOLDER,
    tarfile.SYMTYPE: MemberKind.LINK,
    tarfile.LNKTYPE: MemberKind.HARD_LINK,
    tarfile.FIFOTYPE: MemberKind.FIFO,
    tarfile.CHRTYPE: MemberKind.DEVICE,
    tarfile.BLKTYPE: MemberKind.DEVICE,
}
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_TYPES = {
    MemberKind.FILE: tarfile.REGTYPE,
    MemberKind.FOLDER: tarfile.DIRTYPE,
    MemberKind.LINK: tarfile.SYMTYPE,
    MemberKind.HARD_LINK: tarfile.LNKTYPE,
    MemberKind.FIFO: tarfile.FIFOTYPE,
    MemberKind.DEVICE: tarfile.CHRTYPE,
}


class TarReader:
    """Reads an archive, plain or gzip, from its beginning."""

    def __init__(self, source: BinaryIO) -> None:
        """Reads from `source`, which can seek."""
        packed = source.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        source.seek(0)
        self._source: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(fileobj=source, mode="rb") if packed else source
        )
        self._left = 0
        self._padding = 0
        self._begun = False

    def members(self) -> Iterator[Member]:
        """Yield the members in order; what is not read of one's content is skipped.

        Raises:
            InvalidArgument: it is no tar archive, is cut off, or holds what is not understood.
        """
        extension: dict[str, str] = {}
        extension_bytes = 0
        while True:
            self._skip_rest()
            header = self._header()
            if header is None:
                return
            self._begun = True
            kind = header.type
            self._left, self._padding = header.size, -header.size % _BLOCK
            if kind in _EXTENSIONS:
                extension_bytes += header.size
                if extension_bytes > MAX_EXTENSION_BYTES:
                    raise InvalidArgument(
                        f"archive: a member has {extension_bytes} bytes of extended headers; at most "
                        f"{MAX_EXTENSION_BYTES} are read"
                    )
            if kind in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extension |= _parse_pax(self._extension())
            elif kind == tarfile.GNUTYPE_LONGNAME:
                extension["path"] = _until_nul(self._extension())
            elif kind == tarfile.GNUTYPE_LONGLINK:
                extension["linkpath"] = _until_nul(self._extension())
            elif kind != tarfile.XGLTYPE:  # a comment for all members, such as git's
                member = _member(header, extension)
                extension, extension_bytes = {}, 0
                has_content = member.kind is MemberKind.FILE
                self._left = member.size if has_content else 0
                self._padding = -self._left % _BLOCK
                yield member

    def read(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """Return the next piece of the current member's content; empty at its end."""
        wanted = min(max_bytes, self._left)
        if not wanted:
            return b""
        data = self._read(wanted)
        if not data:
            raise InvalidArgument("archive: it is cut off inside a file's content")
        self._left -= len(data)
        return data

    def _skip_rest(self) -> None:
        while self.read():
            pass
        if self._padding:
            self._read_exactly(self._padding)
            self._padding = 0

    def _extension(self) -> bytes:
        data = self._read_exactly(self._left)
        self._left = 0
        return data

    def _header(self) -> tarfile.TarInfo | None:
        block = self._read_exactly(_BLOCK, may_end=True)
        if not block:
            if not self._begun:
                raise InvalidArgument("archive: it is empty; a tar archive ends with zero blocks")
            return None  # without end marks, as some writers leave it
        if not any(block):
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            where = "a later header is broken" if self._begun else "no tar archive, plain or gzip"
            raise InvalidArgument(f"archive: {where} ({error})") from error
        if not 0 <= header.size < _MAX_SIZE:
            raise InvalidArgument(f"archive: a member says that it has {header.size} bytes")
        return header

    def _read_exactly(self, size: int, *, may_end: bool = False) -> bytes:
        parts = []
        left = size
        while left:
            data = self._read(left)
            if not data:
                if may_end and left == size:
                    return b""
                if not self._begun:
                    raise InvalidArgument("archive: no tar archive, plain or gzip")
                raise InvalidArgument("archive: it is cut off")
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        try:
            return self._source.read(size)
        except _READ_ERRORS as error:
            raise InvalidArgument(f"archive: its compression is broken ({error})") from error


class TarWriter:
    """Writes an archive of bounded size."""

    def __init__(self, target: BinaryIO, max_bytes: int) -> None:
        """Writes to `target`."""
        self._target = target
        self._max_bytes = max_bytes
        self._left = 0
        self._padding = 0
        self.size_bytes = 0

    def add(self, member: Member) -> None:
        """Begin a member; its content follows by `write`, exactly `member.size` bytes.

        Raises:
            OutOfRange: the archive would be larger than allowed.
        """
        assert not self._left
        header = _header_of(member)
        self._padding = -member.size % _BLOCK
        whole = len(header) + member.size + self._padding
        if self.size_bytes + whole + 2 * _BLOCK > self._max_bytes:
            raise OutOfRange(
                f"archive: would have more than {self._max_bytes} bytes; take it in parts"
            )
        self._left = member.size
        self._put(header)

    def write(self, data: bytes) -> None:
        """Write a piece of content."""
        assert len(data) <= self._left
        self._left -= len(data)
        self._put(data)
        if not self._left:
            self._put(bytes(self._padding))

    def close(self) -> None:
        """Write the end marks."""
        assert not self._left
        self._put(bytes(2 * _BLOCK))

    def _put(self, data: bytes) -> None:
        self._target.write(data)
        self.size_bytes += len(data)


def _member(header: tarfile.TarInfo, extension: Mapping[str, str]) -> Member:
    kind = _KINDS.get(header.type)
    if kind is None or _SPARSE_PREFIX in extension:
        what = "a sparse file" if kind or header.type == tarfile.GNUTYPE_SPARSE else "a member"
        raise InvalidArgument(
            f"archive: {header.name[:200]!r} is {what} of type {header.type!r}; write the archive with "
            "plain files, folders and links (tar without --sparse)"
        )
    path = extension.get("path", header.name)
    target = extension.get("linkpath", header.linkname)
    if "\0" in path or "\0" in target:
        raise InvalidArgument("archive: a name holds NUL")
    size = header.size
    if "size" in extension:
        if not re.fullmatch(r"\d{1,19}", extension["size"]) or int(extension["size"]) >= _MAX_SIZE:
            raise InvalidArgument(f"archive: size is {extension['size'][:50]!r}; must be a number")
        size = int(extension["size"])
    modify_ns = int(header.mtime) * 10**9
    if "mtime" in extension:
        modify_ns = _parse_time(extension["mtime"])
    return Member(
        path=path.rstrip("/") if kind is MemberKind.FOLDER else path,
        kind=kind,
        size=size if kind is MemberKind.FILE else 0,
        mode=header.mode & 0o7777,
        uid=header.uid,
        gid=header.gid,
        modify_ns=modify_ns if abs(modify_ns) < 10**21 else 0,
        link_target=target,
        notes={key: extension[key] for key in _OWN_KEYS & extension.keys()},
    )


def _header_of(member: Member) -> bytes:
    header = tarfile.TarInfo(member.path)
    header.type = _TYPES[member.kind]
    header.size = member.size
    header.mode = member.mode
    header.uid, header.gid = member.uid, member.gid
    header.linkname = member.link_target
    seconds, rest = divmod(member.modify_ns, 10**9)
    header.mtime = max(seconds, 0)
    header.pax_headers = dict(member.notes)
    if rest or seconds < 0:
        sign = "-" if member.modify_ns < 0 else ""
        seconds, rest = divmod(abs(member.modify_ns), 10**9)
        header.pax_headers["mtime"] = f"{sign}{seconds}.{rest:09d}"
    return header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _parse_pax(data: bytes) -> dict[str, str]:
    """Return the records (`length key=value`) that are understood; no regular expression sees hostile text."""
    records = {}
    position = 0
    while position < len(data) and data[position]:
        space = data.find(b" ", position, position + 20)
        digits = data[position:space] if space > position else b""
        if not digits.isdigit():
            raise InvalidArgument("archive: an extended header has no length")
        end = position + int(digits)
        record = data[space + 1 : end]
        if end > len(data) or end <= space + 1 or not record.endswith(b"\n"):
            raise InvalidArgument("archive: an extended header has a wrong length")
        key, equals, value = record[:-1].partition(b"=")
        if not equals or not key:
            raise InvalidArgument("archive: an extended header has no key")
        name = os.fsdecode(key)
        if name in _KEYS or name in _OWN_KEYS:
            records[name] = os.fsdecode(value)
        elif name.startswith(_SPARSE_PREFIX):
            records[_SPARSE_PREFIX] = ""
        position = end
    return records


def _parse_time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"archive: mtime is {text[:50]!r}; must be seconds, for example 1.5")
    sign, seconds, fraction = match.groups()
    nanoseconds = int(seconds) * 10**9 + int(f"{fraction or '':0<9}"[:9])
    return -nanoseconds if sign else nanoseconds


def _until_nul(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])
