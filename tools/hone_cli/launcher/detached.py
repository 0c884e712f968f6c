"""Starts a launcher in the background, and stops one wherever it runs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from hone_cli.launcher.layout import Layout
from hone_cli.launcher.logtail import last_complaint
from hone_cli.launcher.plan import UpOptions
from hone_cli.launcher.procfs import kill_suite
from hone_cli.launcher.state import AlreadyRunningError, SuiteState, read_state

_POLL_SECONDS = 0.1
_SAID_BY_LAUNCHER = re.compile(r"^hone\s*\| (stopped: )?")


class DetachedStartError(Exception):
    """The launcher in the background ended before the suite was ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    """What `hone down` found and did."""

    was_running: bool
    pid: int = 0
    forced: bool = False
    """It did not stop in time and was killed."""
    cleared_count: int = 0
    """Processes of a launcher that had been killed earlier."""


def start_detached(
    options: UpOptions,
    *,
    wait_seconds: float = 600.0,
    pause: Callable[[float], None] = time.sleep,
) -> SuiteState:
    """Starts a launcher in the background and waits until the suite answers.

    Raises:
        AlreadyRunningError: a launcher runs in the folder.
        DetachedStartError: the suite did not become ready.
        ValueError: the options do not make sense.
    """
    options.check()
    layout = Layout.in_folder(options.folder)
    layout.make_folders()
    running = read_state(layout)
    if running is not None and running.alive:
        raise AlreadyRunningError(layout, running)
    log_path = layout.log("up")
    with log_path.open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "hone_cli.launcher", encode(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + wait_seconds
    try:
        while time.monotonic() < deadline:
            state = read_state(layout)
            if state is not None and state.pid == process.pid and state.ready:
                return state
            if process.poll() is not None:
                why = _SAID_BY_LAUNCHER.sub("", last_complaint(log_path, offset))
                raise DetachedStartError(f"the suite did not start: {why}")
            pause(_POLL_SECONDS)
    except KeyboardInterrupt:
        process.terminate()
        raise
    process.terminate()
    raise DetachedStartError(f"the suite was not ready after {wait_seconds:g} s; read {log_path}")


def stop_suite(
    layout: Layout, *, wait_seconds: float = 150.0, pause: Callable[[float], None] = time.sleep
) -> DownResult:
    """Drains the suite of a folder, or clears what a killed launcher left."""
    state = read_state(layout)
    if state is None:
        return DownResult(was_running=False)
    if not state.alive:
        killed = kill_suite(state.suite_id)
        layout.endpoints.unlink(missing_ok=True)
        layout.state.unlink(missing_ok=True)
        return DownResult(was_running=False, cleared_count=len(killed))
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_seconds
    while state.alive and time.monotonic() < deadline:
        pause(_POLL_SECONDS)
    if not state.alive:
        return DownResult(was_running=True, pid=state.pid)
    os.kill(state.pid, signal.SIGKILL)
    kill_suite(state.suite_id)
    layout.endpoints.unlink(missing_ok=True)
    layout.state.unlink(missing_ok=True)
    return DownResult(was_running=True, pid=state.pid, forced=True)


def encode(options: UpOptions) -> str:
    """The options as one argument."""
    return json.dumps(
        {
            "folder": str(options.folder.absolute()),
            "engine": options.engine,
            "only": list(options.only),
            "replicas": dict(options.replicas),
            "log_level": options.log_level,
            "first_port": options.first_port,
        }
    )
