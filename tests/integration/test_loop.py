"""One run through every service: scripted agents, a tiny model that really trains, and what can be seen afterwards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from hone_cli.addresses import AddressBook
from hone_cli.queries import get_rollout
from suite import Suite, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(scripted_suite: Suite, tiny_model: Path) -> str:
    job = write_job(scripted_suite.folder, tiny_model)
    scripted_suite.hone("train", str(job), "--json")
    run_id = scripted_suite.run_id()
    scripted_suite.audit(run_id)
    return run_id


FIGURES = {
    "loss",
    "reward/mean",
    "reward/std",
    "rewards/accuracy/mean",
    "rewards/reward/mean",
    "kl",
    "clip_frac",
    "entropy",
    "grad_norm",
    "learning_rate",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "tokens/sampled",
    "turns/mean",
    "tool_calls/mean",
    "tool_calls/failure_rate",
    "frac_reward_zero_std",
    "staleness/mean",
    "staleness/max",
    "mismatch_kl/mean",
    "rollouts/ok",
    "rollouts/masked",
    "time/rollout_seconds",
    "time/train_seconds",
}
"""What people of the field look for, by the names they know."""


def rollouts(suite: Suite, run_id: str) -> list[dict[str, Any]]:
    return list(suite.hone("rollout", "--run", run_id, "--json")["rollouts"])


def test_run_completes_with_a_clean_audit(scripted_suite: Suite, trained: str) -> None:
    scripted_suite.audit(trained)
    run = scripted_suite.hone("runs", trained, "--json")
    assert run["run"]["state"] == "completed"
    assert len(run["steps"]) == 3
    assert all(step["metrics"]["rollouts/ok"] == 12.0 for step in run["steps"])
    assert [FIGURES - set(step["metrics"]) for step in run["steps"]] == [set()] * 3


def test_rewards_are_what_the_script_deserves(scripted_suite: Suite, trained: str) -> None:
    scores: dict[int, set[float]] = {}
    for row in rollouts(scripted_suite, trained):
        sample = int(row["slot"].get("sample_index", 0))
        scores.setdefault(sample, set()).add(round(float(row.get("score", 0.0)), 6))
    assert scores == {0: {1.0}, 1: {0.85}, 2: {0.0}, 3: {0.0}}


def test_every_span_of_a_rollout_is_in_its_trace_with_a_parent(
    scripted_suite: Suite, trained: str
) -> None:
    for row in rollouts(scripted_suite, trained)[:8]:
        rollout_id = row["rollout_id"]
        spans = whole_trace(scripted_suite, rollout_id)
        ids = {span["span_id"] for span in spans}
        assert {span["trace_id"] for span in spans} == {rollout_id.replace("-", "")}
        roots = [span for span in spans if not span.get("parent_span_id")]
        assert [span["name"] for span in roots] == ["request rollout"]
        missing = [s for s in spans if s.get("parent_span_id") and s["parent_span_id"] not in ids]
        assert missing == []
        services = {span["service_name"] for span in spans}
        assert {"learner", "rollout", "sandbox", "tool_gateway", "grader"} <= services | (
            set() if _calls(spans) else {"tool_gateway"}
        )
        assert "learner.train" in {span["name"] for span in spans}


def whole_trace(suite: Suite, rollout_id: str) -> list[dict[str, Any]]:
    """The spans of a rollout that was trained, once all are there: each service tells its own after some moments."""
    found: dict[str, Any] = {}

    def is_whole() -> bool:
        found.update(suite.hone("rollout", rollout_id, "--json"))
        trained = any(span["name"] == "learner.train" for span in found["spans"])
        return trained and not found["trace"]["problems"]

    wait_until(f"the whole trace of {rollout_id}", is_whole, seconds=60, suite=suite)
    return list(found["spans"])


def _calls(spans: list[dict[str, Any]]) -> bool:
    return any(span["name"].startswith("execute_tool") for span in spans)


def test_rollout_is_shown_to_people(scripted_suite: Suite, trained: str) -> None:
    rollout_id = rollouts(scripted_suite, trained)[0]["rollout_id"]
    whole_trace(scripted_suite, rollout_id)
    text = scripted_suite.hone("rollout", rollout_id)
    for expected in ("calculator", "Final Answer", "request rollout", "learner.train", "reward"):
        assert expected in text, text


def test_stored_rollouts_grade_as_they_did(
    scripted_suite: Suite, trained: str, tmp_path: Path
) -> None:
    out = tmp_path / "graded.jsonl"
    found = scripted_suite.hone("grade", "--run", trained, "--errors", "--json", "--out", str(out))
    stored = {row["rollout_id"]: row["score"] for row in rollouts(scripted_suite, trained)}
    graded = {row["row_id"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert {row_id: row["score"] for row_id, row in graded.items()} == stored
    assert found["summary"]["num_scored"] == 36
    assert {row["step"] for row in graded.values()} == {0, 1, 2}
    assert scripted_suite.hone("runs", trained, "--errors", "--json") == found["errors"]
    one = scripted_suite.hone("grade", "--run", trained, "--step", "1", "--json")
    assert one["summary"]["num_rows"] == 12


def test_printed_record_grades_as_it_did(
    scripted_suite: Suite, trained: str, tmp_path: Path
) -> None:
    best = max(rollouts(scripted_suite, trained), key=lambda row: float(row["score"]))
    reply = scripted_suite.hone("rollout", best["rollout_id"], "--json")
    (tmp_path / "grader.json").write_text(reply["record"]["grader_json"])
    (tmp_path / "record.jsonl").write_text(json.dumps(reply) + "\n")
    found = scripted_suite.hone(
        "grade", str(tmp_path / "grader.json"), str(tmp_path / "record.jsonl"), "--json"
    )
    assert found["summary"]["score"]["value"] == best["score"] == 1.0


def test_stored_rollouts_are_graded_by_code_in_boxes(
    scripted_suite: Suite, trained: str, tmp_path: Path
) -> None:
    source = "def grade(sample, item):\n    return float(item['answer'] in sample['output_text'])"
    (tmp_path / "grader.json").write_text(json.dumps({"type": "python", "source": source}))
    found = scripted_suite.hone(
        "grade", str(tmp_path / "grader.json"), "--run", trained, "--limit", "4", "--json"
    )
    assert found["summary"]["num_scored"] == 4, found
    assert found["summary"]["score"]["value"] == 0.5


def test_estimate_of_a_run_is_what_the_run_took(
    scripted_suite: Suite, trained: str, tiny_model: Path
) -> None:
    job = write_job(scripted_suite.folder, tiny_model)
    found = scripted_suite.hone("train", str(job), "--dry-run", "--json")["estimate"]
    listed = rollouts(scripted_suite, trained)
    assert found["rollouts"] == len(listed) == 36
    sampled = sum(int(row["sampled_token_count"]) for row in listed)
    assert found["sampled_tokens"]["least"] <= sampled <= found["sampled_tokens"]["most"]
    records = asyncio.run(_records(scripted_suite, [row["rollout_id"] for row in listed]))
    rows = [row for record in records for row in record.tokens.rows]
    taken = sum(len(row.token_ids) for row in rows)
    assert found["tokens"]["least"] <= taken <= found["tokens"]["most"]
    # Scripts say the same again, so the earlier run tells this one's tokens but for the results of tools.
    assert sampled == pytest.approx(found["sampled_tokens"]["expected"], rel=0.01)
    assert found["tokens"]["expected"] == pytest.approx(
        sum(sum(row.loss_mask) for row in rows)
        + sum(list(row.loss_mask).index(True) for row in rows),
        rel=0.01,
    )
    assert any(trained in text for text in found["assumptions"])
    assert found["seconds"] > 0


async def _records(suite: Suite, rollout_ids: list[str]) -> list[Any]:
    book = AddressBook(folder=suite.folder, environ={})
    return [(await get_rollout(book, rollout_id)).record for rollout_id in rollout_ids]


def test_evaluation_measures_without_training(scripted_suite: Suite, tiny_model: Path) -> None:
    job = write_job(
        scripted_suite.folder / "evaluation",
        tiny_model,
        name="measure",
        algorithm="evaluate",
        eval={"samples": 4},
    )
    told = scripted_suite.hone("evaluate", str(job), "--json")
    result = told["run"]
    assert result["metrics"]["reward/mean"] == pytest.approx((1.0 + 0.85) / 4)
    assert result["metrics"]["rewards/accuracy/mean"] == 0.5
    assert result["metrics"]["pass@1"] == result["metrics"]["success_rate"] == 0.5
    assert told["potential"]["spread"]["value"] == result["metrics"]["tasks/spread_share"] == 1.0
    lines = (Path(result["output_dir"]) / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    assert {json.loads(line)["class"] for line in lines} == {"spread"}
    scripted_suite.audit(result["run_id"])
    again = scripted_suite.hone("evaluate", str(job), "rollout.timeout=50s", "--json")["run"]
    scripted_suite.audit(again["run_id"])
    ids = (result["run_id"], again["run_id"])
    found = scripted_suite.hone("runs", "compare", *ids, "--json")
    assert found["settings"] == {"rollout.timeout": ["60s", "50s"]}
    # The same scripts get the same scores, task by task.
    (one,) = found["held_out"]
    assert (one["num_tasks"], one["num_left_out"], one["verdict"]) == (12, 0, "no clear difference")
    assert one["estimate"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_nothing_is_left_in_the_sandbox_service(scripted_suite: Suite, trained: str) -> None:
    counts = scripted_suite.audit(trained)
    assert counts["sandboxes_created"] == counts["sandboxes_destroyed"] > 0


def test_bad_input_ends_in_a_sentence(scripted_suite: Suite, tiny_model: Path) -> None:
    folder = scripted_suite.folder / "bad"
    job = write_job(folder, tiny_model)
    wrong = job.read_text().replace("group_size", "group_sizes")
    job.write_text(wrong)
    done = scripted_suite.hone("train", str(job), ok=False)
    assert done.returncode == 2
    assert "run.yaml:" in done.stderr
    assert "group_size" in done.stderr
    assert "Traceback" not in done.stderr
    job = write_job(folder, folder / "no-such-model")
    done = scripted_suite.hone("train", str(job), ok=False)
    assert done.returncode != 0
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr
    job = write_job(folder, tiny_model)
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    del rows[4]["answer"]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = scripted_suite.hone("train", str(job), ok=False)
    assert done.returncode == 2
    assert "tasks.jsonl" in done.stderr
    assert "5" in done.stderr
    assert "answer" in done.stderr
