"""Files of a sandbox, read and written from outside through its root's descriptor.

Every path is resolved by openat2 as if the sandbox's root were the root (RESOLVE_IN_ROOT), so no link leads out, and
magic links are refused. Only regular files on the sandbox's own disk or in its read-only /usr are touched: opening a
FIFO would hang, a device or an entry of /proc would act.
"""

import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Callable
from pathlib import PurePosixPath

from sandbox.spawner import syscalls
from sandbox.storage import trees
from sandbox.storage.ownership import ids
from sandbox.types import BoxFile, FileContent, FileEntry, FileKind
from servicekit.errors import (
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
)

MAX_READ_BYTES = 3 * 1024 * 1024
"""Most that one read returns; fits a gRPC message."""

MAX_LISTED = 100_000
"""Most entries of a folder that is listed."""

MAX_SHOWN_CHARACTERS = 200
"""Of a path in an error message."""

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_OWN_DISK = _RESOLVE | syscalls.RESOLVE_NO_XDEV

MakeName = Callable[[], str]
"""Makes a file name that is used nowhere yet."""


class BoxFiles:
    """The files below one root descriptor."""

    def __init__(self, root: int, owner: int, make_name: MakeName) -> None:
        """Works below `root`; new files belong to `owner`, temporary ones are called `make_name()`."""
        self._root = root
        self._owner = owner
        self._make_name = make_name
        self._devices = {os.fstat(root).st_dev, *self._device_of("/usr")}

    def read(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a part of a regular file; `max_bytes` 0 means all of it.

        Raises:
            NotFound: nothing is there, also where a link would lead out of the root.
            InvalidArgument: it is not a regular file of the sandbox.
            OutOfRange: it is larger than one read may return and no range was given.
        """
        descriptor = self._open_regular(path)
        try:
            size = os.fstat(descriptor).st_size
            if not max_bytes and size - offset_bytes > MAX_READ_BYTES:
                raise OutOfRange(
                    f"{shown(path)}: {size} bytes from {offset_bytes} on are more than {MAX_READ_BYTES}; "
                    "read it in parts with offset_bytes and max_bytes"
                )
            wanted = min(max_bytes or MAX_READ_BYTES, MAX_READ_BYTES)
            # The path of an O_PATH descriptor is opened for real only after it is known to be harmless.
            reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            with os.fdopen(reader, "rb", buffering=0) as file:
                file.seek(offset_bytes)
                content = file.read(wanted)
            return FileContent(content=content or b"", size_bytes=size)
        except OSError as error:
            raise typed(path, error) from error
        finally:
            os.close(descriptor)

    def write(self, file: BoxFile) -> None:
        """Write a file whole (temporary name, then rename); parents are made.

        Raises:
            NotFound: a link on the way leads out of the root.
            InvalidArgument: the path is not of a regular file on the sandbox's disk.
            FailedPrecondition: the disk is full (reason DISK_FULL).
        """
        path = PurePosixPath(file.path)
        try:
            parent = trees.make_folders(self._root, str(path.parent), self._owner, _OWN_DISK)
        except OSError as error:
            raise typed(file.path, error) from error
        try:
            if self._is_link(parent, path.name):
                self._write_through(file)
            else:
                self._write_beside(parent, path.name, file)
        except OSError as error:
            raise typed(file.path, error) from error
        finally:
            os.close(parent)

    def list_folder(self, path: str) -> list[FileEntry]:
        """List a folder on the sandbox's own disk or in its read-only /usr, in order of the names' bytes.

        Raises:
            NotFound: nothing is there. InvalidArgument: it is no such folder.
            OutOfRange: it has more than `MAX_LISTED` entries.
        """
        try:
            folder = self._open_folder(path)
            try:
                names = trees.names_in(folder, MAX_LISTED + 1)
                if len(names) > MAX_LISTED:
                    raise OutOfRange(f"{shown(path)}: has more than {MAX_LISTED} entries")
                found = (self._entry(folder, name) for name in names)
                return [entry for entry in found if entry is not None]
            finally:
                os.close(folder)
        except OSError as error:
            raise typed(path, error) from error

    def look_at(self, path: str) -> FileEntry:
        """Say what a path is; a link in its last part is not followed.

        Raises:
            NotFound: nothing is there.
        """
        flags = os.O_PATH | os.O_NOFOLLOW
        try:
            descriptor = syscalls.openat2(self._root, path, flags, _RESOLVE)
            try:
                entry = self._entry(descriptor, "")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise typed(path, error) from error
        assert entry is not None
        return dataclasses.replace(entry, name=PurePosixPath(path).name)

    def open_target(self, folder: str) -> int:
        """Return a descriptor of a folder on the sandbox's own disk, made where it was missing.

        Raises:
            NotFound: a link on the way leads out of the root.
            InvalidArgument: it is not on the own disk, or no folder.
        """
        try:
            return trees.make_folders(self._root, folder, self._owner, _OWN_DISK)
        except OSError as error:
            raise typed(folder, error) from error

    def open_source(self, path: str) -> int:
        """Return an O_PATH descriptor of a regular file or folder of the sandbox, links followed.

        Raises:
            NotFound: nothing is there. InvalidArgument: it is neither, or not of the sandbox.
        """
        try:
            descriptor = syscalls.openat2(self._root, path, os.O_PATH, _RESOLVE)
        except OSError as error:
            raise typed(path, error) from error
        status = os.fstat(descriptor)
        usable = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if not usable or status.st_dev not in self._devices:
            os.close(descriptor)
            raise InvalidArgument(
                f"{shown(path)}: is {_kind(status.st_mode)}; only files and folders of the sandbox can be packed"
            )
        return descriptor

    def exists(self, path: str) -> bool:
        """Say whether a path leads to something inside the root."""
        try:
            os.close(syscalls.openat2(self._root, path, os.O_PATH, _RESOLVE))
        except OSError:
            return False
        return True

    def _open_regular(self, path: str) -> int:
        try:
            descriptor = syscalls.openat2(self._root, path, os.O_PATH, _RESOLVE)
        except OSError as error:
            raise typed(path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_dev not in self._devices:
            os.close(descriptor)
            raise InvalidArgument(
                f"{shown(path)}: is {_kind(status.st_mode)}; only regular files of the sandbox can be used"
            )
        return descriptor

    def _open_folder(self, path: str) -> int:
        descriptor = syscalls.openat2(self._root, path, os.O_PATH | os.O_DIRECTORY, _RESOLVE)
        if os.fstat(descriptor).st_dev not in self._devices:
            os.close(descriptor)
            raise InvalidArgument(
                f"{shown(path)}: not on the sandbox's own disk or in its /usr; nothing else is listed"
            )
        return descriptor

    def _entry(self, folder: int, name: str) -> FileEntry | None:
        """Describe what a name stands for, or with an empty one the descriptor itself; None if it is gone."""
        try:
            status = (
                os.stat(name, dir_fd=folder, follow_symlinks=False) if name else os.fstat(folder)
            )
            # What a link of /proc says is about this process's world, not about the sandbox's.
            is_own = stat.S_ISLNK(status.st_mode) and status.st_dev in self._devices
            target = os.readlink(name, dir_fd=folder) if is_own else ""
        except FileNotFoundError:
            return None
        return FileEntry(
            name=name,
            kind=_KINDS.get(stat.S_IFMT(status.st_mode), FileKind.OTHER),
            size_bytes=status.st_size,
            mode=stat.S_IMODE(status.st_mode),
            modify_time=status.st_mtime_ns / 1e9,
            link_target=target,
        )

    def _is_link(self, parent: int, name: str) -> bool:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            return stat.S_ISLNK(status.st_mode)
        raise InvalidArgument(
            f"{shown(name)}: is {_kind(status.st_mode)}; only a regular file is replaced"
        )

    def _write_through(self, file: BoxFile) -> None:
        """Write the file that a link leads to, in place."""
        descriptor = self._open_regular(file.path)
        try:
            if os.fstat(descriptor).st_dev != os.fstat(self._root).st_dev:
                raise InvalidArgument(f"{shown(file.path)}: leads to a read-only file")
            writer = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_TRUNC)
            with os.fdopen(writer, "wb", buffering=0) as target:
                write_all(target.fileno(), file.content)
        finally:
            os.close(descriptor)

    def _write_beside(self, parent: int, name: str, file: BoxFile) -> None:
        temporary = self._make_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
        try:
            write_all(descriptor, file.content)
            os.fchown(descriptor, *ids(self._owner, self._owner))
            os.fchmod(descriptor, file.mode & 0o777)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            raise
        finally:
            os.close(descriptor)

    def _device_of(self, path: str) -> list[int]:
        try:
            descriptor = syscalls.openat2(self._root, path, os.O_PATH, _RESOLVE)
        except OSError:
            return []
        try:
            return [os.fstat(descriptor).st_dev]
        finally:
            os.close(descriptor)


_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.FOLDER,
    stat.S_IFLNK: FileKind.LINK,
}


def check_folder(path: str, field: str) -> None:
    """Refuse what cannot be a path of a folder, or of anything else, in a sandbox.

    Raises:
        InvalidArgument: it is not absolute, or goes up.
    """
    if path != "/":
        check_path(path.rstrip("/") or path, field)


def check_path(path: str, field: str) -> None:
    """Refuse what cannot be a path of a file in a sandbox.

    Raises:
        InvalidArgument: it is not absolute, names no file, or goes up.
    """
    problem = ""
    if not path.startswith("/"):
        problem = "must be absolute, for example /work/answer.txt"
    elif path.endswith("/") or path == "/":
        problem = "must name a file, not a folder"
    elif ".." in PurePosixPath(path).parts:
        problem = "must not contain .."
    elif "\0" in path or len(path.encode()) > 4095:
        problem = "must have at most 4095 bytes and no NUL"
    if problem:
        raise InvalidArgument(f"{field} {shown(path)!r}: {problem}", violations={field: problem})


def shown(path: str) -> str:
    """Return a path short enough for an error message, which travels in a header of bounded size."""
    if len(path) <= MAX_SHOWN_CHARACTERS:
        return path
    return f"{path[:MAX_SHOWN_CHARACTERS]}... ({len(path)} characters)"


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _kind(mode: int) -> str:
    names = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a link",
    }
    return names.get(stat.S_IFMT(mode), "a file of another file system")


def typed(path: str, error: OSError) -> HoneError:
    """Return what a caller is told of a failed system call about a path."""
    if error.errno in (errno.ENOENT, errno.ELOOP):
        return NotFound(f"{shown(path)}: no such file inside the sandbox", reason="FILE_NOT_FOUND")
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return InvalidArgument(f"{shown(path)}: a part of it is not a folder, or it is one")
    if error.errno == errno.EXDEV:
        return InvalidArgument(
            f"{shown(path)}: not on the sandbox's own disk; writable are / and below"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return InvalidArgument(f"{shown(path)}: {os.strerror(error.errno)}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FailedPrecondition(
            f"{shown(path)}: the sandbox's disk is full",
            reason="DISK_FULL",
            attributable="workload",
        )
    if error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO):
        return Unavailable(f"{shown(path)}: {os.strerror(error.errno)}", reason="NO_MEANS")
    return FailedPrecondition(
        f"{shown(path)}: {os.strerror(error.errno or errno.EIO)}", attributable="workload"
    )
