import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hone_cli.launcher.layout import Layout
from hone_cli.launcher.procfs import kill_suite, suite_processes
from hone_cli.launcher.state import read_state

SERVICE = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
name = {name!r}
prefix = f"HONE_{{name.upper()}}_"
assert os.path.exists(os.environ[prefix + "ENDPOINTS_FILE"])
assert os.path.exists(os.environ[prefix + "TOKEN_KEY_FILE"])
server = grpc.server(ThreadPoolExecutor(2))
status = health.HealthServicer()
status.set("", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(status, server)
server.add_insecure_port("127.0.0.1:" + os.environ[prefix + "PORT"])
server.start()
print('{{"level": "INFO", "message": "serving"}}', flush=True)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
stop.wait()
server.stop(1).wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose `console` and `grader` are tiny servers that only know health."""
    for name in ("console", "grader"):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__main__.py").write_text(SERVICE.format(name=name))
        (package / "__init__.py").write_text("")
    # The user's own file of that name must not be taken for the service.
    (tmp_path / "grader.py").write_text("raise SystemExit('not this one')")
    yield tmp_path
    state = read_state(Layout.in_folder(tmp_path))
    if state is not None:
        kill_suite(state.suite_id)
        if state.alive:
            os.kill(state.pid, signal.SIGKILL)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder / "packages"), "NO_COLOR": "1"}


def hone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hone_cli.main", *arguments, "--dir", str(folder)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
    )


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def only_pid(state_id: str, module: str) -> int:
    for pid in suite_processes(state_id):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[-3:-1] == [b"-m", module.encode()]:
            return pid
    return 0


@pytest.mark.slow
def test_up_in_the_background_restart_of_a_service_and_down(folder: Path) -> None:
    layout = Layout.in_folder(folder)
    started = hone(folder, "up", "--detach", "--only", "console,grader", "--json")
    assert started.returncode == 0, started.stderr
    endpoints = json.loads(started.stdout)["endpoints"]
    assert json.loads(layout.endpoints.read_text()) == endpoints
    assert {"console", "grader", "nats", "otlp", "page"} == set(endpoints)
    second = hone(folder, "up", "--detach")
    assert second.returncode == 1
    assert f"a suite is already running in {folder}" in second.stderr
    state = read_state(layout)
    assert state is not None and state.ready and state.detached
    victim = only_pid(state.suite_id, "grader")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: only_pid(state.suite_id, "grader") not in (0, victim))
    stopped = hone(folder, "down")
    assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
    assert suite_processes(state.suite_id) == []
    assert not layout.endpoints.exists()
    log = layout.log("up").read_text()
    assert "grader ended by signal 9; starting it again in 0.5 s" in log
    assert log.index("stopping grader") < log.index("stopping console") < log.index("stopping nats")
    assert hone(folder, "down").stdout == f"nothing is running in {folder}\n"


@pytest.mark.slow
def test_killed_launcher_is_cleared_by_the_next_up_and_ctrl_c_drains(folder: Path) -> None:
    layout = Layout.in_folder(folder)
    assert hone(folder, "up", "--detach", "--only", "console").returncode == 0
    state = read_state(layout)
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: suite_processes(state.suite_id) == [])
    assert layout.endpoints.exists()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "hone_cli.main", "up", "--only", "console", "--dir", str(folder)],
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    lines = []
    for line in launcher.stdout:
        lines.append(line)
        if "Ctrl-C drains" in line:
            launcher.send_signal(signal.SIGINT)
    assert launcher.wait(20) == 0
    assert "hone    | stopped\n" in lines
    assert any(line.startswith("hone    | up: console 127.0.0.1:") for line in lines)
    assert not layout.endpoints.exists() and not layout.state.exists()


@pytest.mark.slow
def test_service_that_cannot_start_ends_up_with_its_reason(folder: Path) -> None:
    (folder / "packages" / "console" / "__main__.py").write_text(
        'import sys; print(\'{"level": "ERROR", "message": "cannot start: disk full"}\'); '
        "sys.exit(1)"
    )
    failed = hone(folder, "up", "--detach", "--only", "console")
    assert failed.returncode == 1
    assert "console ended 5 times within 60 s; read" in failed.stderr
    assert "cannot start: disk full" in failed.stderr
    assert "Traceback" not in failed.stderr
