"""How much memory there is for sandboxes: the machine's, or less where the manager's own control group has a limit.

In a container the machine's memory is not the manager's to give away.
"""

from collections.abc import Iterator
from pathlib import Path

_LIMIT_AND_USE = {
    "cgroup2": ("memory.max", "memory.current"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def total_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that the machine, and every control group around this process, allows."""
    return min([_meminfo(root, "MemTotal"), *(limit for limit, _ in _groups(root))])


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that could be had without swapping and within the limits."""
    return min([_meminfo(root, "MemAvailable"), *(limit - used for limit, used in _groups(root))])


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group around this process that has a limit."""
    folder = _own_folder(root)
    if folder is None:
        return
    kind, own, mount = folder
    limit_name, use_name = _LIMIT_AND_USE[kind]
    for group in (own, *own.parents):
        limit = _number(group / limit_name)
        if limit is not None:
            used = (_number(group / use_name) or 0) - _reclaimable(group)
            yield limit, used
        if group == mount:
            return


def _reclaimable(group: Path) -> int:
    """Return what the group's page cache would give back, as the machine's MemAvailable counts it."""
    words = _words(group / "memory.stat")
    counted = dict(zip(words[::2], words[1::2], strict=False))
    return int(counted.get("total_inactive_file", counted.get("inactive_file", "0")))


def _own_folder(root: Path) -> tuple[str, Path, Path] | None:
    """Return the kind of hierarchy that counts memory, this process's folder in it, and where it is mounted."""
    paths: dict[str, str] = {}
    for line in (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(maxsplit=2)
        name = "memory" if kind == "cgroup" and "memory" in options.split(",") else ""
        if kind not in _LIMIT_AND_USE or (kind == "cgroup" and not name) or name not in paths:
            continue
        mount = root / before.split()[4].lstrip("/")
        own = mount / paths[name].lstrip("/")
        # A container may see its own group as the root of the mount, under a path that means nothing inside.
        own = own if own.is_dir() else mount
        if kind == "cgroup" or "memory" in _words(own / "cgroup.controllers"):
            return kind, own, mount
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


def _number(path: Path) -> int | None:
    """Return what a file of a group says; None for no limit."""
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _meminfo(root: Path, name: str) -> int:
    with (root / "proc/meminfo").open(encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/meminfo: has no {name}")
