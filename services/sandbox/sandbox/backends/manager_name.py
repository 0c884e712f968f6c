"""The name that a manager leaves on what outlives it, so that any other can tell whether it still lives."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerName:
    """One manager process."""

    instance: str
    """Of its state folder; whoever holds the folder's lock is the only one of it."""
    host: str
    """The boot of the machine and the process namespace: where `pid` means something."""
    pid: int
    start_ticks: str
    """When it started, so that a reused pid is not taken for it."""

    def __str__(self) -> str:
        """Return it in one word."""
        return f"{self.instance}.{self.host}.{self.pid}.{self.start_ticks}"

    @classmethod
    def own(cls, instance: str) -> "ManagerName":
        """Return the name of this process."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        return cls(
            instance=instance,
            host=f"{boot.replace('-', '')[:12]}-{namespace}",
            pid=os.getpid(),
            start_ticks=_start_ticks(os.getpid()),
        )

    @classmethod
    def parse(cls, word: str) -> "ManagerName | None":
        """Return the name that a word says, None if it is none."""
        parts = word.split(".")
        if len(parts) != 4 or not parts[2].isdigit():
            return None
        return cls(instance=parts[0], host=parts[1], pid=int(parts[2]), start_ticks=parts[3])

    def knows_dead(self, other: "ManagerName") -> bool:
        """Say whether another is certainly gone, as this one, which holds its folder's lock, can tell."""
        if other.instance == self.instance:
            return str(other) != str(self)
        return other.host == self.host and _start_ticks(other.pid) != other.start_ticks


def _start_ticks(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[19]
