"""Files of a container, through the engine's archive calls.

The engine resolves every path within the container's own root, so no link leads out by construction, and packs FIFOs
and devices without opening them. It sees the root and the volumes, not what the kernel shows in /proc, /sys and /dev:
paths there are refused. Writing is unpacking an archive of one file, in place.
"""

import asyncio
import base64
import json
import posixpath
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sandbox.backends import container_archives
from sandbox.backends.docker.engine import Engine, Missing, Refused
from sandbox.storage.archives import Member, MemberKind
from sandbox.storage.files import MAX_READ_BYTES, shown
from sandbox.types import BoxFile, FileContent, FileEntry, FileKind
from servicekit.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
)

MAX_FILE_BYTES = 1 << 30
"""Of a file that is read, and of the archive of a link."""

_FOLDER, _LINK, _SPECIAL = 1 << 31, 1 << 27, 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""Type bits as the engine says them (Go's FileMode)."""

_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_PARALLEL_STATS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the engine says of a path."""

    path: str
    kind: FileKind
    size: int
    mode: int
    modify_time: float
    leads_to: str
    """Of a link: where it ends, inside the container."""


class ContainerFiles:
    """The files of one container."""

    def __init__(
        self, engine: Engine, container: str, user: int, group: int, scratch: Path
    ) -> None:
        """New files belong to the user; archives on their way lie in `scratch`."""
        self._engine = engine
        self._container = container
        self._user = user
        self._group = group
        self._scratch = scratch

    async def read(self, path: str, offset_bytes: int, max_bytes: int) -> FileContent:
        """Read a part of a regular file; see `BoxFiles.read`."""
        found = await self._regular(path)
        if not max_bytes and found.size - offset_bytes > MAX_READ_BYTES:
            raise OutOfRange(
                f"{shown(path)}: {found.size} bytes from {offset_bytes} on are more than {MAX_READ_BYTES}; "
                "read it in parts with offset_bytes and max_bytes"
            )
        wanted = min(max_bytes or MAX_READ_BYTES, MAX_READ_BYTES)
        async with self._archive_of(found.path, MAX_FILE_BYTES) as archive:
            member, content = await asyncio.to_thread(
                container_archives.read_first, archive, offset_bytes, wanted
            )
        if member.kind is not MemberKind.FILE:
            raise InvalidArgument(
                f"{shown(path)}: is a {member.kind}; only regular files can be read"
            )
        return FileContent(content=content, size_bytes=member.size)

    async def write(self, file: BoxFile) -> None:
        """Write a file in place; parents are made."""
        _refuse_kernel(file.path)
        folder, name = posixpath.split(file.path)
        try:
            found = await self._find(file.path)
        except NotFound:
            found = None
        if found is not None and found.kind is FileKind.LINK:
            target = await self._regular(file.path)
            folder, name = posixpath.split(target.path)
        elif found is not None and found.kind is not FileKind.FILE:
            raise InvalidArgument(
                f"{shown(file.path)}: is {_words(found.kind)}; only a regular file is replaced"
            )
        else:
            folder = await self.make_folder(folder)
        member = self._member(name, MemberKind.FILE, file.mode & 0o777, len(file.content))
        async with self._empty_archive() as archive:
            await asyncio.to_thread(
                container_archives.write_members, archive, [(member, file.content)]
            )
            await self._send(folder, archive, file.path)

    async def stat(self, path: str) -> FileEntry:
        """Say what a path is; see `Box.stat_file`."""
        found = await self._find(path)
        target = ""
        if found.kind is FileKind.LINK:  # the engine says where it ends, its archive what it says
            async with self._archive_of(path, MAX_FILE_BYTES) as archive:
                member, _ = await asyncio.to_thread(container_archives.read_first, archive, 0, 0)
            target = member.link_target
        return FileEntry(
            name=posixpath.basename(path.rstrip("/")) or "/",
            kind=found.kind,
            size_bytes=found.size,
            mode=found.mode,
            modify_time=found.modify_time,
            link_target=target,
        )

    async def entries(
        self, path: str, names: Callable[[str], Awaitable[list[str]]]
    ) -> list[FileEntry]:
        """List a folder; `names` returns what is in it, which the engine has no call for."""
        folder = await self.folder(path)
        turn = asyncio.Semaphore(_PARALLEL_STATS)

        async def entry(name: str) -> FileEntry | None:
            async with turn:
                try:
                    return await self.stat(posixpath.join(folder, name))
                except NotFound:
                    return None  # gone meanwhile

        found = await asyncio.gather(*(entry(name) for name in sorted(await names(folder))))
        return [one for one in found if one is not None]

    async def unpack(self, folder: str, archive: Path) -> None:
        """Unpack an archive below a folder; see `Box.unpack`."""
        async with self._empty_archive() as checked:
            inner = await asyncio.to_thread(
                container_archives.admit, archive, checked, self._user, self._group
            )
            top = await self.make_folder(folder)
            await self._refuse_links(top, inner)
            await self._send(top, checked, folder)

    async def pack(self, path: str, archive: Path, max_bytes: int) -> None:
        """Pack a folder's content or a file; see `Box.pack`."""
        found = await self._followed(path)
        is_folder = found.kind is FileKind.FOLDER
        if not is_folder and found.kind is not FileKind.FILE:
            raise InvalidArgument(
                f"{shown(path)}: is {_words(found.kind)}; folders and files can be packed"
            )
        source = f"{found.path.rstrip('/')}/." if is_folder else found.path
        own_name = posixpath.basename(path.rstrip("/"))

        def rename(name: str) -> str:
            inner = posixpath.normpath(name)
            return ("" if inner == "." else inner) if is_folder else own_name

        async with self._archive_of(source, 2 * max_bytes + MAX_FILE_BYTES) as fetched:
            await asyncio.to_thread(container_archives.renamed, fetched, archive, rename, max_bytes)

    async def save(self, folders: tuple[str, ...], target: Path) -> None:
        """Save folders as they are into one file."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            for number, folder in enumerate(folders):
                await self._engine.fetch(
                    self._container,
                    f"{folder}/.",
                    Path(place, str(number)),
                    container_archives.MAX_BYTES,
                )
            await asyncio.to_thread(_join, Path(place), len(folders), target)

    async def restore(self, folders: tuple[str, ...], source: Path) -> None:
        """Make folders what `save` found them to be."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            await asyncio.to_thread(_split, source, Path(place), len(folders))
            for number, folder in enumerate(folders):
                await self._send(folder, Path(place, str(number)), folder)

    async def folder(self, path: str) -> str:
        """Return the real path of a folder that exists."""
        found = await self._followed(path)
        if found.kind is not FileKind.FOLDER:
            raise InvalidArgument(f"{shown(path)}: is {_words(found.kind)}, not a folder")
        return found.path

    async def make_folder(self, path: str) -> str:
        """Return the real path of a folder, made with its parents where it is missing."""
        _refuse_kernel(path)
        missing: list[str] = []
        base = path.rstrip("/") or "/"
        while True:
            try:
                found = await self._find(base)
            except NotFound:
                base, name = posixpath.split(base)
                missing.insert(0, name)
                continue
            break
        base = await self.folder(found.path)
        if missing:
            paths = ["/".join(missing[: number + 1]) for number in range(len(missing))]
            members = [(self._member(one, MemberKind.FOLDER, 0o755, 0), b"") for one in paths]
            async with self._empty_archive() as archive:
                await asyncio.to_thread(container_archives.write_members, archive, members)
                await self._send(base, archive, path)
        return posixpath.join(base, *missing)

    async def exists(self, path: str) -> bool:
        """Say whether a path leads to something."""
        try:
            await self._followed(path)
        except NotFound:
            return False
        return True

    def _member(self, path: str, kind: MemberKind, mode: int, size: int) -> Member:
        return Member(
            path=path,
            kind=kind,
            mode=mode,
            size=size,
            uid=self._user,
            gid=self._group,
            modify_ns=time.time_ns(),
        )

    async def _regular(self, path: str) -> _Found:
        _refuse_kernel(path)
        found = await self._followed(path)
        if found.kind is not FileKind.FILE:
            raise InvalidArgument(
                f"{shown(path)}: is {_words(found.kind)}; only regular files of the sandbox can be used"
            )
        return found

    async def _followed(self, path: str) -> _Found:
        found = await self._find(path)
        if found.kind is not FileKind.LINK:
            return found
        if _is_kernel(found.leads_to):
            raise NotFound(
                f"{shown(path)}: leads to no file of the sandbox", reason="FILE_NOT_FOUND"
            )
        end = await self._find(found.leads_to)
        if end.kind is FileKind.LINK:  # the engine follows to the end; a loop has none
            raise NotFound(f"{shown(path)}: is a loop of links", reason="FILE_NOT_FOUND")
        return end

    async def _find(self, path: str) -> _Found:
        try:
            encoded = await self._engine.stat(self._container, path)
        except Missing as error:
            raise NotFound(
                f"{shown(path)}: no such file inside the sandbox", reason="FILE_NOT_FOUND"
            ) from error
        except Refused as error:
            raise InvalidArgument(f"{shown(path)}: {error.message}") from error
        except Unavailable as error:
            if "too many links" in error.message or "levels of symbolic links" in error.message:
                raise NotFound(
                    f"{shown(path)}: is a loop of links", reason="FILE_NOT_FOUND"
                ) from error
            if "not a directory" in error.message:
                raise InvalidArgument(f"{shown(path)}: a part of it is not a folder") from error
            raise
        said = json.loads(base64.b64decode(encoded))
        mode = int(said["mode"])
        return _Found(
            path=path,
            kind=_kind(mode),
            size=int(said["size"]),
            mode=mode & 0o777,
            modify_time=datetime.fromisoformat(_microseconds(said["mtime"])).timestamp(),
            leads_to=said.get("linkTarget", ""),
        )

    async def _refuse_links(self, top: str, folders: list[str]) -> None:
        """Refuse to unpack through links that are in the sandbox already."""
        turn = asyncio.Semaphore(_PARALLEL_STATS)

        async def look(folder: str) -> None:
            async with turn:
                try:
                    found = await self._find(posixpath.join(top, folder))
                except NotFound:
                    return
            if found.kind is FileKind.LINK:
                raise InvalidArgument(f"archive: {shown(folder)!r} is a link in the sandbox")

        await asyncio.gather(*(look(folder) for folder in folders))

    async def _send(self, folder: str, archive: Path, shown_path: str) -> None:
        try:
            await self._engine.send(self._container, folder, archive)
        except Missing as error:
            raise NotFound(
                f"{shown(shown_path)}: {error.message}", reason="FILE_NOT_FOUND"
            ) from error
        except Refused as error:
            raise InvalidArgument(f"{shown(shown_path)}: {error.message}") from error
        except Unavailable as error:
            if "no space left" in error.message or "quota exceeded" in error.message:
                raise FailedPrecondition(
                    f"{shown(shown_path)}: the sandbox's disk is full",
                    reason="DISK_FULL",
                    attributable="workload",
                ) from error
            if "read-only" in error.message:
                raise InvalidArgument(
                    f"{shown(shown_path)}: on the read-only root; writable are /work, /tmp and /root"
                ) from error
            raise

    @asynccontextmanager
    async def _empty_archive(self) -> AsyncIterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            yield Path(place, "archive")

    @asynccontextmanager
    async def _archive_of(self, path: str, max_bytes: int) -> AsyncIterator[Path]:
        async with self._empty_archive() as archive:
            try:
                await self._engine.fetch(self._container, path, archive, max_bytes)
            except Missing as error:
                raise NotFound(
                    f"{shown(path)}: no such file inside the sandbox", reason="FILE_NOT_FOUND"
                ) from error
            except Refused as error:
                raise InvalidArgument(f"{shown(path)}: {error.message}") from error
            yield archive


def _join(place: Path, count: int, target: Path) -> None:
    with tarfile.open(target, "w") as whole:
        for number in range(count):
            whole.add(place / str(number), str(number))


def _split(source: Path, place: Path, count: int) -> None:
    with tarfile.open(source, "r:") as whole:
        for number in range(count):
            part = whole.extractfile(str(number))
            if part is None:
                raise DataLoss(f"{source}: is no snapshot of this backend")
            with part, (place / str(number)).open("wb") as file:
                shutil.copyfileobj(part, file)


def _is_kernel(path: str) -> bool:
    plain = posixpath.normpath(path)
    return any(plain == folder or plain.startswith(f"{folder}/") for folder in _KERNEL_FOLDERS)


def _refuse_kernel(path: str) -> None:
    if _is_kernel(path):
        raise InvalidArgument(f"{shown(path)}: not on the sandbox's own disk")


def _kind(mode: int) -> FileKind:
    if mode & _FOLDER:
        return FileKind.FOLDER
    if mode & _LINK:
        return FileKind.LINK
    return FileKind.OTHER if mode & _SPECIAL else FileKind.FILE


def _words(kind: FileKind) -> str:
    return {FileKind.FOLDER: "a folder", FileKind.OTHER: "a FIFO, socket or device"}.get(
        kind, f"a {kind}"
    )


def _microseconds(time: str) -> str:
    """Cut the nanoseconds that the engine says down to what Python reads."""
    head, dot, rest = time.partition(".")
    if not dot:
        return time
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return f"{head}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}"
