"""Graders that run code, in a whole suite: the files that agents leave are tested in grading boxes of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from suite import running_suite

pytestmark = pytest.mark.slow

FILES = {
    "right": "def add(a, b): return a + b",
    "wrong": "def add(a, b): return a - b",
    "cheat": "import os; add = lambda a, b: os._exit(0)",
}
TESTED = {
    "name": "tested",
    "type": "tests",
    "source": "files",
    "file": "calc.py",
    "test": "from calc import add\nassert add(1, 2) == {{item.answer}}",
    "weight": 1,
}
STATE = {
    "name": "left",
    "type": "state",
    "checks": [{"path": "/work/calc.py", "matches": "^def add"}],
    "weight": 0,
}
SOURCE = "def grade(sample, item):\n    return len(sample['output_tools']) + int(item['answer'])"
COUNTED = {"name": "counted", "type": "python", "source": SOURCE, "weight": 0}


def _script(code: str) -> list[str]:
    command = f"echo '{code}' >calc.py"
    call = {"name": "shell", "arguments": {"command": command}}
    return [f"<tool_call>{json.dumps(call)}</tool_call>", "It is done."]


def test_files_that_agents_leave_are_graded_in_boxes_of_their_own(
    tmp_path: Path, tiny_model: Path
) -> None:
    scripts = [*map(_script, FILES.values()), ["I do not know."]]
    task = {
        "id": "add",
        "messages": [{"role": "user", "content": "Write add(a, b) in calc.py."}],
        "answer": "3",
        "script": scripts,
    }
    with running_suite(tmp_path / "suite", "--engine", "scripted") as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            grader={"type": "multi", "graders": [TESTED, STATE, COUNTED]},
            train={"max_steps": 1, "batch_size": 1},
            rollout={"tools": ["shell"], "max_new_tokens": 256},
        )
        (suite.folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")
        suite.hone("train", str(job), "--json")
        run_id = suite.run_id()
        suite.audit(run_id)
        rows = suite.hone("rollout", "--run", run_id, "--json")["rollouts"]
        assert {row["outcome"] for row in rows} == {"scored"}
        found = {
            int(row["slot"].get("sample_index", 0)): _rewards(
                suite.hone("rollout", row["rollout_id"], "--json")
            )
            for row in rows
        }
    tested = [found[sample]["tested"] for sample in range(4)]
    assert tested == [1.0, 0.0, 0.0, 0.0]
    assert [found[sample]["left"] for sample in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert [found[sample]["counted"] for sample in range(4)] == [4.0, 4.0, 4.0, 3.0]


def _rewards(rollout: dict[str, Any]) -> dict[str, float]:
    scored = rollout["reward_assigned"]["scored"]
    assert not scored.get("errors"), json.dumps(scored)
    return {reward["name"]: float(reward.get("value", 0.0)) for reward in scored["rewards"]}
