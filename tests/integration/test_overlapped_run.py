"""Rollouts beside training, and groups without spread replaced, over the real services: the audit is clean."""

import json
import math
from pathlib import Path

import pytest

from conftest import scripted_tasks, write_job
from suite import running_suite

pytestmark = pytest.mark.slow

STEPS = 4
SIMILAR = {
    "name": "reward",
    "type": "text_similarity",
    "input": "{{sample.output_text}}",
    "reference": "the quick brown fox",
    "evaluation_metric": "fuzzy_match",
    "weight": 1,
}
"""Even of a model that says anything, no two answers are equally far from it."""


def test_real_engine_acts_with_the_version_that_was_asked_for_while_newer_ones_are_made(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running_suite(tmp_path, "--engine", "transformers") as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            train={"max_steps": STEPS, "batch_size": 2, "group_size": 4, "max_staleness": 1},
            rollout={"tools": [], "max_turns": 1, "max_new_tokens": 12},
            grader={"graders": [SIMILAR]},
        )
        suite.hone("train", str(job), "--json")
        run_id = suite.run_id()
        steps = suite.hone("runs", run_id, "--json")["steps"]
        counts = suite.audit(run_id)
    assert counts["rollouts_trained"] == STEPS * 8
    figures = [step["metrics"] for step in steps]
    assert [m["staleness/max"] for m in figures] == [0.0, 1.0, 1.0, 1.0]
    assert all(m["rollouts/too_stale"] == 0.0 for m in figures)
    assert all(math.isfinite(m["mismatch/mean"]) for m in figures)
    # The engine's own version acted: at step 0 only rounding is between it and the learner.
    assert figures[0]["mismatch/mean"] < 1e-3


def test_groups_without_spread_are_replaced_and_the_audit_is_clean(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running_suite(tmp_path, "--engine", "scripted") as suite:
        train = {"max_steps": STEPS, "batch_size": 2, "max_staleness": 1, "max_resampled_groups": 4}
        job = write_job(suite.folder, tiny_model, train=train)
        rows = scripted_tasks(8)
        for row in rows[::2]:
            row["script"] = row["script"][0]  # all samples of these tasks say the same
        (suite.folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        suite.hone("train", str(job), "--json")
        run_id = suite.run_id()
        steps = suite.hone("runs", run_id, "--json")["steps"]
        counts = suite.audit(run_id)
    figures = [step["metrics"] for step in steps]
    resampled = sum(int(m["groups/resampled"]) for m in figures)
    assert resampled > 0
    assert counts["slots"] == (STEPS * 2 + resampled) * 4
    # Four of the eight tasks have spread: whichever two a step begins with, four more hold what it lacks.
    assert all(m["groups/trained"] == 2.0 and m["groups/without_spread"] == 0.0 for m in figures)
