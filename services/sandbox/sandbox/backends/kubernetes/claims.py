"""Objects of the agent-sandbox project (extensions.agents.x-k8s.io/v1beta1). Pure.

A SandboxTemplate says what pods look like, a SandboxWarmPool keeps some ready, a SandboxClaim takes one.
"""

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import Kind, Object
from sandbox.backends.kubernetes.objects import Manager
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.backends.verdict import State, Verdict
from sandbox.types import BoxSpec

_GROUP, _VERSION = "extensions.agents.x-k8s.io", "v1beta1"
CLAIMS = Kind(_GROUP, _VERSION, "sandboxclaims")
TEMPLATES = Kind(_GROUP, _VERSION, "sandboxtemplates")
POOLS = Kind(_GROUP, _VERSION, "sandboxwarmpools")

POOL_OF_CLUSTER = "cluster"
"""Value of the pool label of pods that the controller keeps."""

_EXTRA_LIFETIME_SECONDS = 60.0


def template(
    manager: Manager,
    spec: BoxSpec,
    key: str,
    options: KubernetesOptions,
    agent_config_name: str,
) -> Object:
    """Return the SandboxTemplate of our template; its pods take the token of whoever claims them first."""
    pod_labels = {
        **objects.manager_labels(manager),
        objects.LABEL_TEMPLATE: key,
        objects.LABEL_POOL: POOL_OF_CLUSTER,
    }
    return {
        "apiVersion": TEMPLATES.api_version,
        "kind": "SandboxTemplate",
        "metadata": _metadata(manager, key),
        "spec": {
            "podTemplate": {
                "metadata": {"labels": pod_labels},
                "spec": objects.pod_spec(
                    spec.template,
                    spec.template.limits,
                    options,
                    agent_config_name=agent_config_name,
                    token_arguments=["--pin"],
                    lifetime_seconds=None,
                ),
            },
            "networkPolicyManagement": "Unmanaged",  # the namespace has its own, stricter one
            "service": False,
        },
    }


def pool(manager: Manager, spec: BoxSpec, key: str) -> Object:
    """Return the SandboxWarmPool of our template."""
    metadata = _metadata(manager, key)
    return {
        "apiVersion": POOLS.api_version,
        "kind": "SandboxWarmPool",
        "metadata": metadata,
        "spec": {
            "replicas": spec.template.warm,
            "sandboxTemplateRef": {"name": metadata["name"]},
        },
    }


def claim(manager: Manager, spec: BoxSpec, key: str, deadline: float) -> Object:
    """Return the SandboxClaim of a sandbox."""
    labels = objects.labels(manager, spec, key)
    notes = objects.annotations(spec, deadline)
    return {
        "apiVersion": CLAIMS.api_version,
        "kind": "SandboxClaim",
        "metadata": {
            "name": objects.object_name(spec.sandbox_id),
            "labels": labels,
            "annotations": notes,
            "ownerReferences": [objects.owner_reference(manager)],
        },
        "spec": {
            "warmPoolRef": {"name": _metadata(manager, key)["name"]},
            "lifecycle": {
                "shutdownTime": objects.timestamp(deadline + _EXTRA_LIFETIME_SECONDS),
                "shutdownPolicy": "Delete",
            },
            "additionalPodMetadata": {
                "labels": {objects.LABEL_SANDBOX: labels[objects.LABEL_SANDBOX]},
                "annotations": notes,
            },
        },
    }


def judge(found: Object) -> Verdict:
    """Return what a claim's status means."""
    conditions = {each["type"]: each for each in found.get("status", {}).get("conditions") or ()}
    finished = conditions.get("Finished", {})
    if found["metadata"].get("deletionTimestamp"):
        return Verdict(state=State.LOST, text="the claim is being deleted")
    if finished.get("status") == "True":
        return Verdict(state=State.LOST, text=f"the claim's sandbox ended: {finished}")
    if conditions.get("Ready", {}).get("status") == "True" and pod_ip(found):
        return Verdict(state=State.READY)
    return Verdict(state=State.STARTING)


def pod_ip(found: Object) -> str:
    """Return the address of a claim's pod, empty if it has none."""
    addresses = found.get("status", {}).get("sandbox", {}).get("podIPs") or [""]
    return str(addresses[0])


def _metadata(manager: Manager, key: str) -> Object:
    return {
        "name": f"{manager.name}-{key}",
        "labels": objects.manager_labels(manager),
        "ownerReferences": [objects.owner_reference(manager)],
    }
