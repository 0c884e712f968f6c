"""One supervised process: started on a leash, its output in a log file, killed with all that it started."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hone_cli.errors import QUIET_GRPC
from hone_cli.launcher import leash
from hone_cli.launcher.readiness import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to run and how to tell that it is ready."""

    name: str
    argv: tuple[str, ...]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own environment."""
    working_folder: Path | None = None
    ready: Probe | None = None
    """None: ready as soon as it runs."""
    drain_seconds: float = 15.0
    """How long after SIGTERM it may take before it is killed."""
    hint: str = ""
    """What to try when it does not start, beside reading its log."""


class Child:
    """The process of a spec, one incarnation after the other."""

    def __init__(self, spec: ProcessSpec) -> None:
        """Starts nothing yet."""
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.log_offset = 0
        """Where in the log file the present incarnation begins."""

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Starts the process in a session of its own, so that a Ctrl-C reaches the launcher alone.

        Raises:
            OSError: the log file or the interpreter cannot be opened.
        """
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as log:
            self.log_offset = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *_leashed(self.spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.spec.working_folder,
                env=environment_of(self.spec, os.environ),
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Waits for the end and kills what the process left in its session; returns the exit code."""
        if self.process is None:
            return 0
        code = await self.process.wait()
        self._signal_group(signal.SIGKILL)
        return code

    async def drain(self) -> bool:
        """Asks the process to finish; returns False if it had to be killed."""
        if self.process is None or not self.running:
            return True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.drain_seconds):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            await self.process.wait()
            return False
        finally:
            self._signal_group(signal.SIGKILL)
        return True

    def kill(self) -> None:
        """Ends the process and everything in its session at once."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


def environment_of(spec: ProcessSpec, own: Mapping[str, str]) -> dict[str, str]:
    """Returns a process's environment: the launcher's own and what the spec adds.

    The silence of gRPC is for a command's own output; a service's log has what gRPC says.
    """
    inherited = {key: value for key, value in own.items() if (key, value) != QUIET_GRPC}
    return {**inherited, **spec.environment}


def _leashed(argv: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(leash.__file__), str(os.getpid()), *argv]
