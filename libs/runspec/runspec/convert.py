"""Maps RunSpec to and from `hone.common.v1.RunSpec`; names are equal but for the dataset ids and the grader."""

import json
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from hone.common.v1 import run_spec_pb2
from pydantic import ValidationError

from runspec.explain import problems_of
from runspec.problems import Problem, SpecError
from runspec.rules import check_rules
from runspec.schema import RunSpec


def run_spec_to_proto(spec: RunSpec) -> run_spec_pb2.RunSpec:
    """Converts to the wire; data.train, data.eval and health.off_task become the dataset ids."""
    fields: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    data = fields.pop("data")
    fields["train_dataset_id"] = data["train"]
    fields["eval_dataset_id"] = data["eval"]
    fields["health"]["off_task_dataset_id"] = fields["health"].pop("off_task")
    grader = fields.pop("grader", None)
    fields["grader_json"] = json.dumps(grader, ensure_ascii=False) if grader is not None else ""
    return ParseDict(fields, run_spec_pb2.RunSpec())


def run_spec_from_proto(message: run_spec_pb2.RunSpec) -> RunSpec:
    """Converts from the wire and checks every rule; fields not said take their defaults.

    Raises:
        SpecError: the specification is not acceptable; `violations()` names the fields.
    """
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    fields["data"] = {
        "train": fields.pop("train_dataset_id", ""),
        "eval": fields.pop("eval_dataset_id", ""),
    }
    health = fields.get("health", {})
    if "off_task_dataset_id" in health:
        health["off_task"] = health.pop("off_task_dataset_id")
    if "seed" in fields:
        fields["seed"] = int(fields["seed"])
    if "grader_json" in fields:
        fields["grader"] = _grader_from(fields.pop("grader_json"))
    try:
        spec = RunSpec.model_validate(fields)
    except ValidationError as error:
        raise SpecError(problems_of(error)) from error
    if problems := check_rules(spec):
        raise SpecError(problems)
    return spec


def _grader_from(text: str) -> dict[str, Any]:
    try:
        grader = json.loads(text)
    except RecursionError:
        raise SpecError([Problem(field="grader", message="is nested too deeply")]) from None
    except json.JSONDecodeError as error:
        raise SpecError([Problem(field="grader", message=f"is not JSON: {error}")]) from error
    if not isinstance(grader, dict):
        raise SpecError([Problem(field="grader", message="is not a JSON object")])
    return grader
