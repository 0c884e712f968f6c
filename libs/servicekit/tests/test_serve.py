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
from pydantic_settings import SettingsConfigDict
from servicekit.serve import App, run
from servicekit.settings import ServiceSettings

async def build(app: App[ServiceSettings]) -> None:
    {build}

class ProbeSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="HONE_PROBE_")

run("probe", ProbeSettings, build)
"""


def start(tmp_path: Path, build: str, *arguments: str, port: int = 0) -> "subprocess.Popen[bytes]":
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(build=textwrap.indent(build, "    ").strip()))
    settings = {"HONE_PROBE_PORT": str(port), "HONE_PROBE_DRAIN_SECONDS": "2.0"}
    log = (tmp_path / "log").open("wb")
    command = [sys.executable, str(program), *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})


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
    assert "found '70000'" in log
    assert "Traceback" not in log


def test_help_lists_the_settings_with_their_meaning_and_starts_nothing(tmp_path: Path) -> None:
    assert start(tmp_path, "pass", "--help").wait(20) == 0
    text = (tmp_path / "log").read_text()
    assert "--drain-seconds" in text and "HONE_PROBE_DRAIN_SECONDS" in text
    assert "How long SIGTERM waits" in " ".join(text.split())
    assert "serving" not in text


def test_argument_that_is_none_is_refused_and_one_that_is_counts_before_the_environment(
    tmp_path: Path,
) -> None:
    assert start(tmp_path, "pass", "--prot", "0").wait(20) == 2
    assert "unrecognized arguments: --prot" in (tmp_path / "log").read_text()
    process = start(tmp_path, "pass", "--port", "0", port=70000)
    wait_for(tmp_path, '"serving"', process)
    process.terminate()
    assert process.wait(10) == 0


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
        port = taken.getsockname()[1]
        process = start(tmp_path, "pass", port=port)
        assert process.wait(20) == 1
    log = (tmp_path / "log").read_text()
    assert f"HONE_PROBE_PORT: port {port} on 127.0.0.1 is in use" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(("error", "code"), [("ValueError('bad setting')", 1), ("KeyError(1)", 1)])
def test_error_at_start_is_not_silent(tmp_path: Path, error: str, code: int) -> None:
    process = start(tmp_path, f"raise {error}")
    assert process.wait(20) == code
    assert error.split("(")[0] in (tmp_path / "log").read_text()
