"""vLLM through the whole suite: the adapter of a published version serves, with exact ids and log-probabilities."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import write_job
from suite import Suite, running_suite

VLLM_PYTHON = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(2000),  # what is started has limits of its own, which say what took so long
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="vLLM is not set up; make setup-vllm"),
]


def test_published_adapter_serves_with_exact_tokens(tmp_path: Path, tiny_model: Path) -> None:
    with running_suite(tmp_path, "--engine", "vllm", HONE_ROLLOUT_LEASE_SECONDS="60") as suite:
        adapter = taught(suite, tiny_model)
        run_id = evaluated(suite, tiny_model, adapter)
        suite.audit(run_id)
        rows = suite.hone("rollout", "--run", run_id, "--json")["rollouts"]
        assert len(rows) == 8
        for row in rows:
            record = suite.hone("rollout", row["rollout_id"], "--json")["record"]
            for said, plain in zip(
                sampled_logprobs(record), plain_logprobs(tiny_model, adapter, record), strict=True
            ):
                assert math.isclose(said, plain, abs_tol=1e-3)


def taught(suite: Suite, model: Path) -> Path:
    """An adapter that differs from the model: a few steps of imitation at a high rate."""
    import json

    conversation = {
        "messages": [
            {"role": "user", "content": "What is 2+3?"},
            {"role": "assistant", "content": "Final Answer: 5"},
        ]
    }
    folder = suite.folder / "sft"
    folder.mkdir()
    (folder / "sft.jsonl").write_text(json.dumps(conversation) + "\n")
    job = folder / "sft.yaml"
    job.write_text(
        f"name: teach\nalgorithm: sft\nmodel: {{path: {model}}}\nlora: {{rank: 4}}\n"
        "data: {train: sft.jsonl}\n"
        "train: {max_steps: 5, batch_size: 4, learning_rate: 0.05}\n"
    )
    done = suite.hone("sft", str(job), "--json", timeout=300)
    return Path(done["run"]["output_dir"]) / "adapter"


def evaluated(suite: Suite, model: Path, adapter: Path) -> str:
    job = write_job(
        suite.folder / "evaluation",
        model,
        tasks=8,
        name="measure",
        algorithm="evaluate",
        rollout={"tools": [], "max_turns": 1, "max_new_tokens": 16, "timeout": "300s"},
    )
    done = suite.hone("evaluate", str(job), f"model.adapter={adapter}", "--json", timeout=400)
    return str(done["run"]["run_id"])


def sampled_logprobs(record: dict[str, Any]) -> list[float]:
    row = record["tokens"]["rows"][0]
    return [p for p, m in zip(row["logprobs"], row["loss_mask"], strict=True) if m]


def plain_logprobs(model: Path, adapter: Path, record: dict[str, Any]) -> list[float]:
    """Log-probabilities of the same tokens by a plain forward pass of transformers and peft."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    row = record["tokens"]["rows"][0]
    base = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    tuned = peft.PeftModel.from_pretrained(base, str(adapter)).eval()
    ids = torch.tensor([row["token_ids"]])
    with torch.no_grad():
        logprobs = tuned(input_ids=ids).logits[0, :-1].log_softmax(-1)
    found = logprobs.gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1).tolist()
    return [p for p, m in zip(found, row["loss_mask"][1:], strict=True) if m]


def test_vllm_environment_sees_the_project() -> None:
    done = subprocess.run(
        [str(VLLM_PYTHON), "-c", "import vllm, rollout, hone.events.v1.events_pb2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
