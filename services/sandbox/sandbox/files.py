"""Files of a sandbox, read and written from outside through its root's descriptor.

Every path is resolved by openat2 as if the sandbox's root were the root (RESOLVE_IN_ROOT), so no link leads out, and
magic links are refused. Only regular files on the sandbox's own disk or in its read-only /usr are touched: opening a
FIFO would hang, a device or an entry of /proc would act.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import PurePosixPath

from sandbox.spawner import syscalls
from sandbox.types import BoxFile, FileContent
from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument, NotFound, OutOfRange

MAX_READ_BYTES = 3 * 1024 * 1024
"""Most that one read returns; fits a gRPC message."""

MAX_SHOWN_CHARACTERS = 200
"""Of a path in an error message."""

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


class BoxFiles:
    """The files below one root descriptor."""

    def __init__(self, root: int, owner: int, make_name: Callable[[], str]) -> None:
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
            raise _typed(path, error) from error
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
            parent = self._make_parents(path.parent)
        except OSError as error:
            raise _typed(file.path, error) from error
        try:
            if self._is_link(parent, path.name):
                self._write_through(file)
            else:
                self._write_beside(parent, path.name, file)
        except OSError as error:
            raise _typed(file.path, error) from error
        finally:
            os.close(parent)

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
            raise _typed(path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_dev not in self._devices:
            os.close(descriptor)
            raise InvalidArgument(
                f"{shown(path)}: is {_kind(status.st_mode)}; only regular files of the sandbox can be used"
            )
        return descriptor

    def _make_parents(self, folder: PurePosixPath) -> int:
        """Return a descriptor of the folder on the sandbox's disk, made where it was missing."""
        flags = os.O_PATH | os.O_DIRECTORY
        resolve = _RESOLVE | syscalls.RESOLVE_NO_XDEV
        with contextlib.suppress(FileNotFoundError):
            return syscalls.openat2(self._root, str(folder), flags, resolve)
        if folder == folder.parent:
            raise FileNotFoundError(errno.ENOENT, "the root is gone")
        parent = self._make_parents(folder.parent)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o755, dir_fd=parent)
                os.chown(
                    folder.name, self._owner, self._owner, dir_fd=parent, follow_symlinks=False
                )
        finally:
            os.close(parent)
        return syscalls.openat2(self._root, str(folder), flags, resolve)

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
                _write_all(target.fileno(), file.content)
        finally:
            os.close(descriptor)

    def _write_beside(self, parent: int, name: str, file: BoxFile) -> None:
        temporary = self._make_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
        try:
            _write_all(descriptor, file.content)
            os.fchown(descriptor, self._owner, self._owner)
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


def _write_all(descriptor: int, content: bytes) -> None:
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


def _typed(path: str, error: OSError) -> HoneError:
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
    return FailedPrecondition(
        f"{shown(path)}: {os.strerror(error.errno or errno.EIO)}", attributable="workload"
    )
