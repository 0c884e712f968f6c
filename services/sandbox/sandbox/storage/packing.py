"""From a sandbox's disk into an archive: for a caller, or exactly as it is, for a snapshot.

The workload may go on meanwhile. A file's length is what it was when its turn came: a file that grows is cut there, one
that shrinks is filled with zeros. An archive for a caller holds files, folders and links; a snapshot also holds what
only its restoring needs (`Exact`): owners, times to the nanosecond, FIFOs, holes in sparse files and, of an overlay's
writable part, what it removes from the layer beneath. Sockets are left out: nothing of them can be kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
from array import array

from sandbox.storage import trees
from sandbox.storage.archives import CHUNK_BYTES, Member, MemberKind, TarWriter
from sandbox.storage.trees import Check, Node

NOTE_SIZE = "HONE.size"
"""Note in a snapshot: the length of a file with holes."""
NOTE_EXTENTS = "HONE.extents"
"""Note in a snapshot: into how many pieces its data falls. The content begins with where they are, offset and length of
each as two numbers of `EXTENT_TYPE`, and goes on with the pieces."""
EXTENT_TYPE = "Q"
NOTE_OPAQUE = "HONE.opaque"
"""Note in a snapshot: the folder hides all that the layer beneath has in it."""

_OPAQUE_ATTRIBUTES = ("trusted.overlay.opaque", "user.overlay.opaque")
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
        extents = _extents(reader, size)
        offsets, lengths = extents[::2], extents[1::2]
        places = extents.tobytes()
        notes = {NOTE_SIZE: str(size), NOTE_EXTENTS: str(len(offsets))}
        whole = len(places) + sum(lengths)
        self._writer.add(self._member(node, MemberKind.FILE, size=whole, notes=notes))
        self._writer.write(places)
        for offset, length in zip(offsets, lengths, strict=True):
            self._copy(reader, offset, length)


def _extents(reader: int, size: int) -> array[int]:
    """Return where a file has data: offset, length, offset, length, and so on."""
    extents = array(EXTENT_TYPE)
    position = 0
    while position < size:
        try:
            data = os.lseek(reader, position, os.SEEK_DATA)
        except OSError:
            break  # nothing but a hole is left
        if data >= size:
            break
        position = min(os.lseek(reader, data, os.SEEK_HOLE), size)
        extents.extend((data, position - data))
    return extents


def _is_opaque(descriptor: int) -> bool:
    for name in _OPAQUE_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(trees.link_of(descriptor), name) == b"y":
                return True
    return False


def _relative(owner: int, base: int) -> int:
    return owner - base if base <= owner < base + _IDS else 0
