"""A run whose rows make the loss infinite or no number, from the trainer to the run's end and beyond."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from local_learner import LocalLearner

from eventbus.memory_bus import MemoryBus
from learner.runs.checkpoints import stored
from learner.runs.store import Run, RunState
from modelstore.tiny import make_tiny_tokenizer
from runspec.schema import RunSpec

pytestmark = pytest.mark.slow

SPOILT = "~"


@pytest.fixture(scope="module")
def spoilt_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a model that says nothing finite of a text with one certain sign in it."""
    folder = tmp_path_factory.mktemp("spoilt-model")
    tokenizer = make_tiny_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    (token,) = tokenizer.encode(SPOILT, add_special_tokens=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = float("inf")
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


class Desk(LocalLearner):
    """Starts supervised runs."""

    def start(self, rows: Sequence[str], model: Path, **train: Any) -> Run:
        content = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        data, _ = self.datasets.store("sft", content.encode())
        spec = RunSpec.model_validate(
            {
                "algorithm": "sft",
                "model": {"path": str(model)},
                "data": {"train": data},
                "lora": {"rank": 2},
                "train": {"max_steps": 4, "batch_size": 2, **train},
            }
        )
        return self.begin(spec)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    bus = MemoryBus()
    yield Desk(tmp_path, bus)
    await bus.close()


def _rows() -> list[str]:
    return [f"row {number} of eight {SPOILT if number == 5 else ''}" for number in range(8)]


async def test_spoilt_row_ends_the_run_at_the_last_good_checkpoint_and_a_resume_does_without(
    desk: Desk, spoilt_model: Path
) -> None:
    run = desk.start(_rows(), spoilt_model)
    async with asyncio.timeout(120):
        failed = await desk.ended(run.run_id)
    assert failed.state is RunState.FAILED
    assert f"step {failed.step + 1} is not finite: the loss is" in failed.detail
    assert "6" in failed.detail.partition("the rows of data.train")[2]  # it counts from 1
    root = desk.store.folder(run.run_id) / "checkpoints"
    assert [one.step for one in stored(root)][:1] == ([failed.step] if failed.step else [])
    desk.manager.resume(run.run_id)
    async with asyncio.timeout(120):
        done = await desk.ended(run.run_id)
    assert done.state is RunState.COMPLETED, done.detail
    assert done.step == 4
    for step in desk.store.steps(run.run_id):
        assert step.metrics["loss"] == step.metrics["loss"] < float("inf")


async def test_nothing_but_spoilt_rows_says_that_none_is_left(
    desk: Desk, spoilt_model: Path
) -> None:
    run = desk.start([f"{SPOILT} {number}" for number in range(2)], spoilt_model)
    async with asyncio.timeout(120):
        assert (await desk.ended(run.run_id)).state is RunState.FAILED
    desk.manager.resume(run.run_id)
    async with asyncio.timeout(120):
        again = await desk.ended(run.run_id)
    assert again.state is RunState.FAILED
    assert "no row is left" in again.detail
    assert stored(desk.store.folder(run.run_id) / "checkpoints") == []
