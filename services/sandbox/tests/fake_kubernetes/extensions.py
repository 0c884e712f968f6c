"""Schemas of the agent-sandbox project's kinds, extensions.agents.x-k8s.io/v1beta1, as its types publish them."""

from collections.abc import Mapping
from typing import Any

from fake_kubernetes import rules, schemas
from fake_kubernetes.schemas import Problems

GROUP, VERSION = "extensions.agents.x-k8s.io", "v1beta1"

# Each field's type: a type as the kubernetes models write it, or a nested object. A leading ! marks a required field.
_LIFECYCLE = {
    "shutdownTime": "datetime",
    "ttlSecondsAfterFinished": "int",
    "shutdownPolicy": "str",
}
_POD_METADATA = {"labels": "Dict[str, str]", "annotations": "Dict[str, str]"}
_SPECS: dict[str, dict[str, Any]] = {
    "SandboxClaim": {
        "!warmPoolRef": {"!name": "str"},
        "lifecycle": _LIFECYCLE,
        "additionalPodMetadata": _POD_METADATA,
        "safeToEvict": "str",
        "env": "List[object]",
    },
    "SandboxWarmPool": {
        "replicas": "int",
        "!sandboxTemplateRef": {"!name": "str"},
        "updateStrategy": {"type": "str"},
    },
    "SandboxTemplate": {
        "!podTemplate": {"!spec": "V1PodSpec", "metadata": _POD_METADATA},
        "volumeClaimTemplates": "List[object]",
        "service": "bool",
        "networkPolicy": "object",
        "networkPolicyManagement": "str",
        "envVarsInjectionPolicy": "str",
        "volumeClaimTemplatesPolicy": "str",
        "generatedSecrets": "List[object]",
    },
}
_ENUMS = {
    "spec.lifecycle.shutdownPolicy": ("Delete", "DeleteForeground", "Retain"),
    "spec.networkPolicyManagement": ("Managed", "Unmanaged"),
    "spec.updateStrategy.type": ("Recreate", "OnReplenish"),
}


def check(found: Mapping[str, Any]) -> Problems:
    """Return what is wrong with one of the project's objects."""
    problems = {
        name: "unknown field"
        for name in found
        if name not in ("apiVersion", "kind", "metadata", "spec", "status")
    }
    problems |= schemas.check("V1ObjectMeta", found.get("metadata", {}), "metadata")
    problems |= _check(_SPECS[found["kind"]], found.get("spec"), "spec")
    for path, values in _ENUMS.items():
        value: Any = found
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and value not in values:
            problems[path] = f"unsupported value {value!r}; known are {', '.join(values)}"
    if not problems and found["kind"] == "SandboxTemplate":
        problems |= rules.pod_spec(found["spec"]["podTemplate"]["spec"], "spec.podTemplate.spec")
    return problems


def _check(fields: Mapping[str, Any], value: object, path: str) -> Problems:
    if not isinstance(value, Mapping):
        return {path: "is required" if value is None else f"must be an object, found {value!r}"}
    known = {name.lstrip("!"): kind for name, kind in fields.items()}
    problems: Problems = {}
    for name, item in value.items():
        where = f"{path}.{name}"
        if name not in known:
            problems[where] = "unknown field"
        elif isinstance(known[name], dict):
            problems |= _check(known[name], item, where)
        else:
            problems |= schemas.check_type(known[name], item, where)
    for name in fields:
        if name.startswith("!") and name[1:] not in value:
            problems[f"{path}.{name[1:]}"] = "is required"
    return problems
