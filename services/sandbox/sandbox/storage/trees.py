"""Walking and changing a folder tree below a descriptor, from outside the sandbox that owns it.

Every step is resolved by openat2 beneath the descriptor, never crosses a mount point (the walk of a sandbox's root
meets its own disk alone, not /usr, /proc or /dev) and holds what it looked at by descriptor, so that a workload which
moves things meanwhile leads nowhere else.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from sandbox.spawner import syscalls
from sandbox.storage.ownership import ids
from servicekit.errors import FailedPrecondition

STRICT = (
    syscalls.RESOLVE_BENEATH
    | syscalls.RESOLVE_NO_SYMLINKS
    | syscalls.RESOLVE_NO_MAGICLINKS
    | syscalls.RESOLVE_NO_XDEV
)
"""Without any link on the way."""

BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
"""Links on the way are followed while they stay beneath."""

_MOVED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NOT_REMOVED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EBUSY)

Check = Callable[[], None]
"""Called between steps of long work; raises `Stopped` when it is to stop."""


class Stopped(Exception):
    """Long work was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a walk met; `descriptor` (O_PATH) is good until the walk goes on."""

    path: str
    """Relative to where the walk began."""
    descriptor: int
    status: os.stat_result


def walk(top: int, check: Check) -> Iterator[Node]:
    """Yield everything below a folder, each folder before its content, names in order of their bytes.

    What is gone or has been replaced by something else when its turn comes is left out.

    Raises:
        FailedPrecondition: a path is longer than the system lets it be named (reason PATH_TOO_LONG), or its mode
            keeps even its owner out, which binds a manager that is not root (reason UNREADABLE).
    """
    stack = [("", iter(names_in(top)))]
    while stack:
        prefix, names = stack[-1]
        name = next(names, None)
        if name is None:
            stack.pop()
            continue
        check()
        path = prefix + name
        try:
            descriptor = open_node(top, path)
        except OSError as error:
            if error.errno == errno.EXDEV or error.errno in _MOVED:
                continue  # a mount point, or gone meanwhile
            raise _refusal(path, error) from error
        try:
            status = os.fstat(descriptor)
            yield Node(path=path, descriptor=descriptor, status=status)
            if stat.S_ISDIR(status.st_mode):
                stack.append((f"{path}/", iter(names_in(descriptor))))
        except PermissionError as error:
            raise _refusal(path, error) from error
        finally:
            os.close(descriptor)


def names_in(folder: int, most: int | None = None) -> list[str]:
    """Return the names in a folder, given by an O_PATH descriptor, in order of their bytes; at most so many."""
    with reading(folder, os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as entries:
        return sorted((entry.name for entry in islice(entries, most)), key=os.fsencode)


@contextlib.contextmanager
def reading(descriptor: int, flags: int = 0) -> Iterator[int]:
    """Open what an O_PATH descriptor stands for, which is known to be a file or folder, for reading."""
    reader = os.open(link_of(descriptor), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        yield reader
    finally:
        os.close(reader)


def link_of(descriptor: int) -> str:
    """Return the path by which calls that know no O_PATH descriptors reach what it stands for."""
    return f"/proc/self/fd/{descriptor}"


def open_node(top: int, path: str) -> int:
    """Open whatever is at a path, not following a link there, without any link or mount point on the way."""
    return syscalls.openat2(top, path or ".", os.O_PATH | os.O_NOFOLLOW, STRICT)


def open_folder(top: int, path: str, resolve: int) -> int:
    """Open a folder for use as a starting point."""
    return syscalls.openat2(top, path or ".", os.O_PATH | os.O_DIRECTORY, resolve)


def make_folders(top: int, path: str, owner: int, resolve: int) -> int:
    """Return a descriptor of the folder at a path, made with its parents where they were missing.

    Raises:
        OSError: a part is no folder, or leads where `resolve` does not let it.
    """
    parts = PurePosixPath(path).parts
    existing = len(parts)
    while True:
        try:
            folder = open_folder(top, _join(parts[:existing]), resolve)
            break
        except FileNotFoundError:
            if not existing:
                raise
            existing -= 1
    for end in range(existing + 1, len(parts) + 1):
        try:
            make_folder(folder, parts[end - 1], 0o755, owner)
        except FileExistsError:
            pass  # made meanwhile, or a link to nothing, which the next step finds
        finally:
            os.close(folder)
        folder = open_folder(top, _join(parts[:end]), resolve)
    return folder


def make_folder(parent: int, name: str, mode: int, owner: int) -> None:
    """Make one folder."""
    os.mkdir(name, mode, dir_fd=parent)
    os.chown(name, *ids(owner, owner), dir_fd=parent, follow_symlinks=False)


def remove_tree(top: int, path: str, check: Check) -> None:
    """Remove what is at a path with all below it; mount points and the folders that hold them stay."""
    descriptor = open_node(top, path)
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        inside = [
            (node.path, stat.S_ISDIR(node.status.st_mode))
            for node in (walk(descriptor, check) if is_folder else ())
        ]
        for below, below_is_folder in reversed(inside):
            remove_one(descriptor, below, is_folder=below_is_folder)
    finally:
        os.close(descriptor)
    remove_one(top, path, is_folder=is_folder)


def remove_one(top: int, path: str, *, is_folder: bool) -> None:
    """Remove a file or an empty folder; one that is gone or not empty is left."""
    folder, _, name = path.rpartition("/")
    try:
        parent = open_folder(top, folder, STRICT)
    except OSError as error:
        if error.errno in _MOVED:
            return
        raise
    try:
        if is_folder:
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in _NOT_REMOVED:
            raise
    finally:
        os.close(parent)


def _join(parts: tuple[str, ...]) -> str:
    # An absolute path begins with the part "/"; resolution in a root takes it as that root.
    text = "/".join(parts)
    return text[1:] if text.startswith("//") else text or "."


def _refusal(path: str, error: OSError) -> Exception:
    if error.errno == errno.ENAMETOOLONG:
        return FailedPrecondition(
            f"...{path[-100:]}: the path has {len(os.fsencode(path))} bytes; folders nested so deep that their "
            "path has more than 4095 cannot be packed or saved",
            reason="PATH_TOO_LONG",
            attributable="workload",
        )
    if error.errno == errno.EACCES:
        return FailedPrecondition(
            f"{path[-200:]}: its mode, or that of a folder on the way, keeps its owner out; give it back with chmod",
            reason="UNREADABLE",
            attributable="workload",
        )
    return error
