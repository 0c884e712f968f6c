"""The objects that the backend makes, and how they are named and labelled. Pure: no request, no clock."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sandbox.backends.kubernetes.api import Object
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.types import MIB, BoxSpec, Limits, Owner, Template

APP = "hone-sandbox"
PREFIX = "hone.dev"
LABEL_APP = "app.kubernetes.io/name"
LABEL_MANAGER = f"{PREFIX}/manager"
LABEL_INSTANCE = f"{PREFIX}/instance"
LABEL_SANDBOX = f"{PREFIX}/sandbox"
LABEL_TEMPLATE = f"{PREFIX}/template"
LABEL_POOL = f"{PREFIX}/pool"
LABEL_RUN = f"{PREFIX}/run"
LABEL_ROLLOUT = f"{PREFIX}/rollout"
LABEL_PURPOSE = f"{PREFIX}/purpose"
NOTE_SANDBOX = f"{PREFIX}/sandbox-id"
NOTE_ROLLOUT = f"{PREFIX}/rollout-id"
NOTE_RUN = f"{PREFIX}/run-id"
NOTE_DEADLINE = f"{PREFIX}/deadline"

CONTAINER = "sandbox"
WRITABLE_FOLDERS = ("/work", "/root", "/tmp", "/var/tmp")
"""Volumes of the pod; the rest of its file system belongs to root, who runs nothing."""

_AGENT_FOLDER = "/opt/hone"
_AGENT_FILE = "agent.pyz"
_EXTRA_LIFETIME_SECONDS = 60
_FREE_STORAGE_BYTES = 64 * MIB
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """Who makes the objects."""

    instance: str
    """Of the data folder; stays over restarts."""
    name: str
    """Of this process; never used twice. Also the name of its lease."""
    lease_uid: str = ""


def object_name(sandbox_id: str) -> str:
    """Return the name of a sandbox's pod or claim: the same for the same id, and a valid host name."""
    return f"sbx-{hashlib.sha256(sandbox_id.encode()).hexdigest()[:32]}"


def label_value(text: str) -> str:
    """Return a text as a label's value: itself where it can be one, its digest where not."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def template_key(template: Template, limits: Limits, options: KubernetesOptions) -> str:
    """Return what pods of one template and one size have in common."""
    text = repr((template.name, template.image or options.image, limits))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> float | None:
    """Return seconds since the epoch, or None for what is no time."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def lease(manager: Manager, renew_time: float, lease_seconds: float) -> Object:
    """Return the ConfigMap that says that a manager lives; it owns all that the manager makes."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": manager.name, "labels": manager_labels(manager)},
        "data": {"renewTime": timestamp(renew_time), "leaseSeconds": f"{lease_seconds:g}"},
    }


def agent_config(manager: Manager, archive: bytes) -> Object:
    """Return the ConfigMap that carries the agent into pods."""
    digest = hashlib.sha256(archive).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{manager.name}-agent-{digest}",
            "labels": manager_labels(manager),
            "ownerReferences": [owner_reference(manager)],
        },
        "immutable": True,
        "binaryData": {_AGENT_FILE: base64.b64encode(archive).decode()},
    }


def labels(manager: Manager, spec: BoxSpec, key: str) -> dict[str, str]:
    """Return what a sandbox is found by."""
    found = {
        **manager_labels(manager),
        LABEL_SANDBOX: object_name(spec.sandbox_id),
        LABEL_TEMPLATE: key,
        LABEL_POOL: "warm" if spec.owner is None else "taken",
    }
    return found | (owner_labels(spec.owner) if spec.owner is not None else {})


def owner_labels(owner: Owner) -> dict[str, str]:
    """Return whose a sandbox is, as labels."""
    return {
        LABEL_POOL: "taken",
        LABEL_RUN: label_value(owner.run_id),
        LABEL_ROLLOUT: label_value(owner.rollout_id),
        LABEL_PURPOSE: str(owner.purpose),
    }


def annotations(spec: BoxSpec, deadline: float) -> dict[str, str]:
    """Return what people and the clean-up read."""
    found = {NOTE_SANDBOX: spec.sandbox_id, NOTE_DEADLINE: timestamp(deadline)}
    return found | (owner_notes(spec.owner) if spec.owner is not None else {})


def owner_notes(owner: Owner) -> dict[str, str]:
    """Return whose a sandbox is, in full."""
    return {NOTE_ROLLOUT: owner.rollout_id, NOTE_RUN: owner.run_id}


def claim_patch(pod: Object, owner: Owner) -> Object:
    """Return the change that hands a ready pod to its rollout, if nobody changed it since."""
    return {
        "metadata": {
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "labels": owner_labels(owner),
            "annotations": owner_notes(owner),
        }
    }


def pod(
    manager: Manager,
    spec: BoxSpec,
    options: KubernetesOptions,
    *,
    agent_config_name: str,
    token_digest: str,
    deadline: float,
) -> Object:
    """Return the pod of a sandbox."""
    key = template_key(spec.template, spec.limits, options)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object_name(spec.sandbox_id),
            "labels": labels(manager, spec, key),
            "annotations": annotations(spec, deadline),
            "ownerReferences": [owner_reference(manager)],
        },
        "spec": pod_spec(
            spec.template,
            spec.limits,
            options,
            agent_config_name=agent_config_name,
            token_arguments=["--token-sha256", token_digest],
            lifetime_seconds=spec.lifetime_seconds,
        ),
    }


def pod_spec(
    template: Template,
    limits: Limits,
    options: KubernetesOptions,
    *,
    agent_config_name: str,
    token_arguments: list[str],
    lifetime_seconds: float | None,
) -> Object:
    """Return the hardened pod itself, without who it is for."""
    spec: Object = {
        "restartPolicy": "Never",  # a restart is lost state; what is lost must be seen
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},  # there is nobody to ask
        "securityContext": {
            "fsGroup": options.uid,
            "seccompProfile": {"type": "RuntimeDefault"},
            **_pod_user(options),
        },
        "containers": [_container(template, limits, options, token_arguments)],
        "volumes": [
            {"name": "agent", "configMap": {"name": agent_config_name, "defaultMode": 0o444}},
            {"name": "disk", "emptyDir": _disk(limits, options)},
        ],
    }
    if lifetime_seconds is not None:
        spec["activeDeadlineSeconds"] = int(lifetime_seconds) + _EXTRA_LIFETIME_SECONDS
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    if options.host_users is not None:
        spec["hostUsers"] = options.host_users
    if options.node_selector:
        spec["nodeSelector"] = options.node_selector
    if options.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": options.image_pull_secret}]
    return spec


def _container(
    template: Template, limits: Limits, options: KubernetesOptions, token_arguments: list[str]
) -> Object:
    arguments = ["--host", "$(HONE_POD_IP)", "--port", str(options.agent_port), *token_arguments]
    if options.separate_uid:
        arguments += ["--uid", str(options.uid), "--gid", str(options.uid)]
    if options.host_users is False:
        # The kernel counts a user's processes per user namespace: elsewhere pods of one node would share the count.
        arguments += ["--max-processes", str(limits.max_processes)]
    for folder in WRITABLE_FOLDERS:
        arguments += ["--folder", folder]
    return {
        "name": CONTAINER,
        "image": template.image or options.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", f"{_AGENT_FOLDER}/{_AGENT_FILE}"],
        "args": arguments,
        "workingDir": "/work",
        "env": [{"name": "HONE_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "agent", "containerPort": options.agent_port, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": options.agent_port},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 60,
        },
        "securityContext": _container_rights(options),
        "resources": _resources(limits, options),
        "volumeMounts": [
            {"name": "agent", "mountPath": _AGENT_FOLDER, "readOnly": True},
            *(
                {
                    "name": "disk",
                    "mountPath": folder,
                    "subPath": folder.strip("/").replace("/", "-"),
                }
                for folder in WRITABLE_FOLDERS
            ),
        ],
    }


def _pod_user(options: KubernetesOptions) -> Mapping[str, Any]:
    if options.separate_uid:
        return {"runAsUser": 0, "runAsGroup": 0}
    return {"runAsNonRoot": True, "runAsUser": options.uid, "runAsGroup": options.uid}


def _container_rights(options: KubernetesOptions) -> Object:
    capabilities: Object = {"drop": ["ALL"]}
    if options.separate_uid:
        # What the agent needs to run a command as somebody else and to end it; no command has any of it.
        capabilities["add"] = ["SETUID", "SETGID", "KILL"]
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": False,
        "capabilities": capabilities,
    }


def _resources(limits: Limits, options: KubernetesOptions) -> Object:
    storage = _FREE_STORAGE_BYTES + (limits.disk_bytes if options.disk == "node" else 0)
    request = min(options.cpu_request, limits.cpus)
    return {
        "requests": {
            "cpu": f"{max(1, round(request * 1000))}m",
            "memory": str(int(limits.memory_bytes * options.memory_request_share)),
            "ephemeral-storage": str(storage),
        },
        "limits": {
            "cpu": f"{max(1, round(limits.cpus * 1000))}m",
            "memory": str(limits.memory_bytes),
            "ephemeral-storage": str(storage),
        },
    }


def _disk(limits: Limits, options: KubernetesOptions) -> Object:
    volume: Object = {"sizeLimit": str(limits.disk_bytes)}
    if options.disk == "memory":
        volume["medium"] = "Memory"
    return volume


def manager_labels(manager: Manager) -> dict[str, str]:
    """Return whose an object is."""
    return {
        LABEL_APP: APP,
        LABEL_INSTANCE: manager.instance,
        LABEL_MANAGER: manager.name,
    }


def owner_reference(manager: Manager) -> Object:
    """Return what makes an object go when its manager's lease goes."""
    assert manager.lease_uid
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": manager.name,
        "uid": manager.lease_uid,
        "blockOwnerDeletion": False,
    }
