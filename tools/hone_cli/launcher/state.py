"""Who runs the suite of a folder: a lock that lives as long as the launcher, and a file that says what runs."""

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hone_cli.launcher.layout import Layout, write_json
from hone_cli.launcher.procfs import is_same_process, kill_suite, start_ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteState:
    """What up.json says."""

    suite_id: str
    pid: int
    """Of the launcher."""
    start_ticks: int
    ready: bool = False
    detached: bool = False
    endpoints: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether the launcher that wrote the file still runs."""
        return is_same_process(self.pid, self.start_ticks)


class AlreadyRunningError(Exception):
    """Another launcher runs in the folder."""

    def __init__(self, layout: Layout, state: SuiteState | None) -> None:
        """Says who and where."""
        self.state = state
        who = f" as process {state.pid}" if state else ""
        super().__init__(
            f"a suite is already running in {layout.root.parent}{who}; "
            "use it, or stop it with `hone down`"
        )


class SuiteLock:
    """Holds the folder for one launcher and keeps up.json."""

    def __init__(self, layout: Layout) -> None:
        """Does nothing yet; see `acquire`."""
        self._layout = layout
        self._descriptor = -1
        self._state: SuiteState | None = None

    def acquire(self, suite_id: str, *, detached: bool) -> list[int]:
        """Takes the folder and clears away what a killed launcher left.

        Returns:
            The processes of an earlier suite that had to be killed.

        Raises:
            AlreadyRunningError: a launcher holds the folder.
        """
        self._layout.make_folders()
        descriptor = os.open(self._layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunningError(self._layout, read_state(self._layout)) from None
        self._descriptor = descriptor
        stale = read_state(self._layout)
        killed = kill_suite(stale.suite_id) if stale else []
        self._layout.endpoints.unlink(missing_ok=True)
        ticks = start_ticks(os.getpid()) or 0
        self._write(
            SuiteState(suite_id=suite_id, pid=os.getpid(), start_ticks=ticks, detached=detached)
        )
        return killed

    def publish(self, endpoints: dict[str, str]) -> None:
        """Writes where the services are, before they start and look for one another."""
        write_json(self._layout.endpoints, endpoints)
        if self._state is not None:
            self._write(replace(self._state, endpoints=endpoints))

    def mark_ready(self) -> None:
        """Notes that every service answers."""
        if self._state is not None:
            self._write(replace(self._state, ready=True))

    def release(self) -> None:
        """Removes the files and gives the folder back."""
        if self._descriptor < 0:
            return
        self._layout.endpoints.unlink(missing_ok=True)
        self._layout.state.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, state: SuiteState) -> None:
        self._state = state
        write_json(self._layout.state, asdict(state))


def read_state(layout: Layout) -> SuiteState | None:
    """What up.json says; None where there is none or it is not readable."""
    try:
        return SuiteState(**json.loads(Path(layout.state).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
