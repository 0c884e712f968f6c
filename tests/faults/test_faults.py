"""Kills, stops and cut-offs in the middle of a run: it completes, nothing is lost, nothing counts twice."""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from logged import READERS

from conftest import write_job
from suite import Suite, has_steps, is_in, running_suite, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.fault]


def start_run(suite: Suite, model: Path, *, steps: int, **changes: Any) -> str:
    """Starts a run that is left going, and returns its id once it is training."""
    job = write_job(suite.folder, model, train={"max_steps": steps}, **changes)
    suite.hone("train", str(job), "--detach", "--json")
    return suite.run_id()


def assert_whole(suite: Suite, run_id: str, steps: int) -> None:
    """Every step is there once and every invariant holds."""
    shown = suite.hone("runs", run_id, "--json")
    assert [step["step"] for step in shown["steps"]] == list(range(steps))
    audit = suite.hone("audit", run_id, "--json")
    assert audit["findings"] == [], audit


def assert_logged_once(suite: Suite, run_id: str, steps: int, loggers: Sequence[str]) -> None:
    """The run's file and every logger hold each step once."""
    folder = suite.run_folder(run_id)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(steps))
    for name in loggers:
        logged = READERS[name](folder, folder.parent.parent)
        # Kept as 32-bit numbers.
        assert {
            step: [value for tag, value in values if tag == "reward/mean"]
            for step, values in logged.items()
        } == {line["step"]: [pytest.approx(line["reward/mean"])] for line in lines}


SERVICES = ("rollout", "sandbox", "tool_gateway", "grader", "critic", "learner", "console", "nats")


def test_each_service_killed_once_in_one_run_loses_nothing(
    tmp_path: Path, tiny_model: Path
) -> None:
    steps = 3 * len(SERVICES)  # so that it goes on while they are killed
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        loggers = [name for name in ("tensorboard",) if find_spec(name)]
        run_id = start_run(suite, tiny_model, steps=steps, metrics={"loggers": loggers})
        folder = suite.run_folder(run_id)
        for number, service in enumerate(SERVICES, start=1):
            wait_until(f"step {number}", has_steps(folder, number), seconds=120, suite=suite)
            suite.signal(service, signal.SIGKILL)
        assert not is_in(folder, "completed")()
        # Sixteen steps, where others wait for four to seven.
        wait_until("the end", is_in(folder, "completed"), seconds=240, suite=suite)
        suite.wait_for_learner()
        assert_whole(suite, run_id, steps)
        assert_logged_once(suite, run_id, steps, loggers)


def test_log_away_for_ten_seconds_only_delays_the_run(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        run_id = start_run(suite, tiny_model, steps=6)
        folder = suite.run_folder(run_id)
        wait_until("the second step", has_steps(folder, 1), seconds=60, suite=suite)
        stopped = suite.signal("nats", signal.SIGSTOP)
        away_until = time.monotonic() + 10
        wait_until("ten seconds", lambda: time.monotonic() > away_until, seconds=20)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        wait_until("the end", is_in(folder, "completed"), seconds=120, suite=suite)
        assert_whole(suite, run_id, 6)


def test_replica_stopped_past_its_lease_commits_nothing_when_it_wakes(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running_suite(tmp_path, "--engine", "scripted", "--replicas", "rollout=2") as suite:
        run_id = start_run(suite, tiny_model, steps=8)
        folder = suite.run_folder(run_id)
        wait_until("the second step", has_steps(folder, 1), seconds=60, suite=suite)
        sleeper = suite.pids("rollout")[0]
        os.kill(sleeper, signal.SIGSTOP)
        asleep_until = time.monotonic() + 12
        wait_until("twelve seconds", lambda: time.monotonic() > asleep_until, seconds=20)
        os.kill(sleeper, signal.SIGCONT)
        wait_until("the end", is_in(folder, "completed"), seconds=120, suite=suite)
        assert_whole(suite, run_id, 8)


def test_suite_killed_whole_goes_on_where_it_was(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        run_id = start_run(suite, tiny_model, steps=12)
        folder = suite.run_folder(run_id)
        wait_until("the second step", has_steps(folder, 1), seconds=60, suite=suite)
        assert suite.launcher is not None
        suite.launcher.kill()
        suite.launcher.wait(20)
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        suite.hone("train", "--resume", run_id, "--json")
        assert_whole(suite, run_id, 12)


def test_ctrl_c_stops_after_the_step_and_resume_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        job = write_job(suite.folder, tiny_model, train={"max_steps": 12})
        command = suite.start_hone("train", str(job))
        log = suite.folder / "command.log"
        wait_until(
            "the second step",
            lambda: re.search("^ +1/12 ", log.read_text(), re.MULTILINE),
            seconds=60,
            suite=suite,
        )
        command.send_signal(signal.SIGINT)
        command.wait(60)
        run_id = suite.run_id()
        assert "--resume" in log.read_text()
        assert '"state": "stopped"' in suite.hone("runs", run_id, "--json", ok=False).stdout
        suite.hone("train", "--resume", run_id, "--json")
        assert_whole(suite, run_id, 12)
