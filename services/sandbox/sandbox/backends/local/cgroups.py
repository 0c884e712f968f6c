"""Control groups, version 1 or 2, as they are mounted here: limits, counters and kill for each sandbox.

Detection goes by mount, not by kernel: a hybrid machine has a version 2 tree without the controllers that matter. All
groups lie below this process's own group: `<own>/hone-sandbox/<generation>/<sandbox id>`, one generation per manager
process, so that a restarted manager can tell its own from what a dead one left. A manager that is started from
elsewhere has another own group: it is told where the ones before it worked.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox.types import Limits

NEEDED = ("pids", "memory")
"""Controllers without which there is no limit on a group."""

OWN_PROCESSES = 1
"""The keeper counts as a process of the sandbox."""

_FOLDER = "hone-sandbox"
_MANAGER_LEAF = "hone-manager"
_CPU_PERIOD_MICROSECONDS = 100_000
_PEAK_SLACK_BYTES = 2 * 1024 * 1024
"""How far below its limit a group's peak may stay when the next allocation, a huge page, does not fit."""
_SOCKETS_SHARE = 4
_MAX_SOCKETS_BYTES = 64 * 1024 * 1024
"""Of the memory limit, what may wait in sockets beside it, in version 1."""
_KILL_SECONDS = 5.0
_REMOVE_SECONDS = 5.0
_MAKE_TRIES = 10


class CgroupsUnavailable(Exception):
    """Control groups cannot be used here; says why."""


@dataclass(frozen=True, slots=True)
class _Mount:
    point: Path
    root: str
    kind: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Where this process may make groups: for each controller the folder of its own group."""

    version: int
    folders: Mapping[str, Path]

    @property
    def controllers(self) -> tuple[str, ...]:
        """Names of the usable controllers."""
        return tuple(self.folders)


def find_tree(proc: Path = Path("/proc/self")) -> Tree:
    """Find the controllers' folders of this process.

    Raises:
        CgroupsUnavailable: pids or memory is mounted nowhere.
    """
    mounts = list(_cgroup_mounts(proc / "mountinfo"))
    own = _own_paths(proc / "cgroup")
    for mount in mounts:
        if mount.kind != "cgroup2" or "" not in own:
            continue
        folder = _below(mount, own[""])
        listed = _read(folder / "cgroup.controllers").split()
        if all(name in listed for name in NEEDED):
            usable = [name for name in (*NEEDED, "cpu") if name in listed]
            return Tree(version=2, folders=dict.fromkeys(usable, folder))
    folders = {}
    for name in (*NEEDED, "cpu"):
        for mount in mounts:
            if mount.kind == "cgroup" and name in mount.options and name in own:
                folders[name] = _below(mount, own[name])
    missing = [name for name in NEEDED if name not in folders]
    if missing:
        raise CgroupsUnavailable(f"no cgroup mount offers {' and '.join(missing)}")
    return Tree(version=1, folders=folders)


def _cgroup_mounts(mountinfo: Path) -> Iterator[_Mount]:
    for line in _read(mountinfo).splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        if kind in ("cgroup", "cgroup2"):
            yield _Mount(Path(fields[4]), fields[3], kind, frozenset(options.split(",")))


def _own_paths(cgroup: Path) -> dict[str, str]:
    paths = {}
    for line in _read(cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


def _below(mount: _Mount, path: str) -> Path:
    inside = os.path.relpath(path, mount.root)
    return mount.point if inside.startswith("..") else mount.point / inside


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


class BoxCgroup:
    """The groups of one sandbox."""

    def __init__(self, version: int, folders: Mapping[str, Path]) -> None:
        """Wraps existing folders, one per controller (all the same in version 2)."""
        self._version = version
        self._folders = folders
        self._freezing = threading.Lock()
        self._frozen = 0
        self._pids_max = ""

    def join_paths(self) -> list[str]:
        """Return the files by which a process of one thread enters, writing "0" to each.

        In version 1 that is `tasks`: a thread that moves only itself spares the kernel the lock over all processes'
        threads, and with it the wait for an RCU grace period (0.1 ms instead of 5 to 17). In version 2 the group is
        better entered at birth, see `birth_folder`.
        """
        name = "tasks" if self._version == 1 else "cgroup.procs"
        return [str(folder / name) for folder in self._unique()]

    def birth_folder(self) -> str:
        """Return the folder of the one group that a process can be born in; empty in version 1, which has several."""
        return str(self._folders["pids"]) if self._version == 2 else ""

    def process_ids(self) -> list[int]:
        """Return the processes in it, as this process numbers them."""
        return _process_ids(self._folders["pids"])

    def oom_kill_count(self) -> int:
        """Return how often the kernel killed a process here for want of memory, whoever had used it up."""
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        return _counter(self._folders["memory"] / name, "oom_kill")

    def limit_was_reached(self) -> bool:
        """Say whether the group has ever used all of its memory; an OOM kill without that is the machine's doing."""
        folder = self._folders["memory"]
        if self._version == 2:
            return _counter(folder / "memory.events", "oom") > 0
        limit = _number(folder / "memory.limit_in_bytes")
        return _number(folder / "memory.max_usage_in_bytes") > limit - _PEAK_SLACK_BYTES

    def fork_refused_count(self) -> int:
        """Return how often a fork was refused at the limit."""
        return _counter(self._folders["pids"] / "pids.events", "max")

    @contextlib.contextmanager
    def forks_refused(self) -> Iterator[None]:
        """Let no process be started here while anybody, of any thread, is inside."""
        path = self._folders["pids"] / "pids.max"
        with self._freezing:
            if not self._frozen:
                self._pids_max = path.read_text(encoding="ascii")
                path.write_text("0", encoding="ascii")
            self._frozen += 1
        try:
            yield
        finally:
            with self._freezing:
                self._frozen -= 1
                if not self._frozen:
                    with contextlib.suppress(FileNotFoundError):
                        path.write_text(self._pids_max, encoding="ascii")

    def kill_all(self, deadline_seconds: float = _KILL_SECONDS) -> bool:
        """Kill every process in it; return whether it is empty."""
        with contextlib.suppress(OSError):  # gone already, or no descriptors left: the loop does it
            kill_file = self._folders["pids"] / "cgroup.kill"
            if self._version == 2 and kill_file.exists():
                kill_file.write_text("1", encoding="ascii")
            else:
                (self._folders["pids"] / "pids.max").write_text("0", encoding="ascii")
        return _kill_processes(self.process_ids, deadline_seconds)

    def remove(self, deadline_seconds: float = _REMOVE_SECONDS) -> bool:
        """Remove the folders; return whether they are gone."""
        return _remove_folders(self._unique(), deadline_seconds)

    def _unique(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))


class Cgroups:
    """All groups of one manager process."""

    def __init__(self, tree: Tree, generation: str, earlier: Sequence[Path] = ()) -> None:
        """Makes the generation's folders.

        Args:
            tree: Where groups can be made.
            generation: Name of this process.
            earlier: What `roots` was for managers before this one, where they may have left something.

        Raises:
            CgroupsUnavailable: they cannot be made; says which and why.
        """
        self.tree = tree
        self.generation = generation
        self._earlier = [folder for folder in earlier if folder not in self.roots()]
        try:
            if tree.version == 2:
                _enable_controllers(tree)
            for folder in self._parents(generation):
                _make_folder(folder)
                if tree.version == 2:
                    for level in (folder.parent, folder):
                        _write(level / "cgroup.subtree_control", _plus(tree))
        except OSError as error:
            raise CgroupsUnavailable(f"cannot make control groups: {error}") from error

    def create(self, sandbox_id: str, limits: Limits) -> BoxCgroup:
        """Make the groups of a sandbox with its limits; if that fails, none of them is left."""
        folders = self._folders(self.generation, sandbox_id)
        try:
            for folder in dict.fromkeys(folders.values()):
                folder.mkdir()
            self._limit(folders, limits)
        except OSError:
            for folder in dict.fromkeys(folders.values()):
                _remove_folder(folder)
            raise
        return BoxCgroup(self.tree.version, folders)

    def _limit(self, folders: Mapping[str, Path], limits: Limits) -> None:
        memory, pids = folders["memory"], folders["pids"]
        _write(pids / "pids.max", str(limits.max_processes + OWN_PROCESSES))
        quota = int(limits.cpus * _CPU_PERIOD_MICROSECONDS)
        if self.tree.version == 1:
            _write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
            _write_if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
            # What waits in sockets is counted apart, and only where it has a limit; version 2 counts it as memory.
            sockets = min(limits.memory_bytes // _SOCKETS_SHARE, _MAX_SOCKETS_BYTES)
            _write_if_there(memory / "memory.kmem.tcp.limit_in_bytes", str(sockets))
            if "cpu" in folders:
                _write(folders["cpu"] / "cpu.cfs_period_us", str(_CPU_PERIOD_MICROSECONDS))
                _write(folders["cpu"] / "cpu.cfs_quota_us", str(quota))
        else:
            _write(memory / "memory.max", str(limits.memory_bytes))
            _write_if_there(memory / "memory.swap.max", "0")
            if "cpu" in folders:
                _write(folders["cpu"] / "cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}")

    def generations(self) -> list[str]:
        """Return the names of all generations that have folders here."""
        return _folder_names([*self.roots(), *self._earlier])

    def sandboxes(self, generation: str) -> list[str]:
        """Return the ids of the sandboxes of a generation that have groups."""
        return _folder_names([*self._parents(generation), *self._earlier_parents(generation)])

    def find(self, generation: str, sandbox_id: str) -> BoxCgroup:
        """Return the groups of a sandbox of some generation."""
        return BoxCgroup(self.tree.version, self._folders(generation, sandbox_id))

    def remove_generation(self, generation: str) -> None:
        """Kill and remove all that a generation left; then its own folders."""
        for sandbox_id in self.sandboxes(generation):
            group = self.find(generation, sandbox_id)
            group.kill_all()
            group.remove()
            for parent in self._earlier_parents(generation):
                _kill_processes(partial(_process_ids, parent / sandbox_id))
                _remove_folders([parent / sandbox_id], _REMOVE_SECONDS)
        parents = [*self._parents(generation), *self._earlier_parents(generation)]
        _remove_folders(parents, _REMOVE_SECONDS)

    def close(self) -> None:
        """Remove this generation's folders; they are empty."""
        self.remove_generation(self.generation)
        for folder in (*self.roots(), *self._earlier):
            _remove_folder(folder)  # stays while another manager has a generation in it

    def roots(self) -> list[Path]:
        """Return the folders that hold a folder for each generation."""
        return [folder / _FOLDER for folder in dict.fromkeys(self.tree.folders.values())]

    def _parents(self, generation: str) -> list[Path]:
        return [folder / generation for folder in self.roots()]

    def _earlier_parents(self, generation: str) -> list[Path]:
        return [folder / generation for folder in self._earlier]

    def _folders(self, generation: str, sandbox_id: str) -> dict[str, Path]:
        return {
            name: folder / _FOLDER / generation / sandbox_id
            for name, folder in self.tree.folders.items()
        }


def _enable_controllers(tree: Tree) -> None:
    own = next(iter(tree.folders.values()))
    try:
        _write(own / "cgroup.subtree_control", _plus(tree))
    except OSError:
        # A group with processes cannot hand controllers on: this process moves into a leaf first.
        leaf = own / _MANAGER_LEAF
        leaf.mkdir(exist_ok=True)
        _write(leaf / "cgroup.procs", str(os.getpid()))
        _write(own / "cgroup.subtree_control", _plus(tree))


def _plus(tree: Tree) -> str:
    return " ".join(f"+{name}" for name in tree.controllers)


def _counter(path: Path, name: str) -> int:
    try:
        text = _content(str(path))
    except OSError:
        return 0  # the group is gone; the caller compares with an earlier count
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _number(path: Path) -> int:
    try:
        return int(_content(str(path)))
    except OSError:
        return 0  # the group is gone, or has no such counter


def _content(path: str) -> str:
    """Read a file whole; plainer than pathlib because it happens several times in every command."""
    with open(path, "rb", buffering=0) as file:
        return file.read().decode("ascii")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _write_if_there(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        _write(path, text)


def _process_ids(folder: Path) -> list[int]:
    try:
        text = _content(f"{folder}/cgroup.procs")
    except OSError:  # ENODEV or ENOENT: the group is gone, and so are they
        return []
    return [int(line) for line in text.split()]


def _kill_processes(find: Callable[[], list[int]], deadline_seconds: float = _KILL_SECONDS) -> bool:
    """Kill what `find` finds until that is nothing; return whether it came to that."""
    end = time.monotonic() + deadline_seconds
    while pids := find():
        if time.monotonic() > end:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)  # a killed process takes a moment to leave its group
    return True


def _folder_names(parents: list[Path]) -> list[str]:
    names: set[str] = set()
    for parent in parents:
        with contextlib.suppress(FileNotFoundError), os.scandir(parent) as entries:
            names.update(entry.name for entry in entries if entry.is_dir())
    return sorted(names)


def _make_folder(folder: Path) -> None:
    for _ in range(_MAKE_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):  # another manager removed the empty parent
            folder.mkdir(parents=True, exist_ok=True)
            return
    folder.mkdir(parents=True, exist_ok=True)


def _remove_folders(folders: list[Path], deadline_seconds: float) -> bool:
    end = time.monotonic() + deadline_seconds
    pending = folders
    while pending := [folder for folder in pending if not _remove_folder(folder)]:
        if time.monotonic() > end:
            return False
        time.sleep(
            0.002
        )  # the kernel lets go of an emptied group, and of its parent, a moment later
    return True


def _remove_folder(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
