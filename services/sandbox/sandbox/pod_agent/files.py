"""File operations inside the pod. Each runs in a worker process of its own, as the user of the commands.

That user's rights are the limit: the worker can reach nothing that a command could not. What is left to guard against
is hanging (a FIFO) and acting (a device, an entry of /proc): only regular files of real file systems are touched.
"""

import contextlib
import errno
import os
import secrets
import stat
from typing import Any

from servicekit.errors import FailedPrecondition, HoneError, InvalidArgument, NotFound, OutOfRange

MAX_READ_BYTES = 3 * 1024 * 1024
_SHOWN_CHARACTERS = 200
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev", "/dev/shm")
_COPY_BYTES = 1024 * 1024


def shown(path: str) -> str:
    """Return a path short enough for an error message."""
    if len(path) <= _SHOWN_CHARACTERS:
        return path
    return f"{path[:_SHOWN_CHARACTERS]}... ({len(path)} characters)"


def typed(path: str, error: OSError) -> HoneError:
    """Return what a failed operation on a path means to the caller."""
    if error.errno in (errno.ENOENT, errno.ELOOP):
        return NotFound(f"{shown(path)}: no such file inside the sandbox", reason="FILE_NOT_FOUND")
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return InvalidArgument(f"{shown(path)}: a part of it is not a folder, or it is one")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
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


def read(path: str, offset_bytes: int, max_bytes: int) -> tuple[bytes, int]:
    """Return a part of a regular file, and the size of the whole; `max_bytes` 0 means all of it."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not max_bytes and size - offset_bytes > MAX_READ_BYTES:
            raise OutOfRange(
                f"{shown(path)}: {size} bytes from {offset_bytes} on are more than {MAX_READ_BYTES}; "
                "read it in parts with offset_bytes and max_bytes"
            )
        file.seek(offset_bytes)
        return file.read(min(max_bytes or MAX_READ_BYTES, MAX_READ_BYTES)), size


def write(path: str, content: bytes, mode: int) -> None:
    """Write a file whole (temporary name, then rename); parents are made; a link's target is written in place."""
    parent, name = os.path.split(path)
    _make_parents(path, parent)
    _refuse_kernel_folder(path, os.stat(parent).st_dev)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        _write_beside(parent, name, content, mode)
        return
    if stat.S_ISLNK(status.st_mode):
        with open_regular(path, os.O_WRONLY | os.O_TRUNC) as file:
            write_all(file.fileno(), content)  # a full disk takes a part before it refuses
    elif stat.S_ISREG(status.st_mode):
        _write_beside(parent, name, content, mode)
    else:
        raise InvalidArgument(
            f"{shown(path)}: is {_kind_text(status.st_mode)}; only a regular file is replaced"
        )


def stat_entry(path: str, name: str = "") -> dict[str, Any]:
    """Say what a path is; a link is not followed."""
    status = os.lstat(path)
    return {
        "name": name or os.path.basename(path.rstrip("/")) or "/",
        "kind": _kind(status.st_mode),
        "size_bytes": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modify_time": status.st_mtime,
        "link_target": os.readlink(path) if stat.S_ISLNK(status.st_mode) else "",
    }


def list_entries(path: str) -> list[dict[str, Any]]:
    """List a folder, in order of name."""
    entries = []
    for name in sorted(os.listdir(path)):
        with contextlib.suppress(FileNotFoundError):  # gone since
            entries.append(stat_entry(os.path.join(path, name), name))
    return entries


def open_regular(path: str, flags: int = os.O_RDONLY) -> Any:
    """Open a regular file for real only after it is known to be harmless."""
    # Links are followed here: gVisor loses its way when O_PATH meets one that begins at the root.
    handle = os.open(os.path.realpath(path), os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(
                f"{shown(path)}: is {_kind_text(status.st_mode)}; only regular files can be used"
            )
        _refuse_kernel_folder(path, status.st_dev)
        descriptor = os.open(f"/proc/self/fd/{handle}", flags | os.O_CLOEXEC)
    finally:
        os.close(handle)
    return os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "wb", buffering=0)


def write_all(descriptor: int, content: bytes) -> None:
    """Write to the last byte."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view[:_COPY_BYTES]) :]


def _make_parents(path: str, parent: str) -> None:
    try:
        os.makedirs(parent, exist_ok=True)
    except FileExistsError as error:
        if os.path.islink(str(error.filename)):
            raise NotFound(
                f"{shown(path)}: a link leads out of the sandbox's files", reason="FILE_NOT_FOUND"
            ) from error
        raise InvalidArgument(f"{shown(path)}: a part of it is not a folder") from error


def _write_beside(parent: str, name: str, content: bytes, mode: int) -> None:
    temporary = os.path.join(parent, f".hone-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(descriptor, content)
            os.fchmod(descriptor, mode & 0o777)
        finally:
            os.close(descriptor)
        os.rename(temporary, os.path.join(parent, name))
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _refuse_kernel_folder(path: str, device: int) -> None:
    """Refuse what is no file of the sandbox's disk; where a link led there, it led out."""
    for folder in _KERNEL_FOLDERS:
        if not os.path.exists(folder) or os.stat(folder).st_dev != device:
            continue
        if device == os.stat("/").st_dev:
            continue  # an empty folder of the root file system
        if os.path.realpath(path) != os.path.normpath(path):
            raise NotFound(
                f"{shown(path)}: a link leads out of the sandbox's files", reason="FILE_NOT_FOUND"
            )
        raise InvalidArgument(f"{shown(path)}: is no file of a disk but an entry of {folder}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(mode), "other")


def _kind_text(mode: int) -> str:
    texts = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a link",
    }
    return texts.get(stat.S_IFMT(mode), "no regular file")
