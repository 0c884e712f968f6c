"""The suite that the demo runs in, driven as a person would drive it: through the `hone` command."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

HONE = (sys.executable, "-m", "hone_cli.main")


class CommandFailed(Exception):
    """A `hone` command ended with an error, which it has already printed."""

    def __init__(self, arguments: tuple[str, ...], code: int) -> None:
        """Says which."""
        super().__init__(f"`hone {' '.join(arguments)}` ended with exit code {code}")
        self.code = code


@dataclass(slots=True)
class DemoSuite:
    """A running suite in a folder, and how long each phase of the work took."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def show(self, *arguments: str) -> None:
        """Runs a command whose output people see.

        Raises:
            CommandFailed: it did not end well.
        """
        done = subprocess.run([*HONE, *arguments], cwd=self.folder, check=False)
        if done.returncode != 0:
            raise CommandFailed(arguments, done.returncode)

    def ask(self, *arguments: str) -> Any:
        """Runs a command and returns its JSON.

        Raises:
            CommandFailed: it did not end well.
        """
        done = subprocess.run(
            [*HONE, *arguments, "--json"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailed(arguments, done.returncode)
        return json.loads(done.stdout)

    def run(self, phase: str, verb: str, file: str, *overrides: str) -> str:
        """Starts a run, shows it to its end, and returns its run_id."""
        print(f"\n== {phase}", flush=True)
        began = time.monotonic()
        before = {run["run_id"] for run in self.ask("runs")["runs"]}
        self.show(verb, file, *overrides)
        self.seconds[phase] = time.monotonic() - began
        new = [run["run_id"] for run in self.ask("runs")["runs"] if run["run_id"] not in before]
        return str(new[0])

    def stop_interrupted(self) -> None:
        """Stops the run of an earlier demo that was interrupted: the learner, started anew, goes on with it."""
        for run in self.ask("runs")["runs"]:
            if run["state"] == "running":
                print(f"an earlier demo was interrupted; stopping its run {run['run_id']}")
                self.show("stop", run["run_id"])

    def rollouts(self, run_id: str) -> list[dict[str, Any]]:
        """Returns every rollout of a run."""
        return list(self.ask("rollout", "--run", run_id, "--limit", "100000")["rollouts"])


def stop_on_sigterm() -> None:
    """Makes SIGTERM end this program as Ctrl-C does, so that it stops its suite on the way out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def demo_suite(folder: Path) -> Iterator[DemoSuite]:
    """Starts the suite and, however the work ends, leaves nothing of it running."""
    folder.mkdir(parents=True, exist_ok=True)
    suite = DemoSuite(folder)
    print("== starting the suite", flush=True)
    began = time.monotonic()
    suite.show("up", "--detach")
    suite.seconds["starting the suite"] = time.monotonic() - began
    try:
        suite.stop_interrupted()
        yield suite
    finally:
        print("\n== stopping the suite", flush=True)
        subprocess.run([*HONE, "down"], cwd=folder, check=False)
