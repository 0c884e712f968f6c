"""Whole processes: readiness, drain, crash, a port in use, and being told to stop while still waiting."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio
from servicekit.serve import App, run
from servicekit.settings import ServiceSettings

async def build(app: App[ServiceSettings]) -> None:
    {build}

run("probe", lambda: ServiceSettings(port={port}, drain_seconds=2.0), build)
"""


def start(tmp_path: Path, build: str, port: int = 0) -> "subprocess.Popen[bytes]":
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(build=textwrap.indent(build, "    ").strip(), port=port))
    return subprocess.Popen(
        [sys.executable, str(program)], stderr=(tmp_path / "log").open("wb"), env={**os.environ}
    )


def wait_for(tmp_path: Path, text: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 20
    while text not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        assert process.poll() is None or text in (tmp_path / "log").read_text()
        time.sleep(0.02)


def test_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    build = """
    async def finish() -> None:
        import logging
        logging.getLogger("probe").info("finished what it held")
    app.on_drain(finish)
    """
    process = start(tmp_path, textwrap.dedent(build))
    wait_for(tmp_path, '"serving"', process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert "finished what it held" in (tmp_path / "log").read_text()


def test_wrong_settings_are_named_as_they_are_set(tmp_path: Path) -> None:
    process = start(tmp_path, "pass", port=70000)
    assert process.wait(20) == 1
    log = (tmp_path / "log").read_text()
    assert "cannot start: HONE_PROBE_PORT: Input should be less than or equal to 65535" in log
    assert "found 70000" in log
    assert "Traceback" not in log


def test_crash_of_background_work_ends_the_process_with_1(tmp_path: Path) -> None:
    build = """
    async def crash() -> None:
        raise RuntimeError("background broke")
    app.spawn(crash(), name="crash")
    """
    process = start(tmp_path, textwrap.dedent(build))
    assert process.wait(20) == 1
    assert "background broke" in (tmp_path / "log").read_text()


def test_sigterm_while_something_is_waited_for_is_acted_on(tmp_path: Path) -> None:
    build = """
    import logging
    logging.getLogger("probe").info("waiting for NATS")
    await asyncio.Event().wait()
    """
    process = start(tmp_path, textwrap.dedent(build))
    wait_for(tmp_path, "waiting for NATS", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_port_in_use_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        process = start(tmp_path, "pass", port=taken.getsockname()[1])
        assert process.wait(20) == 1
    log = (tmp_path / "log").read_text()
    assert "in use" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(("error", "code"), [("ValueError('bad setting')", 1), ("KeyError(1)", 1)])
def test_error_at_start_is_not_silent(tmp_path: Path, error: str, code: int) -> None:
    process = start(tmp_path, f"raise {error}")
    assert process.wait(20) == code
    assert error.split("(")[0] in (tmp_path / "log").read_text()
