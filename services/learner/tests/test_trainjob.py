"""The manifests of deploy/kubernetes/learner hold what Kubeflow Trainer, Kubernetes and the learner know."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from learner.settings import LearnerSettings

kubernetes = pytest.importorskip("kubernetes")

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes" / "learner"
API = "trainer.kubeflow.org/v1alpha1"

TRAIN_JOB = {
    "runtimeRef",
    "initializer",
    "trainer",
    "suspend",
    "activeDeadlineSeconds",
    "managedBy",
}
"""Fields of TrainJobSpec in every release of v1alpha1 from 2.0 on (trainjob_types.go)."""
RUNTIME_REF = {"name", "apiGroup", "kind"}
TRAINER = {"image", "command", "args", "env", "numNodes", "resourcesPerNode", "numProcPerNode"}
RUNTIME = {"mlPolicy", "podGroupPolicy", "template"}
"""Fields of TrainingRuntimeSpec (trainingruntime_types.go)."""


def documents() -> dict[str, Any]:
    """Reads all manifests by kind."""
    found = {}
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        p.name for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml"
    )
    for name in listed:
        for document in yaml.safe_load_all((FOLDER / name).read_text()):
            found[document["kind"]] = document
    return found


def unknown(value: Any, kind: str, path: str = "") -> Iterator[str]:
    """Yields the fields that a type of the Kubernetes client does not have."""
    if kind.lower().startswith("list["):
        for index, item in enumerate(value):
            yield from unknown(item, kind[5:-1], f"{path}[{index}]")
        return
    model = getattr(kubernetes.client, kind, None)
    if model is None or not hasattr(model, "attribute_map"):
        return
    if not isinstance(value, Mapping):
        yield f"{path} is no {kind}"
        return
    by_name = {wire: model.openapi_types[name] for name, wire in model.attribute_map.items()}
    for key, item in value.items():
        if key not in by_name:
            yield f"{path}.{key}"
        else:
            yield from unknown(item, by_name[key], f"{path}.{key}")


def test_the_check_sees_a_field_that_is_not_there() -> None:
    assert list(unknown({"containers": [{"nam": "x"}]}, "V1PodSpec")) == [".containers[0].nam"]


def test_train_job_has_the_fields_of_its_kind_and_names_the_runtime_beside_it() -> None:
    found = documents()
    job, runtime = found["TrainJob"], found["TrainingRuntime"]
    assert job["apiVersion"] == runtime["apiVersion"] == API
    assert set(job["spec"]) <= TRAIN_JOB
    assert set(job["spec"]["runtimeRef"]) <= RUNTIME_REF
    assert job["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    # A runtime of a namespace serves jobs of the same one.
    assert {d["metadata"]["namespace"] for d in found.values()} == {"hone"}
    trainer = job["spec"]["trainer"]
    assert set(trainer) <= TRAINER
    assert list(unknown(trainer["env"], "list[V1EnvVar]")) == []
    assert list(unknown(trainer["resourcesPerNode"], "V1ResourceRequirements")) == []
    assert trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 1


def test_pod_of_the_runtime_is_one_that_kubernetes_and_the_trainer_take() -> None:
    found = documents()
    spec = found["TrainingRuntime"]["spec"]
    assert set(spec) <= RUNTIME
    (job,) = spec["template"]["spec"]["replicatedJobs"]
    # The trainer finds its pod by this label and its container by this name.
    assert job["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    assert list(unknown(job["template"]["spec"], "V1JobSpec")) == []
    pod = job["template"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "node"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert mounted == set(volumes)
    claim = volumes["data"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_every_variable_is_a_setting_of_the_learner() -> None:
    job = documents()["TrainJob"]
    names = [variable["name"] for variable in job["spec"]["trainer"]["env"]]
    settings = {f"HONE_LEARNER_{field.upper()}" for field in LearnerSettings.model_fields}
    assert set(names) <= settings
    values = {
        v["name"].removeprefix("HONE_LEARNER_").lower(): v["value"]
        for v in job["spec"]["trainer"]["env"]
    }
    read = LearnerSettings(**{name: yaml.safe_load(value) for name, value in values.items()})
    assert read.host == "0.0.0.0" and read.port == 50051
