"""Tar archives for backends whose sandboxes are unpacked and packed by somebody else: an engine, or a tar inside.

What goes in is copied member by member and judged by its names; what comes out is copied with other names. Nothing is
unpacked here.
"""

import posixpath
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandbox.storage.archives import Member, MemberKind, TarReader, TarWriter
from servicekit.errors import InvalidArgument

MAX_MEMBERS = 1_000_000
MAX_BYTES = 4 << 30
"""Of an archive as it lies on the manager's disk."""

_PLAIN = (MemberKind.FILE, MemberKind.FOLDER, MemberKind.LINK, MemberKind.HARD_LINK)


def admit(source: Path, target: Path, user: int, group: int) -> list[str]:
    """Copy an archive that is to be unpacked below a folder; return the folders it puts something into, relative.

    Everything in the copy belongs to the user, without set-uid bits. A member may not pass through a link of the same
    archive; whether one of the returned folders is a link in the sandbox already is for the caller to look up.

    Raises:
        InvalidArgument: it is no tar archive, holds a device or FIFO, or has a member that would leave the folder.
    """
    folders: set[str] = set()
    links: set[str] = set()
    with source.open("rb") as old, target.open("wb") as new:
        reader, writer = TarReader(old), TarWriter(new, MAX_BYTES)
        for number, member in enumerate(reader.members()):
            if number >= MAX_MEMBERS:
                raise InvalidArgument(f"archive: has more than {MAX_MEMBERS} members")
            path = _inside(member.path, member, links)
            if member.kind not in _PLAIN:
                raise InvalidArgument(
                    f"archive: {member.path[:200]!r} is a {member.kind}; only files, folders and links are unpacked"
                )
            if path == ".":
                continue
            (links.add if member.kind is MemberKind.LINK else links.discard)(path)
            folders.update(parents(path))
            if member.kind is MemberKind.FOLDER:
                folders.add(path)
            kept = replace(
                member, path=path, uid=user, gid=group, mode=member.mode & 0o777, notes={}
            )
            if member.kind is MemberKind.HARD_LINK:
                kept = replace(kept, link_target=_inside(member.link_target, member, links))
            _copy(reader, writer, kept)
        writer.close()
    return sorted(folders)


def renamed(source: Path, target: Path, rename: Callable[[str], str], max_bytes: int) -> None:
    """Copy an archive that a sandbox gave, each path renamed; files, folders and links only.

    `rename` returns an empty path for a member that is left out.

    Raises:
        OutOfRange: the copy would be larger than `max_bytes`.
    """
    with source.open("rb") as old, target.open("wb") as new:
        reader, writer = TarReader(old), TarWriter(new, max_bytes)
        for member in reader.members():
            path = rename(member.path)
            if not path or member.kind not in _PLAIN:
                continue
            kept = replace(member, path=path, notes={})
            if member.kind is MemberKind.HARD_LINK:
                kept = replace(kept, link_target=rename(member.link_target))
            _copy(reader, writer, kept)
        writer.close()


def write_members(target: Path, members: list[tuple[Member, bytes]]) -> None:
    """Write an archive of members with their content."""
    with target.open("wb") as file:
        writer = TarWriter(file, MAX_BYTES)
        for member, content in members:
            writer.add(member)
            if content:
                writer.write(content)
        writer.close()


def read_first(source: Path, offset_bytes: int, max_bytes: int) -> tuple[Member, bytes]:
    """Return the first member of an archive and a part of its content."""
    with source.open("rb") as file:
        reader = TarReader(file)
        for member in reader.members():
            left = offset_bytes
            while left and (data := reader.read(min(left, 1 << 20))):
                left -= len(data)
            parts: list[bytes] = []
            while max_bytes and (data := reader.read(min(max_bytes, 1 << 20))):
                parts.append(data)
                max_bytes -= len(data)
            return member, b"".join(parts)
    raise InvalidArgument("archive: is empty")


def parents(path: str) -> list[str]:
    """Return the folders that lead to a relative path, outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _inside(path: str, member: Member, links: set[str]) -> str:
    """Return a path in its shortest form; refuse one that leaves the folder."""
    plain = posixpath.normpath(path)
    if path.startswith("/") or ".." in path.split("/") or "\0" in path or not path:
        raise InvalidArgument(
            f"archive: {member.path[:200]!r} would leave the folder; paths must be relative, without .."
        )
    through = next((folder for folder in parents(plain) if folder in links), "")
    if through:
        raise InvalidArgument(
            f"archive: {member.path[:200]!r} passes through the link {through[:200]!r} of the same archive"
        )
    return plain


def _copy(reader: TarReader, writer: TarWriter, member: Member) -> None:
    writer.add(member)
    while member.kind is MemberKind.FILE and (data := reader.read()):
        writer.write(data)
