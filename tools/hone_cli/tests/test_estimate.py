"""What a run will take: exact counts, bounds that hold, and assumptions that are said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hone.learner.v1 import learner_pb2
from hypothesis import given
from hypothesis import strategies as st

from hone_cli.estimate import Estimate, Inputs, Lengths, Prices, Speed, estimate, num_evaluations
from hone_cli.sizing import speed_of
from modelstore.shape import ModelShape
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec

SHAPE = ModelShape(
    num_parameters=1_000_000,
    num_layers=2,
    hidden_size=64,
    vocabulary_size=100,
    linear_shapes={"model.layers.0.q_proj.weight": (64, 64), "model.layers.0.up.weight": (128, 64)},
)


def spec_of(algorithm: str = "grpo", **fields: Any) -> RunSpec:
    base: dict[str, Any] = {
        "algorithm": algorithm,
        "model": {"path": "m"},
        "data": {"train": "a", "eval": "b"},
        "train": {"max_steps": 5, "batch_size": 4, "group_size": 3},
        "rollout": {"max_new_tokens": 20, "max_total_tokens": 100},
        "eval": {"samples": 2},
    }
    return RunSpec.model_validate(base | fields)


def lengths(*tokens: int) -> Lengths:
    return Lengths(tokens=tokens, num_rows=len(tokens))


@pytest.mark.parametrize(
    ("algorithm", "every", "count"),
    [("grpo", 0, 0), ("grpo", 2, 4), ("grpo", 5, 2), ("grpo", 9, 2), ("evaluate", 0, 1),
     ("dpo", 0, 2), ("dpo", 2, 4), ("sft", 0, 0)],
)  # fmt: skip
def test_evaluations_come_before_every_so_many_steps_and_after_the_last(
    algorithm: str, every: int, count: int
) -> None:
    assert num_evaluations(spec_of(algorithm, eval={"every_steps": every})) == count


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_bounds_hold_for_every_walk_through_the_rows(
    tokens: list[int], visits: int, rng: Any
) -> None:
    walked, left = 0, visits
    while left > 0:
        epoch = rng.sample(tokens, len(tokens))[:left]
        walked += sum(epoch)
        left -= len(epoch)
    least, expected, most = lengths(*tokens).visited(visits)
    assert least <= walked <= most
    assert least - 1e-6 <= expected <= most + 1e-6
    if visits % len(tokens) == 0:
        assert least == most == walked


def test_rollouts_and_tokens_of_training_and_evaluation() -> None:
    spec = spec_of(eval={"samples": 2, "every_steps": 5})
    found = estimate(Inputs(spec=spec, train=lengths(10, 20), eval=lengths(30), num_eval_tasks=1))
    assert (found.updates, found.evaluations, found.rollouts) == (5, 2, 5 * 4 * 3 + 2 * 2)
    assert found.tokens is not None
    assert found.sampled_tokens is not None
    # 20 visits of two prompts by groups of 3, and two evaluations of one prompt twice.
    prompts = 10 * 30 * 3 + 2 * 30 * 2
    assert (found.tokens.least, found.tokens.most) == (prompts + 64, prompts + 64 * 20)
    assert (found.sampled_tokens.least, found.sampled_tokens.most) == (64, 64 * 20)
    assert any(
        "half of rollout.max_new_tokens; no run was measured" in a for a in found.assumptions
    )


def test_rollouts_with_tools_may_fill_their_room() -> None:
    spec = spec_of(rollout={"max_new_tokens": 20, "max_total_tokens": 100, "tools": ["python"]})
    found = estimate(Inputs(spec=spec, train=lengths(10), eval=lengths(10)))
    assert found.tokens is not None
    assert found.tokens.most == 60 * 100


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "reward_model"])
def test_runs_over_rows_count_every_row_that_is_seen(algorithm: str) -> None:
    spec = spec_of(algorithm, train={"max_steps": 3, "batch_size": 2})
    found = estimate(
        Inputs(spec=spec, train=lengths(10, 20, 30), eval=lengths(7), num_eval_tasks=1)
    )
    assert found.rollouts == 0
    assert found.tokens is not None
    assert found.tokens.least == found.tokens.most == 120 + (0 if algorithm == "sft" else 2 * 7)
    assert found.sampled_tokens is None


def test_what_tools_add_is_in_the_most_where_nobody_can_be_asked_for_their_descriptions() -> None:
    for spec, most in (
        (spec_of("sft", train={"max_steps": 3, "batch_size": 2}), 600),
        (spec_of(), 6000),
    ):
        found = estimate(Inputs(spec=spec, train=lengths(10), eval=None, tools_counted=False))
        assert found.tokens is not None
        assert found.tokens.most == most


def test_speeds_of_an_earlier_run_go_before_assumptions() -> None:
    speed = Speed(
        run_id="r-1",
        tokens_per_rollout=5.0,
        rollout_seconds_per_token=0.01,
        train_seconds_per_token=0.03,
    )
    inputs = Inputs(spec=spec_of(), train=lengths(10), eval=None, shape=SHAPE, speed=speed)
    found = estimate(inputs)
    assert found.sampled_tokens is not None
    assert found.sampled_tokens.expected == 60 * 5
    assert found.seconds == pytest.approx(300 * 0.04)
    assert any("run r-1" in text for text in found.assumptions)
    assert not any("GFLOP" in text for text in found.assumptions)


def test_without_an_earlier_run_the_assumed_speed_is_said_and_more_cores_are_faster() -> None:
    one, four = (
        estimate(Inputs(spec=spec_of(), train=lengths(10), eval=None, shape=SHAPE, num_cores=cores))
        for cores in (1, 4)
    )
    assert one.seconds is not None
    assert four.seconds == pytest.approx(one.seconds / 4)
    assert any("100 GFLOP/s for training and 50 for sampling" in text for text in one.assumptions)


SMOLLM = ModelShape(
    num_parameters=134_515_008,
    num_layers=30,
    hidden_size=576,
    vocabulary_size=49_152,
    linear_shapes={},
)


def test_assumed_speeds_and_memory_are_near_what_was_measured_on_two_cores() -> None:
    # Figures of the learner's and the rollout service's README: 12.7 s for an update of 8 groups of 8 with prompts of
    # 110 and 45 sampled tokens, 400 sampled tokens a second, 3.4 to 3.9 GB; 3.7 s for 16 rows of 140 tokens.
    grpo = spec_of(
        train={"max_steps": 1, "batch_size": 8, "group_size": 8},
        rollout={"max_new_tokens": 90, "max_total_tokens": 400},
    )
    sft = spec_of("sft", train={"max_steps": 1, "batch_size": 16})
    for spec, length, seconds in ((grpo, 110, 12.7 + 64 * 45 / 400), (sft, 140, 3.7)):
        found = estimate(
            Inputs(spec=spec, train=lengths(length), eval=None, shape=SMOLLM, num_cores=2)
        )
        assert found.seconds is not None
        assert found.memory_bytes is not None
        assert seconds / 2 < found.seconds < seconds * 2
        assert 3.9e9 / 2 < found.memory_bytes < 3.4e9 * 2


def test_full_weights_take_more_memory_than_an_adapter_and_bfloat16_less() -> None:
    def memory(**fields: Any) -> float:
        found = estimate(Inputs(spec=spec_of(**fields), train=lengths(9), eval=None, shape=SHAPE))
        assert found.memory_bytes is not None
        return found.memory_bytes

    adapter = memory(lora={"rank": 4})
    trained = 4 * (64 + 64 + 128 + 64)
    assert memory(lora={"rank": 8}) - adapter == trained * 16
    assert memory(lora={"rank": 4, "target_modules": ["q_proj"]}) - adapter == -4 * 192 * 16
    unknown = spec_of(lora={"target_modules": ["q_proj", "q_prog"]})
    found = estimate(Inputs(spec=unknown, train=lengths(9), eval=None, shape=SHAPE))
    assert "no linear layer of the model's blocks is called 'q_prog'" in " ".join(found.assumptions)
    whole = spec_of(lora={"target_modules": ["0", "0.q_proj", "layers.0.up"]})
    found = estimate(Inputs(spec=whole, train=lengths(9), eval=None, shape=SHAPE))
    assert [text for text in found.assumptions if "is called" in text] == [
        "lora.target_modules: no linear layer of the model's blocks is called '0'"
    ]
    assert memory(train={"weights": "full"}) - adapter == (1_000_000 - trained) * 16
    # The reference is a copy of its own where the KL counts.
    copied = memory(train={"weights": "full", "kl_coef": 0.1}) - memory(train={"weights": "full"})
    assert copied == 1_000_000 * 4
    assert memory(lora={"rank": 4}, model={"path": "m", "dtype": "bfloat16"}) < adapter


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "model.dtype: auto is measured when the run starts; what is said here is for float32"),
        ({"train": {"weights": "full"}}, "model.dtype: auto is float32 with train.weights full"),
        ({"algorithm": "evaluate"}, "model.dtype: auto is float32 in an evaluation"),
    ],
)
def test_a_number_type_that_is_measured_later_is_counted_as_float32(
    fields: dict[str, Any], said: str
) -> None:
    def found(dtype: str) -> Estimate:
        spec = spec_of(**fields | {"model": {"path": "m", "dtype": dtype}})
        return estimate(Inputs(spec=spec, train=lengths(9), eval=lengths(9), shape=SHAPE))

    assert found("auto").memory_bytes == found("float32").memory_bytes
    assert said in " ".join(found("auto").assumptions)
    assert "model.dtype" not in " ".join(found("float32").assumptions)


def test_money_is_of_hours_and_of_tokens() -> None:
    speed = Speed(run_id="r", tokens_per_rollout=10, rollout_seconds_per_token=6.0)
    base = {"spec": spec_of(), "train": lengths(10), "eval": None, "speed": speed}
    both = estimate(Inputs(**base, prices=Prices(per_hour=2.0, per_million_tokens=100.0)))
    assert both.cost == pytest.approx(2.0 * (600 * 6 / 3600) + 100.0 * 1200 / 1e6)
    assert estimate(Inputs(**base)).cost is None


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    found = estimate(Inputs(spec=spec_of(), train=None, eval=None))
    assert (found.rollouts, found.tokens, found.seconds, found.memory_bytes) == (
        60,
        None,
        None,
        None,
    )


def test_speed_is_the_median_step_of_a_run() -> None:
    def reply(steps: list[dict[str, float]], algorithm: str) -> learner_pb2.GetRunResponse:
        spec = run_spec_to_proto(spec_of(algorithm))
        reports = [learner_pb2.StepReport(step=i, metrics=m) for i, m in enumerate(steps)]
        return learner_pb2.GetRunResponse(
            run=learner_pb2.Run(run_id="r-1", spec=spec), steps=reports
        )

    steps = [
        {
            "rollouts/ok": 10.0,
            "completions/mean_length": 20.0,
            "time/rollout_seconds": seconds,
            "time/train_seconds": 2.0,
        }
        for seconds in (4.0, 4.0, 400.0)
    ]
    found = speed_of(reply([*steps, {"rollouts/ok": 0.0}], "grpo"))
    assert found is not None
    assert found.tokens_per_rollout == 20.0
    assert found.rollout_seconds_per_token == pytest.approx(0.02)
    assert found.train_seconds_per_token == pytest.approx(0.01)
    rows = speed_of(reply([{"time/train_seconds": 8.0}], "sft"))
    assert rows is not None
    assert rows.train_seconds_per_row == 2.0
    assert speed_of(reply([], "grpo")) is None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from modelstore.tiny import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sft", "dpo", "reward_model"])
def test_tokens_of_rows_are_those_that_the_learner_makes_of_them(
    suite: Any, tiny: Path, algorithm: str
) -> None:
    from learner.ports import RowData
    from learner.training.rendered import RowRenderer
    from modelstore.tiny import make_tiny_tokenizer
    from runspec.preferences import parse_preferences
    from runspec.sft_rows import parse_sft_rows

    rows: list[dict[str, Any]] = [
        {"prompt": f"What is {i} + {i}?", "completion": str(2 * i)} for i in range(5)
    ] + [{"text": "The answer is 41. " * i} for i in range(1, 4)]
    if algorithm != "sft":
        rows = [{"prompt": f"{i}?", "chosen": "b" * i, "rejected": "a"} for i in range(1, 9)]
    suite.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    suite.write(
        "run.yaml",
        f"algorithm: {algorithm}\nmodel: {{path: {tiny}}}\ndata: {{train: rows.jsonl}}\n"
        "train: {max_steps: 4, batch_size: 4}\n",
    )
    verb = algorithm.replace("_", "-")
    assert (
        suite.hone(verb, "run.yaml", "--dry-run", "--json", "--price-per-million-tokens", "1e6")
        == 0
    )
    found = suite.json()["estimate"]
    spec = RunSpec.model_validate(
        {"algorithm": algorithm, "model": {"path": "m"}, "data": {"train": "d"}, "train": {}}
    )
    data, text = RowData(), (suite.folder / "rows.jsonl").read_bytes()
    renderer = RowRenderer(make_tiny_tokenizer(), spec, data)
    if algorithm == "sft":
        read = RowData(conversations=parse_sft_rows(text, source="f"))
        made = [row for conversation in renderer.conversations(read) for row in conversation]
    else:
        pairs = renderer.pairs(parse_preferences(text, source="f"), "data.train")
        made = [row for pair in pairs for side in (pair.chosen, pair.rejected) for row in side]
    total = 2 * sum(len(row.token_ids) for row in made)
    assert found["tokens"] == {"least": total, "expected": total, "most": total}
    assert found["cost"] == total
    assert found["memory_bytes"] > 1.2e6 * 4


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_price_is_an_amount(suite: Any, price: str) -> None:
    assert suite.hone("sft", "run.yaml", "--dry-run", "--price-per-hour", price) == 2
    assert "--price-per-hour" in suite.err


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_model_that_is_spoilt_leaves_the_rest_of_a_dry_run(
    suite: Any, tiny: Path, name: str
) -> None:
    shutil.copytree(tiny, suite.folder / "model")
    suite.write(f"model/{name}", "version https://git-lfs.github.com/spec/v1\n")
    suite.write("rows.jsonl", '{"prompt": "1 + 1?", "completion": "2"}\n')
    suite.write("run.yaml", "algorithm: sft\nmodel: {path: model}\ndata: {train: rows.jsonl}\n")
    assert suite.hone("sft", "run.yaml", "--dry-run", "--json") == 0, suite.err
    assert suite.json()["estimate"]["updates"] == 30
    assert any(f"model/{name}" in text or "tokenizer" in text
               for text in suite.json()["estimate"]["assumptions"])  # fmt: skip
