"""Root file systems that are imported once: from a folder or a tar archive (also .gz and .xz) into the data folder.

    <data_dir>/roots/<digest>/tree    content, owned by the uid that is root in a sandbox; lower layer of its overlay
    <data_dir>/roots/<source>.json    which digest a source was imported as, and what the source looked like then

An import is made beside its place and renamed when it is whole. The digest is over the content (paths, kinds, modes,
bytes, link targets), so equal roots are equal whatever they came from. When a manager starts to use a root it reads
all of it: one that is no longer what its name says is thrown away and imported anew, as is one whose source changed.

Set-uid bits, devices, FIFOs and sockets are left out: a sandbox has its own /dev, and nothing in it gains privileges.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import lzma
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from sandbox.rootfs import SHELL, WORKING_DIR, RootPlan
from sandbox.storage.archives import Member, TarReader
from sandbox.storage.ownership import ids
from sandbox.storage.unpacking import Unpacker
from servicekit.errors import FailedPrecondition, InvalidArgument

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Part of the digest; goes up whenever an import of the same source becomes another tree."""

_XZ_MAGIC = b"\xfd7zXZ\x00"
_PLACES = (("dev", 0o755), ("proc", 0o555), ("tmp", 0o1777), (WORKING_DIR.strip("/"), 0o755))
"""Folders that every root has: what is mounted in it, and where commands start."""
_PROGRAM_FOLDERS = ("bin", "lib", "lib64", "sbin", "usr")
_PROGRESS_SECONDS = 2.0
_KEPT_MODE = 0o1777


class Roots:
    """The imported roots of one data folder."""

    def __init__(
        self, folder: Path, owner: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keeps them in `folder`; all that is in them belongs to `owner`."""
        self._folder = folder
        self._owner = owner
        self._clock = clock

    def prepare(self, source: Path) -> RootPlan:
        """Return the root of a source, imported if it is not there, whole, from the source as it is now. Blocks.

        Raises:
            FailedPrecondition: there is no usable source; says what was found.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            stamp = _stamp(source)
            note = self._folder / f"{hashlib.sha256(os.fsencode(source)).hexdigest()[:32]}.json"
            digest = _noted_digest(note, stamp)
            if digest and not self._is_whole(digest):
                log.error("root changed since its import", extra={"root": str(source)})
                shutil.rmtree(self._folder / digest, ignore_errors=True)
                digest = ""
            if not digest:
                digest = self._import(source)
                _write_note(note, {"source": str(source), "stamp": stamp, "digest": digest})
        tree = self._folder / digest / "tree"
        return RootPlan(
            digest=f"sha256:{digest}", health_paths=_health_paths(tree), base=str(tree.absolute())
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other importers out, of this process and of others."""
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _is_whole(self, digest: str) -> bool:
        tree = self._folder / digest / "tree"
        return tree.is_dir() and digest_of(tree) == digest

    def _import(self, source: Path) -> str:
        for remains in self._folder.glob(".import-*"):  # of one that was interrupted
            shutil.rmtree(remains)
        making = self._folder / f".import-{uuid.uuid4().hex}"
        tree = making / "tree"
        tree.mkdir(parents=True)
        try:
            progress = _Progress(source, self._clock)
            if source.is_dir():
                _copy_folder(source, tree, progress)
            else:
                _unpack_archive(source, tree, self._owner, progress)
            _add_places(tree, source)
            _settle(tree, self._owner)
            digest = digest_of(tree)
            if not self._is_whole(digest):
                shutil.rmtree(self._folder / digest, ignore_errors=True)
                os.rename(making, self._folder / digest)
            progress.finish(digest)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return digest


class _Progress:
    """Says in the log how an import goes."""

    def __init__(self, source: Path, clock: Callable[[], float]) -> None:
        self._source = str(source)
        self._clock = clock
        self._begun = self._said = clock()
        self._count = 0
        self._bytes = 0
        self.left_out = 0
        """Devices and the like."""

    def add(self, num_files: int, num_bytes: int) -> None:
        self._count += num_files
        self._bytes += num_bytes
        if self._clock() - self._said > _PROGRESS_SECONDS:
            self._said = self._clock()
            log.info("importing root", extra=self._figures())

    def finish(self, digest: str) -> None:
        extra = {"digest": digest, "left_out_count": self.left_out}
        log.info("root imported", extra={**self._figures(), **extra})

    def _figures(self) -> dict[str, object]:
        seconds = max(self._clock() - self._begun, 0.001)
        return {
            "root": self._source,
            "file_count": self._count,
            "total_bytes": self._bytes,
            "seconds": round(seconds, 1),
            "mib_per_second": round(self._bytes / seconds / 2**20, 1),
        }


class _RootUnpacker(Unpacker):
    """Unpacks an archive of a root; what cannot be in a sandbox is left out instead of refused."""

    def __init__(self, top: int, owner: int, progress: _Progress) -> None:
        self._progress = progress
        super().__init__(
            top, owner=owner, make_name=lambda: f".hone-{uuid.uuid4().hex}", check=lambda: None
        )

    def _add(self, path: str, member: Member, reader: TarReader) -> None:
        super()._add(path, member, reader)
        self._progress.add(1, member.size)

    def _add_special(self, parent: int, path: str, name: str, member: Member) -> None:
        self._progress.left_out += 1


def digest_of(tree: Path) -> str:
    """Return the digest, in hexadecimal, of what is in a folder; reads all of it."""
    total = hashlib.sha256(f"root {FORMAT_VERSION}\n".encode())
    for path, status in _walk(tree):
        kind = stat.S_IFMT(status.st_mode)
        content = ""
        if kind == stat.S_IFREG:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        name = os.fsdecode(os.path.relpath(path, tree))
        line = json.dumps([name, kind, stat.S_IMODE(status.st_mode), content])
        total.update(line.encode() + b"\n")
    return total.hexdigest()


def _walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a folder, itself left out, in an order that depends on names alone."""
    pending = [top]
    while pending:
        with os.scandir(pending.pop()) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            yield Path(entry.path), entry.stat(follow_symlinks=False)
        pending += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _stamp(source: Path) -> str:
    """Return what tells, without reading content, whether a source is what it was.

    Raises:
        FailedPrecondition: it is neither a folder nor a file.
    """
    if not source.is_absolute() or not (source.is_dir() or source.is_file()):
        found = "nothing is there" if source.is_absolute() else "the path is not absolute"
        raise _unusable(
            source, f"{found}; it must be `host`, or the absolute path of a folder or a tar archive"
        )
    entries = _walk(source) if source.is_dir() else iter([(source, source.stat())])
    total = hashlib.sha256(f"{FORMAT_VERSION}\n".encode())
    for path, status in entries:
        figures = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        total.update(os.fsencode(path) + repr(figures).encode() + b"\n")
    return total.hexdigest()


def _noted_digest(note: Path, stamp: str) -> str:
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        return str(noted["digest"]) if noted["stamp"] == stamp else ""
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""  # never imported, or the note was cut off


def _write_note(note: Path, content: dict[str, str]) -> None:
    temporary = note.with_suffix(".new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, note)


def _copy_folder(source: Path, tree: Path, progress: _Progress) -> None:
    def leave_out(folder: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
        special = [
            name
            for name, mode in modes.items()
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
        ]
        progress.left_out += len(special)
        return special

    def copy(path: str, target: str) -> str:
        shutil.copy2(path, target, follow_symlinks=False)
        progress.add(1, os.lstat(target).st_size)
        return target

    try:
        shutil.copytree(
            source, tree, symlinks=True, ignore=leave_out, copy_function=copy, dirs_exist_ok=True
        )
    except (OSError, shutil.Error) as error:
        raise _unusable(source, f"cannot be copied: {error}") from error


def _unpack_archive(source: Path, tree: Path, owner: int, progress: _Progress) -> None:
    top = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _opened(source) as file:
            _RootUnpacker(top, owner, progress).unpack(TarReader(file))
    except (InvalidArgument, FailedPrecondition, OSError, lzma.LZMAError, EOFError) as error:
        raise _unusable(source, f"cannot be unpacked: {error}") from error
    finally:
        os.close(top)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    """Open an archive; gzip is undone by the reader, xz here."""
    with source.open("rb") as file:
        if file.read(len(_XZ_MAGIC)) == _XZ_MAGIC:
            file.seek(0)
            with lzma.open(file) as plain:
                yield plain  # type: ignore[misc]  # reads and seeks as a BinaryIO does
        else:
            file.seek(0)
            yield file


def _add_places(tree: Path, source: Path) -> None:
    if not any(tree.iterdir()):
        raise _unusable(source, "has nothing in it")
    for name, mode in _PLACES:
        place = tree / name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise _unusable(source, f"its /{name} must be a folder")
        if not place.exists():
            place.mkdir()
            place.chmod(mode)


def _settle(tree: Path, owner: int) -> None:
    """Give all of it to the sandbox's root, and take set-uid bits away."""
    os.chmod(tree, 0o755)
    for path, status in ((tree, tree.stat()), *_walk(tree)):
        os.chown(path, *ids(owner, owner), follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            # A folder that its owner could not enter would be in the way of whoever removes it.
            needed = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR
            os.chmod(path, status.st_mode & _KEPT_MODE | needed)


def _health_paths(tree: Path) -> tuple[str, ...]:
    names = [f"/{name}" for name in _PROGRAM_FOLDERS if os.path.lexists(tree / name)]
    shell = [SHELL] if os.path.lexists(tree / SHELL.strip("/")) else []
    return (*shell, *names)


def _unusable(source: Path, problem: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"rootfs {str(source)!r}: {problem}", reason="ROOT_UNUSABLE", attributable="client"
    )
