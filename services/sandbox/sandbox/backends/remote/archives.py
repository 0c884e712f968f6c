"""Archives on their way between the manager's disk and a remote sandbox."""

from pathlib import Path, PurePosixPath
from typing import BinaryIO

from sandbox.storage.archives import MemberKind, TarReader
from sandbox.storage.files import shown
from servicekit.errors import InvalidArgument, OutOfRange


class BoundedFile:
    """A file that takes only so much."""

    def __init__(self, target: BinaryIO, max_bytes: int, path: str) -> None:
        """Writes to `target`; `path` is what errors name."""
        self._target = target
        self._left = max_bytes
        self._path = path

    def write(self, data: bytes) -> None:
        """Take a piece.

        Raises:
            OutOfRange: it is too much.
        """
        self._left -= len(data)
        if self._left < 0:
            raise OutOfRange(f"{shown(self._path)}: its archive is larger than allowed")
        self._target.write(data)


def check_archive(archive: Path) -> None:
    """Refuse what must not be unpacked, by the archive's own words; the sandbox holds the rest in itself.

    Raises:
        InvalidArgument: it is no tar archive, or an entry would leave the folder.
    """
    links: set[tuple[str, ...]] = set()
    with archive.open("rb") as source:
        for member in TarReader(source).members():
            parts = PurePosixPath(member.path).parts
            name = shown(member.path)
            if member.path.startswith("/") or ".." in parts:
                raise InvalidArgument(f"archive: {name!r} would leave the folder")
            if any(parts[:depth] in links for depth in range(1, len(parts))):
                raise InvalidArgument(f"archive: {name!r} passes through a link")
            if member.kind in (MemberKind.DEVICE, MemberKind.FIFO):
                raise InvalidArgument(f"archive: {name!r} is a {member.kind}")
            if member.kind is MemberKind.LINK:
                links.add(parts)
            if member.kind is MemberKind.HARD_LINK:
                target = PurePosixPath(member.link_target)
                if target.is_absolute() or ".." in target.parts:
                    raise InvalidArgument(f"archive: {name!r} links to a file outside the folder")
