"""Processes as /proc shows them: who descends from whom, and killing a whole tree."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ZOMBIE = ("Z", "X")
_REFUSE_FORKS_FROM_ROUND = 3


@dataclass(frozen=True)
class Process:
    """One row of the process table."""

    pid: int
    parent: int
    group: int
    zombie: bool


@dataclass(frozen=True)
class Table:
    """The process table at one moment, or nearly so."""

    rows: dict[int, Process]
    whole: bool
    """Whether no process ended while it was read; its children would be missing."""


def read_table() -> Table:
    """Return every process in sight."""
    found = {}
    whole = True
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, group = file.read().rpartition(b")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            whole = False
            continue
        pid = int(name)
        found[pid] = Process(pid, int(parent), int(group), state.decode() in _ZOMBIE)
    return Table(found, whole)


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> list[Process]:
    """Return all live descendants of some processes, without these themselves."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: list[Process] = []
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child)
            if not processes[child].zombie:
                found.append(processes[child])
    return found


def bearing(group: int, processes: dict[int, Process]) -> list[Process]:
    """Return all live processes that run with a group: a mark that nothing without capabilities gets rid of."""
    mark = f"\nGid:\t{group}\t".encode()
    found = []
    for process in processes.values():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone since
            if not process.zombie and mark in Path(f"/proc/{process.pid}/status").read_bytes():
                found.append(process)
    return found


def kill(victims: Iterable[Process], spare_group: int, number_of_round: int) -> None:
    """Kill processes and their groups.

    Groups first: a chain of forks, each link ending as the next begins, outruns killing by process id, but stays in its
    group. From the third round on the victims may not fork any more.
    """
    chosen = list(victims)
    for group in {victim.group for victim in chosen} - {spare_group, 0}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for victim in chosen:
        if number_of_round >= _REFUSE_FORKS_FROM_ROUND:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                _, hard = resource.prlimit(victim.pid, resource.RLIMIT_NPROC)
                resource.prlimit(victim.pid, resource.RLIMIT_NPROC, (0, hard))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim.pid, signal.SIGKILL)
