"""A run's life beyond its last step: told to shut down, rolled back, resumed, exported; weights to the bit."""

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from suite import Suite, has_steps, is_in, wait_until

pytestmark = pytest.mark.slow

SFT_STEPS = 200
"""Some seconds, in which the learner hears in time that it should shut down."""


def shown(suite: Suite, run_id: str) -> dict[str, Any]:
    done = suite.hone("runs", run_id, "--json", ok=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def result(folder: Path) -> str:
    return weights_of(folder / "adapter")


def sft_job(folder: Path, model: Path) -> Path:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{i}?"},
                {"role": "assistant", "content": "ok " * (i % 7 + 1)},
            ]
        }
        for i in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "sft.yaml"
    train = {
        "max_steps": SFT_STEPS,
        "batch_size": 8,
        "checkpoint_every_steps": 1000,
        "schedule": "linear",
        "warmup_steps": 5,
    }
    spec = {"name": "sft", "algorithm": "sft", "data": {"train": "rows.jsonl"}, "train": train}
    path.write_text(json.dumps(spec | {"model": {"path": str(model)}, "lora": {"rank": 4}}))
    return path


def shut_down(suite: Suite, old: int) -> None:
    """Tells the learner to shut down, and waits until another, which the launcher starts, answers."""
    os.kill(old, signal.SIGTERM)
    wait_until("the end of the process", lambda: old not in suite.pids("learner"), seconds=30)
    suite.wait_for_answer("runs")


def test_learner_told_to_shut_down_goes_on_to_the_weights_of_an_undisturbed_run(
    scripted_suite: Suite, tiny_model: Path
) -> None:
    suite = scripted_suite
    job = write_job(suite.folder, tiny_model, train={"max_steps": 5, "schedule": "linear"})
    calm = suite.start("train", job).folder
    wait_until("the end", is_in(calm, "completed"), seconds=120, suite=suite)
    (process,) = suite.pids("learner")
    run = suite.start("train", job)
    wait_until("two steps", has_steps(run.folder, 2), seconds=120, suite=suite)
    assert not is_in(run.folder, "completed")()
    shut_down(suite, process)
    wait_until("the end", is_in(run.folder, "completed"), seconds=120, suite=suite)
    assert result(run.folder) == result(calm)
    suite.audit(run.run_id)


def test_supervised_run_told_to_shut_down_keeps_the_steps_that_no_checkpoint_held(
    scripted_suite: Suite, tiny_model: Path
) -> None:
    suite = scripted_suite
    job = sft_job(suite.folder, tiny_model)
    calm = suite.start("sft", job).folder
    wait_until("the end", is_in(calm, "completed"), seconds=120, suite=suite)
    (process,) = suite.pids("learner")
    watching = suite.start_hone("sft", str(job), "--json")
    log = suite.folder / "command.log"
    second = '{"event": "progress", "step": 1, "stage": "training", '
    wait_until("the second step", lambda: second in log.read_text(), seconds=120, suite=suite)
    shut_down(suite, process)
    disturbed = Path(json.loads(log.read_text().splitlines()[0])["run"]["output_dir"])
    folder = disturbed / "checkpoints"
    wait_until("the end", is_in(disturbed, "completed"), seconds=120, suite=suite)
    assert watching.wait(60) == 0
    steps = [
        e["step"] for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "step"
    ]
    assert steps == list(range(SFT_STEPS))
    assert result(disturbed) == result(calm)
    # None was due but the last: the other one is what the shutdown saved.
    saved, last = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
    assert 0 < saved < last == SFT_STEPS


def test_run_goes_back_and_on_and_is_exported(
    scripted_suite: Suite, tiny_model: Path, tmp_path: Path
) -> None:
    suite = scripted_suite
    (suite.folder / "general.jsonl").write_text('{"text": "Water boils at 100 degrees."}\n')
    job = write_job(
        suite.folder,
        tiny_model,
        train={"max_steps": 3, "keep_checkpoints": 9},
        eval={"every_steps": 3, "max_tasks": 2},
        health={"off_task": "general.jsonl", "every_steps": 0},
    )
    suite.hone("train", str(job), "--json")
    run_id = suite.run_id()
    found = shown(suite, run_id)
    folder = Path(found["run"]["output_dir"])
    assert "health/off_task/logprob" in found["steps"][0]["metrics"]
    assert abs(found["run"]["metrics"]["health/off_task/change"]) > 0
    first, last = tmp_path / "first", tmp_path / "last"
    suite.hone("export", run_id, "--step", "1", "--out", str(first))
    suite.hone("export", run_id, "--out", str(last))
    assert weights_of(last) == result(folder) != weights_of(first)

    back = suite.hone("train", "--rollback", run_id, "--to", "1", "--json")
    assert (back["to_step"], back["run"]["policy_version"]) == (1, 4)
    assert shown(suite, run_id)["run"]["state"] == "stopped"
    refused = suite.hone("train", str(job), f"model.adapter={run_id}", "--json", ok=False)
    assert "complete" in refused.stderr
    suite.hone("train", "--resume", run_id, "--json")
    again = tmp_path / "again"
    suite.hone("export", run_id, "--out", str(again))
    assert weights_of(again) == result(folder) == weights_of(first)
    suite.audit(run_id)
    done = suite.hone("train", "--resume", run_id, ok=False)
    assert done.returncode == 1
    assert "is complete" in done.stderr


def test_run_that_was_stopped_goes_back_and_trains_on(
    scripted_suite: Suite, tiny_model: Path
) -> None:
    suite = scripted_suite
    train = {"max_steps": 30, "batch_size": 1, "max_staleness": 1, "keep_checkpoints": 99}
    run = suite.start("train", write_job(suite.folder, tiny_model, train=train))
    run_id = run.run_id
    wait_until("two steps", has_steps(run.folder, 2), seconds=120, suite=suite)
    suite.hone("stop", run_id)
    suite.hone("stop", run_id)
    at = shown(suite, run_id)["run"]["step"]
    assert 2 <= at < 30
    back = suite.hone("train", "--rollback", run_id, "--to", "1", "--json")
    assert back["run"]["policy_version"] == at + 2
    suite.hone("train", "--resume", run_id, "--json")
    found = shown(suite, run_id)
    assert [step["step"] for step in found["steps"]] == list(range(30))
    assert found["steps"][-1]["policy_version"] == 30 + 2
    suite.audit(run_id)
