"""From a sandbox's disk into an archive: for a caller, or exactly as it is, for a snapshot.

The workload may go on meanwhile. A file's length is what it was when its turn came: a file that grows is cut there, one
that shrinks is filled with zeros. An archive for a caller holds files, folders and links; a snapshot also holds what
only its restoring needs (`Exact`): owners, times to the nanosecond, FIFOs, holes in sparse files and, of an overlay's
writable part, what it removes from the layer beneath. Sockets are left out: nothing of them can be kept.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from sandbox import trees
from sandbox.archives import CHUNK_BYTES, Member, MemberKind, TarWriter
from sandbox.trees import Check, Node

NOTE_SIZE = "HONE.size"
"""Note in a snapshot: the length of a file with holes; its content is the data alone."""
NOTE_MAP = "HONE.map"
"""Note in a snapshot: where that data goes, `offset:length,...`."""
NOTE_OPAQUE = "HONE.opaque"
"""Note in a snapshot: the folder hides all that the layer beneath has in it."""

_OPAQUE_ATTRIBUTES = ("trusted.overlay.opaque", "user.overlay.opaque")
_SMALL_HOLE_BYTES = 64 * 1024
"""Holes up to this size are written as zeros: the map stays short."""
_IDS = 65_536
"""Of the users that a sandbox can have."""


class Packer:
    """Packs what a caller asks for."""

    def __init__(self, writer: TarWriter, check: Check) -> None:
        """Writes to `writer`; `check` may stop it."""
        self._writer = writer
        self._check = check
        self._first_paths: dict[tuple[int, int], str] = {}

    def add_folder(self, top: int) -> None:
        """Pack all below a folder, names relative to it.

        Raises:
            OutOfRange: it is more than the archive may hold.
            FailedPrecondition: folders are nested too deep.
        """
        for node in trees.walk(top, self._check):
            self.add(node)

    def add(self, node: Node) -> None:
        """Pack one file, folder or link."""
        kind = self._kind(node)
        if kind is None:
            return
        if kind is MemberKind.FILE:
            self._add_file(node)
            return
        target = os.readlink("", dir_fd=node.descriptor) if kind is MemberKind.LINK else ""
        self._writer.add(self._member(node, kind, link_target=target))

    def _kind(self, node: Node) -> MemberKind | None:
        kinds = {
            stat.S_IFREG: MemberKind.FILE,
            stat.S_IFDIR: MemberKind.FOLDER,
            stat.S_IFLNK: MemberKind.LINK,
        }
        return kinds.get(stat.S_IFMT(node.status.st_mode))

    def _member(
        self,
        node: Node,
        kind: MemberKind,
        *,
        size: int = 0,
        link_target: str = "",
        notes: dict[str, str] | None = None,
    ) -> Member:
        return Member(
            path=node.path,
            kind=kind,
            size=size,
            mode=stat.S_IMODE(node.status.st_mode) & 0o1777,
            modify_ns=node.status.st_mtime_ns // 10**9 * 10**9,
            link_target=link_target,
            notes=notes or {},
        )

    def _add_file(self, node: Node) -> None:
        status = node.status
        if status.st_nlink > 1:
            first = self._first_paths.setdefault((status.st_dev, status.st_ino), node.path)
            if first != node.path:
                self._writer.add(self._member(node, MemberKind.HARD_LINK, link_target=first))
                return
        with trees.reading(node.descriptor) as reader:
            self._add_content(node, reader)

    def _add_content(self, node: Node, reader: int) -> None:
        self._writer.add(self._member(node, MemberKind.FILE, size=node.status.st_size))
        self._copy(reader, 0, node.status.st_size)

    def _copy(self, reader: int, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            self._check()
            wanted = min(CHUNK_BYTES, end - offset)
            data = os.pread(reader, wanted, offset) or bytes(wanted)
            self._writer.write(data)
            offset += len(data)


class ExactPacker(Packer):
    """Packs the disk of a sandbox for a snapshot."""

    def __init__(self, writer: TarWriter, check: Check, owner: int) -> None:
        """Owners are kept as their distance from `owner`, the sandbox's root."""
        super().__init__(writer, check)
        self._owner = owner

    def add_disk(self, top: int) -> None:
        """Pack the folder itself and all below it."""
        self.add(Node(path=".", descriptor=top, status=os.fstat(top)))
        self.add_folder(top)

    def _kind(self, node: Node) -> MemberKind | None:
        if stat.S_ISFIFO(node.status.st_mode):
            return MemberKind.FIFO
        if stat.S_ISCHR(node.status.st_mode) and node.status.st_rdev == 0:
            return MemberKind.DEVICE  # an overlay's mark for what it removed
        return super()._kind(node)

    def _member(
        self,
        node: Node,
        kind: MemberKind,
        *,
        size: int = 0,
        link_target: str = "",
        notes: dict[str, str] | None = None,
    ) -> Member:
        status = node.status
        notes = dict(notes or {})
        if kind is MemberKind.FOLDER and _is_opaque(node.descriptor):
            notes[NOTE_OPAQUE] = "1"
        return Member(
            path=node.path,
            kind=kind,
            size=size,
            mode=stat.S_IMODE(status.st_mode),
            uid=_relative(status.st_uid, self._owner),
            gid=_relative(status.st_gid, self._owner),
            modify_ns=status.st_mtime_ns,
            link_target=link_target,
            notes=notes,
        )

    def _add_content(self, node: Node, reader: int) -> None:
        size = node.status.st_size
        if node.status.st_blocks * 512 >= size:
            super()._add_content(node, reader)
            return
        extents = list(_extents(reader, size))
        notes = {
            NOTE_SIZE: str(size),
            NOTE_MAP: ",".join(f"{offset}:{length}" for offset, length in extents),
        }
        kept = sum(length for _, length in extents)
        self._writer.add(self._member(node, MemberKind.FILE, size=kept, notes=notes))
        for offset, length in extents:
            self._copy(reader, offset, length)


def _extents(reader: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data; neighbours with little between them are one."""
    begin = end = -1
    position = 0
    while position < size:
        try:
            data = os.lseek(reader, position, os.SEEK_DATA)
        except OSError:
            break  # nothing but a hole is left
        position = min(os.lseek(reader, data, os.SEEK_HOLE), size)
        if data >= size:
            break
        if begin >= 0 and data - end <= _SMALL_HOLE_BYTES:
            end = position
            continue
        if begin >= 0:
            yield begin, end - begin
        begin, end = data, position
    if begin >= 0:
        yield begin, end - begin


def _is_opaque(descriptor: int) -> bool:
    for name in _OPAQUE_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(trees.link_of(descriptor), name) == b"y":
                return True
    return False


def _relative(owner: int, base: int) -> int:
    return owner - base if base <= owner < base + _IDS else 0
