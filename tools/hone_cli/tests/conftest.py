import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hone_cli.launcher.child import ProcessSpec
from hone_cli.launcher.procfs import SUITE_VARIABLE, kill_suite

DUMMY = """
import os, signal, sys, time
out = open(os.environ["DUMMY_OUT"], "a", buffering=1)
name = sys.argv[1]
mode = sys.argv[2] if len(sys.argv) > 2 else "serve"
print(f"start {name} {os.getpid()}", file=out)
if mode == "crash":
    print('{"level": "ERROR", "message": "cannot start: no engine"}', flush=True)
    sys.exit(3)
if mode == "crash-once" and not os.path.exists(os.environ["DUMMY_OUT"] + ".crashed"):
    open(os.environ["DUMMY_OUT"] + ".crashed", "w").close()
    sys.exit(3)
if mode == "child":
    import subprocess
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(f"inner {name} {inner.pid}", file=out)
def stop(*_):
    print(f"stop {name} {os.getpid()}", file=out)
    sys.exit(0)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, stop)
print(f"ready {name} {os.getpid()}", file=out)
while True:
    time.sleep(0.05)
"""


@dataclass
class Dummies:
    """Tiny processes that write down when they start, are ready and stop."""

    folder: Path
    suite_id: str
    said: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "events.txt"

    def spec(self, name: str, mode: str = "serve", drain_seconds: float = 5.0) -> ProcessSpec:
        script = self.folder / "dummy.py"
        script.write_text(DUMMY)

        async def ready() -> bool:
            return f"ready {name}" in self.text()

        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-I", "-S", str(script), name, mode),
            log_path=self.folder / f"{name}.log",
            environment={"DUMMY_OUT": str(self.out), SUITE_VARIABLE: self.suite_id},
            ready=ready,
            drain_seconds=drain_seconds,
            hint=f"hint for {name}",
        )

    def text(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def events(self, *kinds: str) -> list[str]:
        lines = [line.rpartition(" ")[0] for line in self.text().splitlines()]
        return [line for line in lines if line.split()[0] in kinds]

    def pids(self, kind: str, name: str) -> list[int]:
        lines = [line.split() for line in self.text().splitlines()]
        return [int(line[2]) for line in lines if line[:2] == [kind, name]]

    def say(self, text: str, level: str) -> None:
        self.said.append(text)


@pytest.fixture
def dummies(tmp_path: Path) -> Iterator[Dummies]:
    suite_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield Dummies(tmp_path, suite_id)
    kill_suite(suite_id)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until something holds, for at most ten seconds."""

    async def wait(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.02)

    return wait
