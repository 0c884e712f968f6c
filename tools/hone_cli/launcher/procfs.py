"""Looks at processes through /proc: who is alive, since when, and which belong to a suite."""

import os
import signal
import time
from pathlib import Path

SUITE_VARIABLE = "HONE_SUITE_ID"
"""Set in the environment of every process of a suite, and inherited by what they start."""

_GONE_SECONDS = 5.0
_START_TIME_FIELD = 19
"""Position of starttime in /proc/PID/stat, counted after the name in brackets."""


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[_START_TIME_FIELD])


def is_same_process(pid: int, ticks: int) -> bool:
    """Whether the process of that time still lives; a new process under an old number does not count."""
    return start_ticks(pid) == ticks


def suite_processes(suite_id: str) -> list[int]:
    """Every live process whose environment names the suite, whatever session it is in."""
    wanted = f"{SUITE_VARIABLE}={suite_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked, or is another user's
        if wanted in environment and start_ticks(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


def kill_suite(suite_id: str) -> list[int]:
    """Kills what is left of a suite and waits until it is gone; returns the process numbers."""
    killed = []
    for pid in suite_processes(suite_id):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(pid)
    deadline = time.monotonic() + _GONE_SECONDS
    while any(start_ticks(pid) is not None for pid in killed) and time.monotonic() < deadline:
        time.sleep(0.01)
    return killed
