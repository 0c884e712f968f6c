"""The likelihood of off-task rows is what transformers says of the same text, in any kind of run."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from learner.ports import RowData
from learner.settings import LearnerSettings
from learner.workers.torch_core import TorchCore
from runspec.schema import RunSpec
from runspec.sft_rows import parse_sft_rows
from servicekit.errors import InvalidArgument

pytestmark = pytest.mark.slow

TEXTS = ("Water boils at 100 degrees.", "The library buys another shelf for 12 books.")


def core_of(tiny_folder: Path, folder: Path, rows: str, **changes: Any) -> TorchCore:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": str(tiny_folder)},
            "data": {"train": "tasks-x"},
            "grader": {"type": "answer"},
            "rollout": {"tools": ["calculator"], "system_prompt": "Be brief."},
            "health": {"off_task": "sft-x"},
            **changes,
        }
    )
    data = RowData(off_task=parse_sft_rows(rows.encode(), source="rows"))
    return TorchCore(spec, folder, None, data, LearnerSettings(threads=1))


async def test_texts_score_as_in_transformers_without_the_runs_prompt_and_tools(
    tiny_folder: Path, tmp_path: Path
) -> None:
    rows = "".join(f'{{"text": "{text}"}}\n' for text in TEXTS)
    core = core_of(tiny_folder, tmp_path, rows)
    told: list[tuple[int, int]] = []
    await core.restore()
    found = await core.off_task(lambda done, total: told.append((done, total)))
    again = await core.off_task(lambda done, total: None)
    await core.close()

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tiny_folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tiny_folder))
    total, count = 0.0, 0
    for text in TEXTS:
        # A text begins and ends as in training: the end of text is learned too.
        ids = torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(-1, ids[0, 1:, None])
        total, count = total + float(picked.sum()), count + len(picked)
    assert found == pytest.approx(total / count, abs=1e-5)
    assert again == found
    assert told[-1] == (2, 2)


async def test_row_that_is_too_long_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    rows = '{"text": "short"}\n{"text": "' + "long " * 600 + '"}\n'
    limits = {"max_total_tokens": 400, "max_new_tokens": 20}
    core = core_of(tiny_folder, tmp_path, rows, rollout=limits)
    with pytest.raises(InvalidArgument, match=r"health\.off_task row 2 has \d+ tokens"):
        await core.restore()
    await core.close()
