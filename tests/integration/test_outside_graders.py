"""Graders outside the grader, in a whole suite: a reward model of the rollout service, a function of a package."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import RUN, write_job
from modelstore.tiny import make_tiny_reward_model
from suite import running_suite

pytestmark = pytest.mark.slow

PLUGIN = """
def brevity(prompts, completions, completion_ids, answer, **columns):
    text = completions[0][-1]["content"]
    return [1.0 if text.endswith(answer[0]) and completion_ids[0] else None]
"""


def _install(folder: Path) -> None:
    info = folder / "outside_rewards-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "outside_rewards.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-rewards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hone.reward_functions]\nbrevity = outside_rewards:brevity\n"
    )


def test_a_reward_model_and_a_packages_function_measure_a_run(
    tmp_path: Path, tiny_model: Path
) -> None:
    make_tiny_reward_model(tmp_path / "reward-model", seed=2)
    _install(tmp_path / "site")
    learned = {
        "name": "learned",
        "type": "reward_model",
        "model": str(tmp_path / "reward-model"),
        "weight": 0,
    }
    brevity = {"name": "brevity", "type": "function", "function": "brevity", "weight": 0}
    graders = [*RUN["grader"]["graders"], learned, brevity]
    with running_suite(
        tmp_path / "suite", "--engine", "scripted", PYTHONPATH=str(tmp_path / "site")
    ) as suite:
        job = write_job(
            suite.folder,
            tiny_model,
            grader={"type": "multi", "graders": graders},
            train={"max_steps": 1},
        )
        suite.hone("train", str(job), "--json")
        run_id = suite.run_id()
        suite.audit(run_id)
        rows = suite.hone("rollout", "--run", run_id, "--json")["rollouts"]
        assert {row["outcome"] for row in rows} == {"scored"}
        found = [suite.hone("rollout", row["rollout_id"], "--json") for row in rows[:4]]
        rewards = [_rewards(rollout) for rollout in found]
    # Script by sample: right, right, wrong, without an answer.
    assert all("learned" in by_name for by_name in rewards)
    assert len({by_name["learned"] for by_name in rewards}) > 1
    said = sorted(by_name.get("brevity", -1.0) for by_name in rewards)
    assert said == [-1.0, -1.0, 1.0, 1.0]


def _rewards(rollout: dict[str, Any]) -> dict[str, float]:
    scored = rollout["reward_assigned"]["scored"]
    assert not scored.get("errors"), json.dumps(scored)
    return {reward["name"]: float(reward.get("value", 0.0)) for reward in scored["rewards"]}
