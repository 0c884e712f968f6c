"""Whole runs over pairs: rows in, figures and a model out, gone on with after a stop."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from google.protobuf import json_format
from learner_world import never_measured

from eventbus.memory_bus import MemoryBus
from learner.datasets import DatasetStore
from learner.health.alarms import Alarm
from learner.ports import Stopped
from learner.runner import Runner
from learner.runs.adapters import AdapterStore
from learner.runs.store import Run, RunState, RunStore
from learner.settings import LearnerSettings
from learner.training.model import PolicySettings, load_policy
from learner.workers.torch_core import TorchCore
from modelstore.resolve import ModelUnusableError
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from servicekit.errors import InvalidArgument, NotFound
from trajectory.rendering import ChatRenderer
from trajectory.types import ToolDefinition

pytestmark = pytest.mark.slow

SCORING = {"max_steps": 15, "batch_size": 12, "learning_rate": 1e-2, "value_learning_rate": 1e-2}
WORDS = ["answer", "is", "apples", "boxes", "the", "left", "many", "how"]


def pairs(seed: int, count: int, *, soft: bool = False) -> bytes:
    """Rows whose chosen response ends with other words than the rejected one; soft: a judge says which is better."""
    rng = random.Random(seed)

    def text(last: str) -> str:
        return " ".join([*rng.choices(WORDS, k=rng.randint(1, 4)), last])

    rows = [
        {
            "prompt": text("?"),
            "chosen": text("7 7"),
            "rejected": text("apples apples"),
            "margin": 0.1,
        }
        for _ in range(count)
    ]
    if soft:
        rows = [_judged(row, index) for index, row in enumerate(rows)]
    return b"\n".join(json.dumps(row).encode() for row in rows)


def _judged(row: dict[str, Any], index: int) -> dict[str, Any]:
    """The same comparison as a judge tells it: of every other row the better response is the rejected one."""
    kept = {"prompt": row["prompt"]}
    if index % 2 == 0:
        sides = {"chosen": row["chosen"], "rejected": row["rejected"]}
        return kept | sides | {"first_shown_probabilities": [0.95, 0.15]}
    turned = {"chosen": row["rejected"], "rejected": row["chosen"]}
    return kept | turned | {"soft_label": 0.1}


class Report:
    """Keeps what a run reports, and stops it after a step if it should."""

    def __init__(self, stop: asyncio.Event, stop_after: int | None = None) -> None:
        self.metrics: list[Mapping[str, float]] = []
        self.stages: set[str] = set()
        self._stop = stop
        self._stop_after = stop_after

    def progress(self, step: int, stage: str) -> Callable[[int, int], None]:
        self.stages.add(stage)
        return lambda done, total: None

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        raise AssertionError(f"alarms in step {step}: {alarms}")

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append(metrics)
        if step == self._stop_after:
            self._stop.set()


class NoTools:
    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        assert not names
        return {}


class Desk:
    """Carries runs out in a folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.store = RunStore(folder / "runs")
        self.datasets = DatasetStore(folder / "datasets")
        self.adapters = AdapterStore(self.store)
        self._settings = LearnerSettings(model_cache_dir=folder / "models", threads=1)
        self._model = model
        self.bus = MemoryBus()

    def run_of(
        self, algorithm: str, run_id: str = "r-1", *, soft: bool = False, **changes: Any
    ) -> Run:
        train, _ = self.datasets.store("preferences", pairs(1, 24, soft=soft))
        held_out, _ = self.datasets.store("preferences", pairs(2, 12, soft=soft))
        spec = RunSpec.model_validate(
            {
                "algorithm": algorithm,
                "model": {"path": str(self._model)},
                "data": {"train": train, "eval": held_out},
                "lora": {"rank": 4},
                "train": {"max_steps": 4, "batch_size": 8, "learning_rate": 1e-2},
                **changes,
            }
        )
        run = Run(
            run_id=run_id,
            request_id="q",
            spec_json=json_format.MessageToJson(run_spec_to_proto(spec)),
            state=RunState.RUNNING,
            create_time=0.0,
        )
        self.store.folder(run_id).mkdir(parents=True, exist_ok=True)
        return run

    async def carry_out(
        self, run: Run, stop_after: int | None = None
    ) -> tuple[Mapping[str, float], Report]:
        stop = asyncio.Event()
        report = Report(stop, stop_after)
        runner = Runner(
            bus=self.bus,
            store=self.store,
            datasets=self.datasets,
            adapters=self.adapters,
            make_core=partial(TorchCore, settings=self._settings),
            measure_dtypes=never_measured,
            tools=NoTools(),
            rng=random.Random(0),
        )
        try:
            return await runner.run(run, report, stop), report  # type: ignore[arg-type]
        except Stopped:
            return {}, report


@pytest.fixture
async def desk(tmp_path: Path, tiny_folder: Path) -> Any:
    made = Desk(tmp_path, tiny_folder)
    yield made
    await made.bus.close()


async def test_dpo_run_learns_measures_and_leaves_an_adapter_to_start_from(desk: Desk) -> None:
    changes = {"eval": {"every_steps": 2}, "train": {"max_steps": 4, "learning_rate": 1e-2}}
    ended, report = await desk.carry_out(desk.run_of("dpo", **changes))
    assert report.metrics[0]["eval/rewards/margins"] == 0.0
    assert ["eval/loss" in metrics for metrics in report.metrics] == [True, False, True, False]
    assert ended["eval/rewards/margins"] > report.metrics[2]["eval/rewards/margins"] > 0.0
    assert ended["eval/loss"] < report.metrics[0]["eval/loss"]
    assert report.stages == {"loading", "training", "evaluating"}
    assert desk.adapters.resolve("r-1") is not None
    # The next run starts from there, and its reference is where it starts.
    following = desk.run_of("dpo", "r-2", model={"path": str(desk._model), "adapter": "r-1"})
    _, second = await desk.carry_out(following)
    assert second.metrics[0]["eval/rewards/margins"] == 0.0


FULL = {"weights": "full", "max_steps": 4, "batch_size": 8, "learning_rate": 1e-3}


async def test_run_of_full_weights_leaves_a_model_to_start_from(desk: Desk) -> None:
    ended, report = await desk.carry_out(desk.run_of("dpo", train=FULL, eval={"every_steps": 2}))
    assert report.metrics[0]["eval/rewards/margins"] == 0.0
    assert ended["eval/rewards/margins"] > 0.0
    model = desk.adapters.model("r-1")
    with pytest.raises(NotFound, match=f"r-1 trained full weights; .* model.path: {model}"):
        desk.adapters.resolve("r-1")
    following = desk.run_of("dpo", "r-2", model={"path": str(model)}, eval={"every_steps": 2})
    _, second = await desk.carry_out(following)
    assert second.metrics[0]["eval/rewards/margins"] == 0.0
    opened = transformers.AutoModelForCausalLM.from_pretrained(str(model))
    base = transformers.AutoModelForCausalLM.from_pretrained(str(desk._model))
    moved = [
        name
        for name, w in opened.state_dict().items()
        if not torch.equal(w, base.state_dict()[name])
    ]
    assert len(moved) == len(base.state_dict())


@pytest.mark.parametrize("algorithm", ["dpo", "reward_model"])
async def test_run_learns_what_a_judge_prefers_whichever_side_the_row_has_it_on(
    desk: Desk, algorithm: str
) -> None:
    train = SCORING if algorithm == "reward_model" else {**SCORING, "value_learning_rate": 1e-3}
    ended, report = await desk.carry_out(desk.run_of(algorithm, soft=True, train=train))
    first = report.metrics[0]
    assert ended["eval/rewards/accuracies"] >= 0.9
    assert ended["eval/rewards/margins"] > first["eval/rewards/margins"] + 0.2
    assert first["eval/loss"] > ended["eval/loss"] > ended["eval/labels/entropy"]
    assert ended["eval/labels/probability"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("algorithm", "train", "soft"),
    [
        ("dpo", {}, False),
        ("reward_model", {}, False),
        ("dpo", {}, True),
        ("reward_model", {}, True),
        ("dpo", FULL, False),
        ("reward_model", FULL, False),
    ],
)
async def test_stopped_run_goes_on_as_if_it_had_not_been(
    desk: Desk, algorithm: str, train: dict[str, Any], soft: bool
) -> None:
    changes: dict[str, Any] = {"train": train} if train else {}
    changes["soft"] = soft
    straight, _ = await desk.carry_out(desk.run_of(algorithm, "straight", **changes))
    run = desk.run_of(algorithm, "stopped", **changes)
    nothing, first = await desk.carry_out(run, stop_after=1)
    assert not nothing
    assert len(first.metrics) == 2
    resumed, second = await desk.carry_out(run)
    # The steps of the checkpoint are told once more; they stay one event each.
    assert len(second.metrics) in (2, 3)

    def lasting(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if not name.startswith("time/")}

    assert lasting(resumed) == lasting(straight)


async def test_reward_model_run_leaves_a_model_that_others_open(
    desk: Desk, tiny_folder: Path
) -> None:
    ended, _ = await desk.carry_out(desk.run_of("reward_model", train=SCORING))
    assert ended["eval/rewards/accuracies"] >= 0.9
    folder = desk.store.folder("r-1") / "reward_model"
    whole, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        str(folder), output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        str(tiny_folder), num_labels=1
    )
    adapted = peft.PeftModel.from_pretrained(base, str(folder / "adapter"))

    # Both say of the held-out pairs what the learner said.
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    renderer = ChatRenderer(tokenizer)
    deltas = []
    for row in desk.datasets.preferences(desk.datasets.store("preferences", pairs(2, 12))[0]):
        scores = []
        for response in (row.chosen, row.rejected):
            ids = torch.tensor([renderer.conversation((*row.prompt, *response)).token_ids])
            mask = torch.ones_like(ids)
            with torch.inference_mode():
                one = float(whole.eval()(input_ids=ids, attention_mask=mask).logits[0, 0])
                other = float(adapted.eval()(input_ids=ids, attention_mask=mask).logits[0, 0])
            assert one == pytest.approx(other, abs=1e-4)
            scores.append(one)
        deltas.append(scores[0] - scores[1])
    assert sum(deltas) / len(deltas) == pytest.approx(ended["eval/rewards/margins"], abs=1e-4)
    # It is no policy: no run starts from it.
    with pytest.raises(NotFound, match=r"model\.adapter: run r-1 made a reward model"):
        desk.adapters.resolve("r-1")
    settings = PolicySettings(folder=tiny_folder, adapter=folder / "adapter")
    with pytest.raises(ModelUnusableError, match="is an adapter for SEQ_CLS"):
        load_policy(settings)


async def test_reward_model_grows_on_what_an_adapter_has_learned(desk: Desk) -> None:
    await desk.carry_out(desk.run_of("dpo"))
    model = {"path": str(desk._model), "adapter": "r-1"}
    run = desk.run_of("reward_model", "r-2", model=model, train=SCORING)
    ended, _ = await desk.carry_out(run)
    assert ended["eval/rewards/accuracies"] >= 0.9


async def test_row_that_is_too_long_is_named_with_its_side(desk: Desk) -> None:
    run = desk.run_of("dpo", rollout={"max_total_tokens": 10, "max_new_tokens": 2})
    with pytest.raises(InvalidArgument, match=r"data\.train row 1, chosen has \d+ tokens"):
        await desk.carry_out(run)


async def test_only_so_many_held_out_pairs_are_measured(desk: Desk) -> None:
    whole, _ = await desk.carry_out(desk.run_of("reward_model", "whole"))
    few, _ = await desk.carry_out(desk.run_of("reward_model", "few", eval={"max_tasks": 3}))
    assert few["eval/loss"] != whole["eval/loss"]
    assert few["loss"] == whole["loss"]
