"""What the kernel counted in the container's control group: who was killed for memory, which forks were refused."""

from pathlib import Path

_OOM_FILES = ("memory.events", "memory/memory.oom_control")
_FORK_FILES = ("pids.events", "pids/pids.events")


class Counters:
    """Reads the counters below a control group's folder; a counter that is not there stays 0."""

    def __init__(self, folder: str) -> None:
        """Works on /sys/fs/cgroup as a container sees it, v2 or v1."""
        self._folder = Path(folder)

    def oom_kills(self) -> int:
        """Count processes that were killed because memory ran out."""
        return self._read(_OOM_FILES, "oom_kill")

    def refused_forks(self) -> int:
        """Count forks that were refused because the number of processes is limited."""
        return self._read(_FORK_FILES, "max")

    def _read(self, names: tuple[str, ...], key: str) -> int:
        for name in names:
            try:
                text = (self._folder / name).read_text()
            except OSError:
                continue
            for line in text.splitlines():
                word, _, value = line.partition(" ")
                if word == key:
                    return int(value)
        return 0
