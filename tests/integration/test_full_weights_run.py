"""Every weight trained by two ranks, published whole, and acted with: engine and learner agree at each version."""

from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from conftest import write_job
from suite import running_suite

pytestmark = pytest.mark.slow

STEPS = 3
SIMILAR = {
    "name": "reward",
    "type": "text_similarity",
    "input": "{{sample.output_text}}",
    "reference": "the quick brown fox",
    "evaluation_metric": "fuzzy_match",
    "weight": 1,
}
"""Even of a model that says anything, no two answers are equally far from it."""


def test_rollouts_act_with_the_full_weights_that_two_ranks_made(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running_suite(tmp_path, "--engine", "transformers") as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            train={
                "max_steps": STEPS,
                "batch_size": 2,
                "group_size": 4,
                "learning_rate": 1e-3,
                "kl_coef": 0.05,
                "weights": "full",
                "processes": 2,
            },
            rollout={"tools": [], "max_turns": 1, "max_new_tokens": 12},
            grader={"graders": [SIMILAR]},
        )
        run = yaml.safe_load(job.read_text())
        del run["lora"]
        job.write_text(yaml.safe_dump(run, sort_keys=False))
        suite.hone("train", str(job), "--json")
        run_id = suite.run_id()
        found = suite.hone("runs", run_id, "--json")
        suite.audit(run_id)
        rows = suite.hone("rollout", "--run", run_id, "--limit", "100", "--json")["rollouts"]
        weights = load_file(str(Path(found["run"]["output_dir"]) / "model" / "model.safetensors"))
    assert found["run"]["state"] == "completed"
    assert {row["policy_version"] for row in rows} == set(range(STEPS))
    figures = [step["metrics"] for step in found["steps"]]
    assert all(m["updates"] == 1.0 for m in figures)
    assert figures[0]["kl"] == 0.0
    assert all(m["kl"] > 0.0 for m in figures[1:])
    # What the engine said of its tokens is what the learner's weights of that version say.
    assert all(m["mismatch/mean"] < 1e-3 for m in figures), figures
    start = load_file(str(tiny_model / "model.safetensors"))
    assert all(not weight.equal(start[name]) for name, weight in weights.items())
