"""What the kernel counts of one sandbox: by it the end of a command is judged, and whose doing it was."""

from sandbox.backends.local.cgroups import BoxCgroup


class Evidence:
    """Reads a sandbox's counters; without a control group there are none, and nothing is ever counted."""

    def __init__(self, cgroup: BoxCgroup | None) -> None:
        """Begins with nothing seen."""
        self._cgroup = cgroup
        self._oom_kills_seen = 0

    def forks_refused(self) -> int:
        """Count the forks that were refused because the sandbox had all the processes that it may have."""
        return self._cgroup.fork_refused_count() if self._cgroup is not None else 0

    def new_oom_kills(self) -> int:
        """Count the processes that the kernel killed here for want of memory since the last look."""
        seen = self._oom_kills_seen
        self._oom_kills_seen = self._cgroup.oom_kill_count() if self._cgroup is not None else 0
        return self._oom_kills_seen - seen

    def memory_was_used_up(self) -> bool:
        """Say whether the sandbox ever had all the memory that it may have; if not, the machine ran out of its own."""
        return self._cgroup is not None and self._cgroup.limit_was_reached()
