"""Rows of every supervised shape through the real core: exactly what should be learned is, and it is learned."""

import json
from pathlib import Path

import pytest

from learner.ports import RowData
from learner.settings import LearnerSettings
from learner.training.rendered import RowRenderer
from learner.workers.torch_core import TorchCore
from modelstore.tiny import make_tiny_tokenizer
from runspec.schema import RunSpec
from runspec.sft_rows import parse_sft_rows

pytestmark = pytest.mark.slow

ROWS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "apples"}]},
    {"prompt": "How many boxes are left?", "completion": "seven"},
    {"text": "The answer is 41."},
]


async def test_all_shapes_train_together_on_exactly_their_tokens(
    tiny_folder: Path, tmp_path: Path
) -> None:
    spec = RunSpec.model_validate(
        {
            "algorithm": "sft",
            "model": {"path": str(tiny_folder)},
            "data": {"train": "d"},
            "lora": {"rank": 8},
            "train": {"max_steps": 12, "batch_size": 3, "learning_rate": 1e-2},
        }
    )
    data = RowData(
        conversations=parse_sft_rows("\n".join(map(json.dumps, ROWS)).encode(), source="f")
    )
    made = RowRenderer(make_tiny_tokenizer(), spec, data).conversations(data)
    learned = sum(sum(row.loss_mask) for rows in made for row in rows)
    core = TorchCore(spec, tmp_path, None, data, LearnerSettings(threads=1))
    try:
        assert await core.restore() is None
        figures = [await core.sft_step([0, 1, 2], lambda done, total: None) for _ in range(12)]
    finally:
        await core.close()
    assert {step["tokens/trained"] for step in figures} == {float(learned)}
    assert figures[-1]["loss"] < figures[0]["loss"] / 2
