"""Kills, stops and cut-offs in the middle of a run: it completes, nothing is lost, nothing counts twice."""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from logged import READERS

from conftest import scripted_tasks, write_job
from suite import Started, Suite, has_steps, is_in, running_suite, sleeping, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.fault]


def start_run(suite: Suite, model: Path, *, steps: int, **changes: Any) -> Started:
    """Starts a run that is left going."""
    job = write_job(suite.folder, model, train={"max_steps": steps}, **changes)
    return suite.start("train", job)


def assert_whole(suite: Suite, run_id: str, steps: int) -> None:
    """Every step is there once and every invariant holds."""
    shown = suite.hone("runs", run_id, "--json")
    assert [step["step"] for step in shown["steps"]] == list(range(steps))
    suite.audit(run_id)


def assert_logged_once(folder: Path, steps: int, loggers: Sequence[str]) -> None:
    """The run's file and every logger hold each step once."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(steps))
    for name in loggers:
        logged = READERS[name](folder, folder.parent.parent)
        # Kept as 32-bit numbers.
        assert {
            step: [value for tag, value in values if tag == "reward/mean"]
            for step, values in logged.items()
        } == {line["step"]: [pytest.approx(line["reward/mean"])] for line in lines}


SECONDS_AT_WORK = "8.375"
"""Told apart from every other sleep of this machine by its odd length."""

SERVICES = ("rollout", "sandbox", "tool_gateway", "grader", "critic", "learner", "console", "nats")


def test_each_service_killed_once_in_one_run_loses_nothing(
    tmp_path: Path, tiny_model: Path
) -> None:
    steps = 3 * len(SERVICES)  # so that it goes on while they are killed
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        loggers = [name for name in ("tensorboard",) if find_spec(name)]
        run = start_run(suite, tiny_model, steps=steps, metrics={"loggers": loggers})
        for number, service in enumerate(SERVICES, start=1):
            wait_until(f"step {number}", has_steps(run.folder, number), seconds=120, suite=suite)
            suite.signal(service, signal.SIGKILL)
        assert not is_in(run.folder, "completed")()
        # Sixteen steps, where others wait for four to eleven.
        wait_until("the end", is_in(run.folder, "completed"), seconds=240, suite=suite)
        suite.wait_for_answer("runs")
        suite.wait_for_answer("rollout", "--run", run.run_id)
        assert_whole(suite, run.run_id, steps)
        assert_logged_once(run.folder, steps, loggers)


def test_log_away_for_ten_seconds_only_delays_the_run(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        run = start_run(suite, tiny_model, steps=12)
        wait_until("the first step", has_steps(run.folder, 1), seconds=60, suite=suite)
        stopped = suite.signal("nats", signal.SIGSTOP)
        away_until = time.monotonic() + 10
        wait_until("ten seconds", lambda: time.monotonic() > away_until, seconds=20)
        assert not is_in(run.folder, "completed")()
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        wait_until("the end", is_in(run.folder, "completed"), seconds=120, suite=suite)
        assert_whole(suite, run.run_id, 12)


def slow_tasks(count: int) -> str:
    """Rows of tasks whose rollouts are at work for some seconds; half of a group's answers are right."""
    call = json.dumps({"name": "shell", "arguments": {"command": f"sleep {SECONDS_AT_WORK}"}})
    rows = []
    for row in scripted_tasks(count):
        answers = (row["answer"], "none") * 2
        script = [[f"<tool_call>{call}</tool_call>", f"Final Answer: {said}"] for said in answers]
        rows.append(json.dumps(row | {"script": script}) + "\n")
    return "".join(rows)


def test_replica_stopped_past_its_lease_commits_nothing_when_it_wakes(
    tmp_path: Path, tiny_model: Path
) -> None:
    replicas = ("--replicas", "rollout=2")
    # Twelve at once are then six of either replica.
    with running_suite(
        tmp_path, "--engine", "scripted", *replicas, HONE_ROLLOUT_MAX_IN_FLIGHT="6"
    ) as suite:
        job = write_job(
            suite.folder, tiny_model, train={"max_steps": 1}, rollout={"tools": ["shell"]}
        )
        (suite.folder / "tasks.jsonl").write_text(slow_tasks(3))
        run = suite.start("train", job)

        def told(what: str) -> bool:
            logs = (suite.folder / ".hone" / "logs").glob("rollout*.log")
            return any(what in log.read_text(errors="replace") for log in logs)

        at_work = partial(sleeping, SECONDS_AT_WORK)
        wait_until("twelve at work", lambda: len(at_work()) == 12, seconds=60, suite=suite)
        sleeper = suite.pids("rollout")[0]
        os.kill(sleeper, signal.SIGSTOP)
        wait_until("a take-over", lambda: told("executor lost"), seconds=60, suite=suite)
        os.kill(sleeper, signal.SIGCONT)
        wait_until("its waking", lambda: told("result dropped"), seconds=60, suite=suite)
        wait_until("the end", is_in(run.folder, "completed"), seconds=120, suite=suite)
        assert_whole(suite, run.run_id, 1)


def test_suite_killed_whole_goes_on_where_it_was(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        run = start_run(suite, tiny_model, steps=12)
        wait_until("the first step", has_steps(run.folder, 1), seconds=60, suite=suite)
        assert suite.launcher is not None
        suite.launcher.kill()
        suite.launcher.wait(20)
        assert not is_in(run.folder, "completed")()
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        # By itself: a crash is no stop.
        wait_until("the end", is_in(run.folder, "completed"), seconds=120, suite=suite)
        assert_whole(suite, run.run_id, 12)


def test_ctrl_c_stops_after_the_step_and_resume_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        job = write_job(suite.folder, tiny_model, train={"max_steps": 12})
        command = suite.start_hone("train", str(job))
        log = suite.folder / "command.log"
        wait_until(
            "the first step",
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
