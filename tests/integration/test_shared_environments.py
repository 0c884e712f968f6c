"""A run whose rollouts share environments: those that overlap with a change are masked, all else is as ever."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from suite import Suite, running_suite

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("shared")
    with running_suite(folder, "--engine", "scripted", HONE_SANDBOX_BACKEND="optimistic") as suite:
        yield suite


def _shell(command: str) -> str:
    call = {"name": "shell", "arguments": {"command": command}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def _measure(suite: Suite, model: Path, name: str, *commands: str) -> dict[str, Any]:
    """Run each command in a rollout of its own, all at once; every answer is right."""
    job = write_job(
        suite.folder / name,
        model,
        tasks=1,
        name=name,
        algorithm="evaluate",
        eval={"samples": len(commands)},
        rollout={"tools": ["shell"]},
    )
    row = json.loads((job.parent / "tasks.jsonl").read_text())
    row["script"] = [[_shell(command), f"Final Answer: {row['answer']}"] for command in commands]
    (job.parent / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    run: dict[str, Any] = suite.hone("evaluate", str(job), "--json")["run"]
    suite.audit(run["run_id"])
    run["rollouts"] = suite.hone("rollout", "--run", run["run_id"], "--json")["rollouts"]
    return run


def test_rollouts_that_overlap_with_a_change_are_masked_and_have_no_vote(
    shared_suite: Suite, tiny_model: Path
) -> None:
    commands = ["sleep 2; echo mine >/work/x; sleep 2", "sleep 4; ls /work", "sleep 4; true"]
    run = _measure(shared_suite, tiny_model, "writer", *commands)
    assert [row["outcome"] for row in run["rollouts"]] == ["masked"] * 3
    assert run["metrics"]["rollouts/polluted_share"] == 1.0
    assert run["metrics"]["rollouts/ok"] == 0.0
    shown = shared_suite.hone("rollout", run["rollouts"][0]["rollout_id"])
    assert "masked: polluted" in shown


def test_rollouts_that_only_look_are_scored(shared_suite: Suite, tiny_model: Path) -> None:
    run = _measure(shared_suite, tiny_model, "readers", *["sleep 1; ls /etc"] * 4)
    assert [row["outcome"] for row in run["rollouts"]] == ["scored"] * 4
    assert run["metrics"]["rollouts/polluted_share"] == 0.0
    assert run["metrics"]["reward/mean"] == 1.0
