"""What `model.dtype: auto` stands for: the rule, and that a run keeps it."""

from dataclasses import replace
from pathlib import Path

import pytest
from learner_world import spec

from learner.convert import run_to_proto
from learner.runner import spec_of
from learner.runs.dtype_choice import (
    DtypeChoice,
    DtypeSeconds,
    choice_without_measuring,
    choose_dtype,
)
from learner.runs.store import Run, RunState, RunStore


@pytest.mark.parametrize(
    ("float32", "bfloat16", "dtype"),
    [
        (4.0, 2.0, "bfloat16"),
        (4.0, 3.7, "bfloat16"),
        (4.0, 3.9, "float32"),
        (4.0, 4.0, "float32"),
        (4.0, 4.1, "float32"),
        (4.0, 40.0, "float32"),
    ],
)
def test_bfloat16_is_taken_where_it_is_faster_by_more_than_noise(
    float32: float, bfloat16: float, dtype: str
) -> None:
    seconds = DtypeSeconds(float32=float32, bfloat16=bfloat16, of_cpu=True)
    choice = choose_dtype(seconds)
    assert choice.dtype == dtype
    assert (choice.float32_seconds, choice.bfloat16_seconds) == (float32, bfloat16)
    assert f"{bfloat16:.3g} CPU-seconds in bfloat16, {float32:.3g} in float32" in choice.reason
    assert ("as fast" in choice.reason) == (bfloat16 in (3.9, 4.0))
    # The scale does not count.
    assert (
        choose_dtype(replace(seconds, float32=float32 / 1e3, bfloat16=bfloat16 / 1e3)).dtype
        == dtype
    )


def test_only_an_adapter_that_is_trained_is_measured() -> None:
    assert choice_without_measuring(spec()) is None
    full = choice_without_measuring(spec(weights="full"))
    assert full is not None
    assert (full.dtype, full.float32_seconds, full.bfloat16_seconds) == ("float32", 0, 0)
    assert "full" in full.reason
    evaluated = choice_without_measuring(spec().model_copy(update={"algorithm": "evaluate"}))
    assert evaluated is not None and evaluated.dtype == "float32"


def test_a_stored_run_keeps_its_choice_beside_what_was_asked_for(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    asked = '{"algorithm": "sft", "model": {"path": "m", "dtype": "auto"}, "train_dataset_id": "x"}'
    run = Run(
        run_id="r-1",
        request_id="",
        spec_json=asked,
        state=RunState.RUNNING,
        create_time=0.0,
    )
    store.save(run)
    assert spec_of(store.load("r-1")).model.dtype == "auto"
    assert not run_to_proto(store.load("r-1"), tmp_path).HasField("dtype_choice")
    choice = DtypeChoice(dtype="bfloat16", reason="said", float32_seconds=2.0, bfloat16_seconds=1.0)
    store.save(replace(run, dtype_choice=choice))
    kept = store.load("r-1")
    assert kept.dtype_choice == choice
    assert spec_of(kept).model.dtype == "bfloat16"
    told = run_to_proto(kept, tmp_path)
    assert (told.spec.model.dtype, told.dtype_choice.dtype) == ("auto", "bfloat16")
    assert (told.dtype_choice.float32_seconds, told.dtype_choice.bfloat16_seconds) == (2.0, 1.0)
