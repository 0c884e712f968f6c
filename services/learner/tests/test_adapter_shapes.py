"""What a run file may say of the adapter that a run goes on with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from learner.runs.adapter_shape import shape_of
from learner.runs.adapters import AdapterStore
from learner.runs.store import RunStore
from runspec.schema import LoraSpec
from servicekit.errors import InvalidArgument

PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["v_proj", "q_proj"]}


def goes_on(folder: Path, config: object, **said: Any) -> LoraSpec:
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "adapter_config.json").write_text(text)
    return shape_of(LoraSpec(**said), folder)


@pytest.mark.parametrize(
    "said",
    [{}, {"rank": 4}, {"rank": 4, "alpha": 6.0, "target_modules": ("q_proj", "v_proj")}],
)
def test_adapters_own_shape_holds(tmp_path: Path, said: dict[str, Any]) -> None:
    found = goes_on(tmp_path, PEFT, **said)
    assert (found.rank, found.alpha) == (4, 6.0)
    assert found.target_modules == said.get("target_modules", ())


@pytest.mark.parametrize(
    ("said", "config", "field", "text"),
    [
        ({"rank": 8}, PEFT, "lora.rank", "is 8, but .* has 4, .*lora.rank=null"),
        ({"alpha": 6.5}, PEFT, "lora.alpha", "is 6.5, but .* has 6.0, "),
        (
            {"target_modules": ("k",)},
            PEFT,
            "lora.target_modules",
            "is k, .* has q_proj, v_proj, ",
        ),
        (
            {"target_modules": ("k",)},
            PEFT | {"target_modules": ".*_proj"},
            "lora.target_modules",
            r"has \.\*_proj, ",
        ),
        ({}, PEFT | {"r": 0}, "model.adapter", "go on with: r: .* 1"),
        ({}, PEFT | {"r": 2048}, "model.adapter", "go on with: r: .* 1024"),
        ({"rank": 8}, PEFT | {"r": 10**400}, "model.adapter", "go on with: r: "),
        ({}, PEFT | {"r": "four"}, "model.adapter", "go on with: r: "),
        ({"rank": 8}, {"peft_type": "LORA"}, "model.adapter", "r: Field required"),
        ({}, {"r": 4, "lora_alpha": 6}, "model.adapter", "peft_type: Field required"),
        ({}, PEFT | {"lora_alpha": 0}, "model.adapter", "lora_alpha: .* 0"),
        ({}, PEFT | {"target_modules": ["q", 1]}, "model.adapter", "target_modules"),
        ({}, {"peft_type": "IA3"}, "model.adapter", "peft_type: .*LORA"),
        ({}, [1], "model.adapter", "go on with: "),
        ({}, "{", "model.adapter", "go on with: "),
        ({}, "[" * 5000, "model.adapter", "go on with: "),
    ],
)
def test_other_shape_or_none_is_refused(
    tmp_path: Path, said: dict[str, Any], config: object, field: str, text: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        goes_on(tmp_path, config, **said)
    assert re.search(text, caught.value.violations[field], re.DOTALL)


def test_all_that_differs_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        goes_on(tmp_path, PEFT, rank=8, alpha=3.0)
    assert set(caught.value.violations) == {"lora.rank", "lora.alpha"}


def test_layers_that_a_pattern_names_stay_the_adapters(tmp_path: Path) -> None:
    pattern = PEFT | {"target_modules": ".*_proj"}
    assert goes_on(tmp_path, pattern) == LoraSpec(rank=4, alpha=6.0)


def test_new_adapter_has_the_default_shape_where_none_is_said() -> None:
    assert shape_of(LoraSpec(), None) == LoraSpec(rank=16, alpha=32.0)
    assert shape_of(LoraSpec(rank=3), None) == LoraSpec(rank=3, alpha=6.0)


@pytest.mark.parametrize("layers", [[f"layers.{i}.{'q' * 3000}" for i in range(600)], "q|" * 9000])
def test_long_lists_of_layers_are_told_in_few_words(tmp_path: Path, layers: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        goes_on(tmp_path, PEFT | {"target_modules": layers}, target_modules=("k",))
    assert len(caught.value.message) < 1000


def test_layers_in_another_order_or_named_twice_are_the_same(tmp_path: Path) -> None:
    found = goes_on(tmp_path, PEFT, target_modules=("v_proj", "q_proj", "v_proj"))
    assert (found.rank, found.alpha) == (4, 6.0)


@pytest.mark.parametrize("name", ["MyAdapter", "a b", "x" * 300])
def test_name_that_is_no_runs_id_is_told_as_the_adapters(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        AdapterStore(RunStore(tmp_path)).resolve(name)
    assert caught.value.violations["model.adapter"].startswith(f"found {name[:60]!r}; the run_id")
