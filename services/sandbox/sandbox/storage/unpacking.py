"""From an archive onto a sandbox's disk, from outside and beneath one folder.

Two ways. An upload (`Unpacker`) is hostile: names that are absolute, go up, or pass through a link out of the folder
are refused, as is all but files, folders and links; set-uid bits are dropped; everything belongs to the sandbox's root.
A snapshot (`Restorer`) was written by `packing`: it makes a fresh sandbox's disk what it was when it was saved, and
what the fresh one had besides is removed.

Every file appears whole, by a rename. Where it ends early, whole members remain and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from array import array
from pathlib import PurePosixPath

from sandbox.storage import trees
from sandbox.storage.archives import CHUNK_BYTES, Member, MemberKind, TarReader
from sandbox.storage.files import MakeName, shown, typed, write_all
from sandbox.storage.ownership import ids
from sandbox.storage.packing import EXTENT_TYPE, NOTE_EXTENTS, NOTE_OPAQUE, NOTE_SIZE
from sandbox.storage.trees import Check
from servicekit.errors import DataLoss, InvalidArgument

MAX_MEMBERS = 1_000_000

_OUTSIDE = (errno.EXDEV, errno.ELOOP, errno.ENOENT, errno.ENOTDIR)


class Unpacker:
    """Unpacks what a caller sent."""

    resolve = trees.BENEATH

    def __init__(self, top: int, *, owner: int, make_name: MakeName, check: Check) -> None:
        """Works beneath the descriptor `top`; new files belong to `owner`, temporary ones are called `make_name()`."""
        self._top = top
        self._owner = owner
        self._make_name = make_name
        self._check = check
        self._folders: dict[str, Member] = {}
        """Their modes and times come last: making what is in them changes both."""
        self._parent = -1
        self._parent_path = ""

    def unpack(self, reader: TarReader) -> None:
        """Unpack an archive.

        Raises:
            InvalidArgument: it is no archive, or holds what may not be there.
            FailedPrecondition: the sandbox's disk is full (reason DISK_FULL).
        """
        try:
            for number, member in enumerate(reader.members()):
                self._check()
                if number >= MAX_MEMBERS:
                    raise InvalidArgument(f"archive: has more than {MAX_MEMBERS} members")
                path = self._path(member.path)
                try:
                    self._add(path, member, reader)
                except OSError as error:
                    raise self._error(member, error) from error
        finally:
            self._forget_parent()
        try:
            self._finish_folders()
        except OSError as error:
            raise typed("/", error) from error

    def _add(self, path: str, member: Member, reader: TarReader) -> None:
        if not path:
            self._add_top(member)
            return
        folder, _, name = path.rpartition("/")
        parent = self._open_parent(folder)
        if member.kind is MemberKind.FOLDER:
            self._add_folder(parent, path, name, member)
            self._folders[path] = member
        elif member.kind is MemberKind.FILE:
            self._add_file(parent, path, name, member, reader)
        elif member.kind is MemberKind.LINK:
            temporary = self._make_name()
            os.symlink(member.link_target, temporary, dir_fd=parent)
            self._put(parent, temporary, path, name, member)
        elif member.kind is MemberKind.HARD_LINK:
            self._add_hard_link(parent, path, name, member)
        else:
            self._add_special(parent, path, name, member)

    def _add_top(self, member: Member) -> None:
        """Take the archive's root: of an upload it says nothing about the folder, which is there already."""

    def _add_special(self, parent: int, path: str, name: str, member: Member) -> None:
        raise InvalidArgument(
            f"archive: {shown(member.path)!r} is a {member.kind}; only files, folders and links are unpacked"
        )

    def _add_folder(self, parent: int, path: str, name: str, member: Member) -> None:
        try:
            trees.make_folder(parent, name, 0o700, self._owner)
        except FileExistsError:
            try:
                os.close(trees.open_folder(self._top, path, self.resolve))
            except NotADirectoryError:
                os.unlink(name, dir_fd=parent)
                trees.make_folder(parent, name, 0o700, self._owner)

    def _add_file(
        self, parent: int, path: str, name: str, member: Member, reader: TarReader
    ) -> None:
        temporary = self._make_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
        try:
            with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)):
                self._fill(descriptor, member, reader)
                self._settle(descriptor, member)
            self._rename(parent, temporary, path, name)
        except BaseException:  # also when stopped: no half file may stay
            _unlink(parent, temporary)
            raise

    def _fill(self, descriptor: int, member: Member, reader: TarReader) -> None:
        while data := reader.read():
            self._check()
            write_all(descriptor, data)

    def _add_hard_link(self, parent: int, path: str, name: str, member: Member) -> None:
        source = trees.open_node(self._top, self._path(member.link_target))
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise InvalidArgument(
                    f"archive: {shown(member.path)!r} is a hard link to {shown(member.link_target)!r}, "
                    "which is no file"
                )
            temporary = self._make_name()
            os.link(trees.link_of(source), temporary, dst_dir_fd=parent, follow_symlinks=True)
        finally:
            os.close(source)
        try:
            self._rename(parent, temporary, path, name)
        finally:
            _unlink(
                parent, temporary
            )  # still there where both names were links to one file already

    def _put(self, parent: int, temporary: str, path: str, name: str, member: Member) -> None:
        """Give what was made its owner, mode and time, and its name."""
        try:
            descriptor = trees.open_node(parent, temporary)
            try:
                # By way of /proc calls reach what an O_PATH descriptor stands for, a link itself included.
                self._settle(trees.link_of(descriptor), member)
            finally:
                os.close(descriptor)
            self._rename(parent, temporary, path, name)
        except BaseException:  # also when stopped
            _unlink(parent, temporary)
            raise

    def _rename(self, parent: int, temporary: str, path: str, name: str) -> None:
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _settle(self, node: int | str, member: Member) -> None:
        os.chown(node, *ids(*self._ids(member)))
        if member.kind is not MemberKind.LINK:
            os.chmod(node, self._mode(member))
        os.utime(node, ns=(member.modify_ns, member.modify_ns))

    def _ids(self, member: Member) -> tuple[int, int]:
        return self._owner, self._owner

    def _mode(self, member: Member) -> int:
        return member.mode & 0o1777

    def _finish_folders(self) -> None:
        for path in sorted(self._folders, reverse=True):
            self._check()
            try:
                descriptor = trees.open_folder(self._top, path, self.resolve)
            except OSError:
                continue  # moved or removed meanwhile
            try:
                self._settle(trees.link_of(descriptor), self._folders[path])
            finally:
                os.close(descriptor)

    def _open_parent(self, folder: str) -> int:
        """Return a descriptor of the folder that a member goes into; most go into the one of the member before."""
        if self._parent < 0 or folder != self._parent_path:
            self._forget_parent()
            self._parent = trees.make_folders(self._top, folder, self._owner, self.resolve)
            self._parent_path = folder
        return self._parent

    def _forget_parent(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def _path(self, path: str) -> str:
        """Return a member's path without what means nothing; empty for the archive's root."""
        parts = PurePosixPath(path).parts
        problem = ""
        if path.startswith("/"):
            problem = "is absolute; names must be relative to the folder"
        elif ".." in parts:
            problem = "goes up with ..; it would leave the folder"
        elif len(os.fsencode(path)) > 4095:
            problem = "has more than 4095 bytes"
        if problem:
            raise InvalidArgument(f"archive: the name {shown(path)!r} {problem}")
        return "/".join(part for part in parts if part != ".")

    def _error(self, member: Member, error: OSError) -> Exception:
        name = shown(member.path)
        if error.errno in _OUTSIDE:
            return InvalidArgument(
                f"archive: {name!r} would leave the folder or the sandbox's own disk, or passes through "
                "something that is no folder"
            )
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            return InvalidArgument(f"archive: {name!r}: a folder is in its place")
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EPERM, errno.EMLINK):
            return InvalidArgument(f"archive: {name!r}: {os.strerror(error.errno)}")
        return typed(member.path, error)


class Restorer(Unpacker):
    """Makes a fresh sandbox's disk what a snapshot says."""

    resolve = trees.STRICT

    def __init__(self, top: int, *, owner: int, make_name: MakeName, check: Check) -> None:
        """See `Unpacker`."""
        super().__init__(top, owner=owner, make_name=make_name, check=check)
        self._fresh: dict[str, bool] = {}
        """What the disk held at first and the snapshot has not named yet; whether each is a folder."""

    def restore(self, reader: TarReader, fresh: int) -> None:
        """Apply a snapshot; `fresh` is the folder that holds what is written on the disk as yet.

        Where the disk lies over another layer, `fresh` is its writable part and the archive was packed from such a
        part: what it removes from the layer is removed here.

        Raises:
            DataLoss: the snapshot is broken.
            FailedPrecondition: the disk is too small for it (reason DISK_FULL).
        """
        self._fresh = {
            node.path: stat.S_ISDIR(node.status.st_mode) for node in trees.walk(fresh, self._check)
        }
        try:
            self.unpack(reader)
        except InvalidArgument as error:
            raise DataLoss(f"snapshot: {error.message}") from error

    def _finish_folders(self) -> None:
        for path in sorted(self._fresh, reverse=True):
            trees.remove_one(self._top, path, is_folder=self._fresh[path])
        super()._finish_folders()

    def _add(self, path: str, member: Member, reader: TarReader) -> None:
        self._fresh.pop(path, None)
        super()._add(path, member, reader)

    def _add_top(self, member: Member) -> None:
        self._folders[""] = member

    def _add_folder(self, parent: int, path: str, name: str, member: Member) -> None:
        if NOTE_OPAQUE in member.notes and self._is_folder(path):
            trees.remove_tree(
                self._top, path, self._check
            )  # what the layer beneath has there is hidden
        try:
            trees.make_folder(parent, name, 0o700, self._owner)
        except FileExistsError:
            if not self._is_folder(path):
                os.unlink(name, dir_fd=parent)
                trees.make_folder(parent, name, 0o700, self._owner)

    def _add_special(self, parent: int, path: str, name: str, member: Member) -> None:
        if member.kind is MemberKind.DEVICE:
            with contextlib.suppress(FileNotFoundError):
                trees.remove_tree(self._top, path, self._check)
            return
        temporary = self._make_name()
        os.mkfifo(temporary, 0o600, dir_fd=parent)
        self._put(parent, temporary, path, name, member)

    def _fill(self, descriptor: int, member: Member, reader: TarReader) -> None:
        if NOTE_SIZE not in member.notes:
            super()._fill(descriptor, member, reader)
            return
        extents = _extents(int(member.notes[NOTE_EXTENTS]), reader)
        for offset, length in zip(extents[::2], extents[1::2], strict=True):
            os.lseek(descriptor, offset, os.SEEK_SET)
            left = length
            while left:
                self._check()
                data = _some(reader, min(left, CHUNK_BYTES))
                write_all(descriptor, data)
                left -= len(data)
        os.ftruncate(descriptor, int(member.notes[NOTE_SIZE]))

    def _rename(self, parent: int, temporary: str, path: str, name: str) -> None:
        try:
            super()._rename(parent, temporary, path, name)
        except IsADirectoryError:
            trees.remove_tree(self._top, path, self._check)
            super()._rename(parent, temporary, path, name)

    def _is_folder(self, path: str) -> bool:
        try:
            os.close(trees.open_folder(self._top, path, trees.STRICT))
        except OSError:
            return False
        return True

    def _ids(self, member: Member) -> tuple[int, int]:
        return self._owner + member.uid, self._owner + member.gid

    def _mode(self, member: Member) -> int:
        return member.mode


def _unlink(parent: int, temporary: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=parent)


def _extents(count: int, reader: TarReader) -> array[int]:
    extents = array(EXTENT_TYPE)
    left = 2 * count * extents.itemsize
    places = bytearray()
    while left > len(places):
        places += _some(reader, left - len(places))
    extents.frombytes(bytes(places))
    return extents


def _some(reader: TarReader, max_bytes: int) -> bytes:
    data = reader.read(max_bytes)
    if not data:
        raise DataLoss("snapshot: a file's content is shorter than its notes say")
    return data
