"""A whole suite for tests: `hone up` as a process in a folder of its own, driven through the CLI alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was started and left going."""

    run_id: str
    folder: Path
    """Where the learner keeps it."""


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

    def start(self, verb: str, job: Path, *overrides: str) -> Started:
        """Starts a run and leaves it going; one command, so that the run has not gone far when this returns."""
        run = self.hone(verb, str(job), *overrides, "--detach", "--json")["run"]
        return Started(run["run_id"], Path(run["output_dir"]))

    def audit(self, run_id: str) -> dict[str, int]:
        """Checks the whole log of a run that has ended and returns what it counted.

        The learner knows of the end first. After this the archive, which other commands look into, has all of the run.
        """
        found = self.hone("audit", run_id, "--wait", "60", "--json")
        assert found["run_ended"], f"the archive does not have the end of {run_id}\n{self.logs()}"
        assert found["findings"] == [], found
        return dict(found["counts"])

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

    def wait_for_answer(self, *command: str) -> None:
        """Waits until a command succeeds; a service that was killed is away until the launcher has started it again."""
        wait_until(
            f"an answer to hone {' '.join(command)}",
            lambda: self.hone(*command, ok=False).returncode == 0,
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


def is_in(folder: Path, state: str) -> Callable[[], bool]:
    """Looks for a run's state in its file, which costs less than a command; another end than that is an error."""

    def check() -> bool:
        run = json.loads((folder / "run.json").read_text())
        assert run["state"] in ("queued", "running", state), run
        return bool(run["state"] == state)

    return check


def has_steps(folder: Path, count: int) -> Callable[[], bool]:
    """Looks for a number of steps in a run's metrics."""
    told = folder / "metrics.jsonl"
    return lambda: told.exists() and len(told.read_bytes().splitlines()) >= count


def sleeping(seconds: str) -> list[int]:
    """Processes that are a `sleep` of so many seconds; an odd number tells those of one test from all others."""
    wanted = f"sleep\0{seconds}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cmdline").read_bytes() == wanted:
                found.append(int(path.name))
    return found


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
    """Returns the first true result; says what did not happen, with the logs, when time runs out.

    Looks once more when it has: this process may have been kept from looking, and not the others from acting.
    """
    deadline = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > deadline
        result = check()
        if result:
            return result
        if is_last:
            logs = suite.logs() if suite else ""
            raise AssertionError(f"{what} did not happen in {seconds} s\n{logs}")
        time.sleep(0.05)


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
