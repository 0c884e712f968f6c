"""Tar archives in and out of the pod, streamed; and its snapshot, an archive of the writable folders."""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from sandbox.pod_agent.files import open_regular, shown
from servicekit.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange

_CHUNK_BYTES = 256 * 1024


class _Out(io.RawIOBase):
    """What tarfile writes to: hands pieces on and counts them."""

    def __init__(self, send: Callable[[bytes], None], max_bytes: int, path: str) -> None:
        super().__init__()
        self._send = send
        self._max_bytes = max_bytes
        self._path = path
        self.count = 0

    def write(self, data: Any) -> int:
        self.count += len(data)
        if self._max_bytes and self.count > self._max_bytes:
            raise OutOfRange(
                f"{shown(self._path)}: the archive would have more than {self._max_bytes} bytes"
            )
        self._send(bytes(data))
        return len(data)


class _Exactly:
    """A file read to the size that its header says, whatever is written to it meanwhile."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._file.read(wanted) if wanted else b""
        data = (data or b"").ljust(wanted, b"\0")
        self._left -= wanted
        return data


def pack(path: str, max_bytes: int, send: Callable[[bytes], None]) -> int:
    """Send an archive of a folder, names relative to it, or of a file; return its size."""
    if not os.path.lexists(path):
        raise NotFound(f"{shown(path)}: no such file inside the sandbox", reason="FILE_NOT_FOUND")
    if os.path.isdir(path):
        items = [(name, os.path.join(path, name)) for name in _names_below(path)]
    else:
        items = [(os.path.basename(path), path)]
    return _pack(iter(items), _Out(send, max_bytes, path))


def pack_folders(folders: Sequence[str], send: Callable[[bytes], None]) -> int:
    """Send an archive of whole folders, names relative to the root; return its size."""

    def items() -> Iterator[tuple[str, str]]:
        for folder in folders:
            if os.path.isdir(folder):
                yield folder.lstrip("/"), folder
                for name in _names_below(folder):
                    yield os.path.join(folder.lstrip("/"), name), os.path.join(folder, name)

    return _pack(items(), _Out(send, 0, "snapshot"))


def unpack(folder: str, archive: BinaryIO, only: Sequence[str] = ()) -> int:
    """Unpack an archive below a folder, which is made; return the number of entries.

    Nothing is written outside the folder, also where links that are there already lead out of it. With `only`, names
    must lie below one of these.
    """
    os.makedirs(folder, exist_ok=True)
    root = os.path.realpath(folder)
    count = 0
    folder_modes: list[tuple[str, int]] = []
    try:
        with tarfile.open(fileobj=archive, mode="r|*") as tar:
            for member in tar:
                _check(member, root, only)
                _extract(tar, member, root, folder_modes)
                count += 1
    except tarfile.TarError as error:
        raise InvalidArgument(f"no tar archive, or a damaged one: {error}") from error
    for path, mode in reversed(
        folder_modes
    ):  # last: a folder without the right to write must be filled first
        os.chmod(path, mode)
    return count


def _names_below(folder: str) -> Iterator[str]:
    """Yield the names of everything below a folder, parents first, in order of name."""
    for parent, folders, names in os.walk(folder, onerror=_refuse_closed):
        folders.sort()
        relative = os.path.relpath(parent, folder)
        for name in sorted(folders + names):
            yield name if relative == "." else os.path.join(relative, name)


def _refuse_closed(error: OSError, path: str = "") -> None:
    """Refuse what the sandbox's user has closed to itself; what is another's was never part of its state."""
    path = path or str(error.filename)
    if isinstance(error, PermissionError) and os.lstat(path).st_uid == os.getuid():
        raise FailedPrecondition(
            f"{shown(path)}: is closed to the sandbox's own user and cannot be packed",
            reason="UNREADABLE",
            attributable="workload",
        ) from error


def _pack(items: Iterator[tuple[str, str]], out: _Out) -> int:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, path in items:
            try:
                member = tar.gettarinfo(path, name)
            except FileNotFoundError:
                continue  # gone since
            except PermissionError as error:  # its folder may be listed and not entered
                _refuse_closed(error, os.path.dirname(path))
                continue
            if member is None:
                continue  # a socket
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if not member.isreg():
                if member.isdir() or member.issym() or member.isfifo() or member.islnk():
                    tar.addfile(member)
                continue
            try:
                file = open_regular(path)
            except PermissionError as error:
                _refuse_closed(error, path)
                continue
            except (FileNotFoundError, InvalidArgument):
                continue  # gone, or no file of a disk
            with file:
                tar.addfile(member, _Exactly(file, member.size))
    return out.count


def _check(member: tarfile.TarInfo, root: str, only: Sequence[str]) -> None:
    name = member.name.rstrip("/")
    parts = name.split("/")
    problem = ""
    if name.startswith("/") or ".." in parts:
        problem = "leaves the folder"
    elif only and not any(name == each or name.startswith(f"{each}/") for each in only):
        problem = f"lies outside {', '.join(only)}"
    elif not (
        member.isreg() or member.isdir() or member.issym() or member.islnk() or member.isfifo()
    ):
        problem = "is a device"
    elif not _is_below(os.path.dirname(os.path.join(root, name)), root):
        problem = "leads through a link out of the folder"
    elif member.islnk() and (
        member.linkname.startswith("/")
        or ".." in member.linkname.split("/")
        or not _is_below(os.path.join(root, member.linkname), root)
    ):
        problem = f"is a hard link to {shown(member.linkname)}, outside the folder"
    if problem:
        raise InvalidArgument(f"archive entry {shown(member.name)}: {problem}")


def _is_below(path: str, root: str) -> bool:
    real = os.path.realpath(path)
    return real == root or root == "/" or real.startswith(f"{root}/")


def _extract(
    tar: tarfile.TarFile, member: tarfile.TarInfo, root: str, folder_modes: list[tuple[str, int]]
) -> None:
    target = os.path.join(root, member.name.rstrip("/"))
    if member.isdir():
        os.makedirs(target, exist_ok=True)
        if os.path.realpath(target) not in ("/", root) and not os.path.ismount(target):
            folder_modes.append((target, member.mode & 0o777 | stat.S_IRWXU))
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(target) and not os.path.islink(target):
        raise InvalidArgument(f"archive entry {shown(member.name)}: a folder is in its place")
    if os.path.lexists(target):
        os.unlink(target)  # never written through: a link here may lead anywhere
    if member.issym():
        os.symlink(member.linkname, target)
    elif member.islnk():
        os.link(os.path.join(root, member.linkname), target, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(target, member.mode & 0o777)
    else:
        source = tar.extractfile(member)
        if source is None:
            raise FailedPrecondition(f"archive entry {shown(member.name)}: cannot be read")
        with open(target, "xb") as file:
            while data := source.read(_CHUNK_BYTES):
                file.write(data)
            os.fchmod(file.fileno(), member.mode & 0o777)
            os.utime(file.fileno(), (member.mtime, member.mtime))
