"""A whole suite for tests: `hone up` as a process in a folder of its own, driven through the CLI alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HONE = (sys.executable, "-m", "hone_cli.main")
QUICK_LEASES = {
    # Faults are noticed within seconds, so that the tests need not wait as long as production does.
    "HONE_ROLLOUT_LEASE_SECONDS": "3",
    "HONE_ROLLOUT_RENEW_SECONDS": "0.7",
    "HONE_ROLLOUT_ACK_WAIT_SECONDS": "6",
}


@dataclass(slots=True)
class Suite:
    """A running suite."""

    folder: Path
    environment: Mapping[str, str]
    launcher: "subprocess.Popen[bytes] | None" = field(default=None)

    def hone(self, *arguments: str, ok: bool = True, timeout: float = 300) -> Any:
        """Runs one command with --json where it knows it; returns what it printed, parsed where it is JSON."""
        done = subprocess.run(
            [*HONE, *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if ok and done.returncode != 0:
            raise AssertionError(
                f"hone {' '.join(arguments)} ended with {done.returncode}\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{self.logs()}"
            )
        return parsed(done.stdout) if ok else done

    def start_hone(self, *arguments: str) -> "subprocess.Popen[str]":
        """Starts one command and leaves it running."""
        output = (self.folder / "command.log").open("w")
        return subprocess.Popen(
            [*HONE, *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def state(self) -> dict[str, Any]:
        """What the launcher says of itself."""
        return dict(json.loads((self.folder / ".hone" / "up.json").read_text()))

    def pids(self, module: str) -> list[int]:
        """Processes of this suite that run a service (or nats)."""
        suite_id = self.state()["suite_id"].encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                runs = module.encode() in command[-3:-1] or (
                    module == "nats" and command[0].endswith(b"nats-server")
                )
                if runs and suite_id in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def signal(self, module: str, number: int) -> list[int]:
        """Sends a signal to a service's processes."""
        pids = self.pids(module)
        assert pids, f"no process runs {module}\n{self.logs()}"
        for pid in pids:
            os.kill(pid, number)
        return pids

    def wait_for_learner(self) -> None:
        """Waits until the learner answers; a run may be complete before one that was killed is there again."""
        wait_until(
            "the learner's answer",
            lambda: self.hone("runs", "--json", ok=False).returncode == 0,
            seconds=180,
            suite=self,
        )

    def logs(self, lines: int = 15) -> str:
        """The end of every log file."""
        texts = []
        for path in sorted((self.folder / ".hone" / "logs").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            texts.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(texts)

    def run_id(self) -> str:
        """The newest run."""
        return str(self.hone("runs", "--json")["runs"][0]["run_id"])

    def run_folder(self, run_id: str) -> Path:
        """Where the learner keeps a run."""
        return Path(self.hone("runs", run_id, "--json")["run"]["output_dir"])


def is_in(folder: Path, state: str) -> Callable[[], bool]:
    """Looks for a run's state in its file, which costs less than a command."""

    def check() -> bool:
        run = json.loads((folder / "run.json").read_text())
        assert run["state"] == state or run["state"] != "failed", run
        return bool(run["state"] == state)

    return check


def has_steps(folder: Path, count: int) -> Callable[[], bool]:
    """Looks for a number of steps in a run's metrics."""
    told = folder / "metrics.jsonl"
    return lambda: told.exists() and len(told.read_bytes().splitlines()) >= count


def parsed(text: str) -> Any:
    """Reads output that is one JSON value, or the last of its JSON lines, or leaves it as it is."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        try:
            return json.loads(candidate)
        except json.JSONDecodeError:
            continue
    return text


def wait_until(
    what: str, check: Callable[[], Any], *, seconds: float, suite: Suite | None = None
) -> Any:
    """Returns the first true result; says what did not happen, with the logs, when time runs out."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = check()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen in {seconds} s\n{suite.logs() if suite else ''}")


@contextmanager
def running_suite(folder: Path, *up: str, **environment: str) -> Iterator[Suite]:
    """Starts a suite, waits until every service answers, and drains it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    # A range of its own: a service that was killed must not lose its port to another suite meanwhile.
    up = ("--first-port", str(random.SystemRandom().randrange(20_000, 45_000, 50)), *up)
    suite = Suite(folder, {**QUICK_LEASES, **environment})
    output = (folder / "up.log").open("wb")
    suite.launcher = subprocess.Popen(
        [*HONE, "up", *up],
        cwd=folder,
        env={**os.environ, **suite.environment},
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def ready() -> bool:
        assert suite.launcher is not None
        if suite.launcher.poll() is not None:
            log = (folder / "up.log").read_text(errors="replace")
            raise AssertionError(f"hone up ended by itself\n{log[-3000:]}\n{suite.logs()}")
        if not (folder / ".hone" / "up.json").exists():
            return False
        # A killed launcher leaves its file behind; only this one's counts.
        state = suite.state()
        return state["pid"] == suite.launcher.pid and bool(state["ready"])

    try:
        wait_until("the suite's start", ready, seconds=90, suite=suite)
        yield suite
    finally:
        if suite.launcher.poll() is None:
            suite.launcher.send_signal(signal.SIGINT)
            try:
                suite.launcher.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(suite.launcher.pid, signal.SIGKILL)
                raise
        output.close()
