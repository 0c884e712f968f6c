"""The sandbox service loses everything in the middle of a run: fifty rollouts run again and are graded, once each."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from suite import Suite, is_in, running_suite, sleeping, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.fault]

BATCH, GROUP = 13, 4
NUM_ROLLOUTS = BATCH * GROUP
SECONDS_AT_WORK = "8.125"
"""Told apart from every other sleep of this machine by its odd length."""
COMMAND = (
    f"mkdir mine && sleep {SECONDS_AT_WORK} && echo $((6 * 7)) > mine/answer && cat mine/answer"
)


def tasks() -> list[dict[str, Any]]:
    """Tasks whose answer only a sandbox of one's own, from start to end, can give: mkdir fails the second time."""
    call = json.dumps({"name": "shell", "arguments": {"command": COMMAND}})
    script = [f"<tool_call>{call}</tool_call>", "Final Answer: 42"]
    return [
        {
            "id": f"work-{number}",
            "messages": [{"role": "user", "content": f"Task {number}: what does the file say?"}],
            "answer": "42",
            "script": [script] * GROUP,
        }
        for number in range(BATCH)
    ]


def at_work() -> set[int]:
    """Find the commands that run in sandboxes."""
    return set(sleeping(SECONDS_AT_WORK))


def children_of(parent: int) -> list[int]:
    """Find the processes that one started and that are not dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, ppid = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(path.name))
    return found


def groups_of(suite: Suite) -> list[Path]:
    """Find the control groups of this suite's sandboxes, of dead managers too."""
    (instance,) = (suite.folder / ".hone").rglob("instance")
    mine = f"{instance.read_text().strip()}."
    found = []
    for top, names, _ in os.walk("/sys/fs/cgroup"):
        if Path(top).name == "hone-sandbox":
            for name in names:
                if name.startswith(mine):
                    with contextlib.suppress(FileNotFoundError):
                        found += [one for one in (Path(top) / name).iterdir() if one.is_dir()]
            names.clear()
    return found


def test_manager_and_spawner_killed_with_fifty_rollouts_at_work(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            train={"max_steps": 1, "batch_size": BATCH, "group_size": GROUP},
            rollout={"tools": ["shell"], "max_new_tokens": 256},
        )
        rows = "".join(json.dumps(row) + "\n" for row in tasks())
        (suite.folder / "tasks.jsonl").write_text(rows)
        run = suite.start("train", job)
        wait_until("fifty at work", lambda: len(at_work()) >= 50, seconds=120, suite=suite)
        (manager,) = suite.pids("sandbox")
        (spawner,) = children_of(manager)
        # Stopped first: none that is counted can tell its result meanwhile.
        os.kill(manager, signal.SIGSTOP)
        os.kill(spawner, signal.SIGSTOP)
        killed = at_work()
        os.kill(manager, signal.SIGKILL)
        os.kill(spawner, signal.SIGKILL)
        wait_until("the sandboxes' end", lambda: not killed & at_work(), seconds=20, suite=suite)
        wait_until("the end", is_in(run.folder, "completed"), seconds=240, suite=suite)
        suite.audit(run.run_id)
        found = suite.hone("rollout", "--run", run.run_id, "--limit", "1000", "--json")["rollouts"]
        lost = [one for one in found if one["failure_kind"] == "sandbox"]
        assert len(lost) >= len(killed)
        assert len([one for one in found if one.get("score") == 1.0]) == NUM_ROLLOUTS
        again = [one for one in found if one.get("score") == 1.0 and one["attempt"] > 0]
        assert len(again) >= len(killed)
        wait_until("clean", lambda: not at_work() and not groups_of(suite), seconds=20, suite=suite)
        mounts = Path("/proc/self/mountinfo").read_text()
        assert str(suite.folder) not in mounts
