"""What an API server refuses beyond the schemas: names, labels, quantities, references, the pod security standard."""

import re
from collections.abc import Mapping
from typing import Any

from fake_kubernetes.schemas import Problems

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_FACTORS = {
    None: 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
_MAX_CONFIG_BYTES = 1024 * 1024
_RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}

Object = Mapping[str, Any]


def quantity(text: str) -> float:
    """Return a quantity as a number.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    return float(match[1]) * _FACTORS[match[2]]


def metadata(found: Object) -> Problems:
    """Check names, labels, annotations and owners of any object."""
    problems: Problems = {}
    meta = found.get("metadata", {})
    name = meta.get("name", "")
    if not name or len(name) > 253 or not _DNS_NAME.fullmatch(name):
        problems["metadata.name"] = f"{name!r} is no lowercase RFC 1123 subdomain"
    for key, value in (meta.get("labels") or {}).items():
        if not _is_key(key):
            problems[f"metadata.labels.{key}"] = "is no qualified name"
        if value and not _LABEL_NAME.fullmatch(value):
            problems[f"metadata.labels.{key}"] = f"{value!r} is no label value"
    for key in meta.get("annotations") or {}:
        if not _is_key(key):
            problems[f"metadata.annotations.{key}"] = "is no qualified name"
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                problems[f"metadata.ownerReferences[{index}].{field}"] = "must not be empty"
    return problems


def config_map(found: Object) -> Problems:
    """Check keys and size of a ConfigMap."""
    problems: Problems = {}
    size = 0
    for field in ("data", "binaryData"):
        for key, value in (found.get(field) or {}).items():
            size += len(value) * (3 / 4 if field == "binaryData" else 1)
            if not _CONFIG_KEY.fullmatch(key):
                problems[f"{field}.{key}"] = "is no valid key"
    if size > _MAX_CONFIG_BYTES:
        problems["data"] = f"{size:.0f} bytes; must have at most {_MAX_CONFIG_BYTES}"
    return problems


def pod_spec(spec: Object, path: str = "spec") -> Problems:
    """Check a pod's specification."""
    problems: Problems = {}
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        problems[f"{path}.restartPolicy"] = f"unsupported value {spec.get('restartPolicy')!r}"
    if spec.get("activeDeadlineSeconds", 1) < 1:
        problems[f"{path}.activeDeadlineSeconds"] = "must be at least 1"
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        problems[f"{path}.terminationGracePeriodSeconds"] = "must not be negative"
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        problems[f"{path}.dnsConfig.nameservers"] = "dnsPolicy None needs a name server"
    hostname = spec.get("hostname", "x")
    if not _DNS_LABEL.fullmatch(hostname):
        problems[f"{path}.hostname"] = f"{hostname!r} is no DNS label"
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    for index, volume in enumerate(spec.get("volumes") or ()):
        if len(set(volume) - {"name"}) != 1:
            problems[f"{path}.volumes[{index}]"] = "must have exactly one source"
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        if limit is not None:
            problems |= _quantities({"sizeLimit": limit}, f"{path}.volumes[{index}].emptyDir")
    if len(set(volumes)) != len(volumes):
        problems[f"{path}.volumes"] = "names must differ"
    if not spec.get("containers"):
        problems[f"{path}.containers"] = "is required"
    for index, container in enumerate(spec.get("containers") or ()):
        problems |= _container(container, set(volumes), f"{path}.containers[{index}]")
    return problems


def violations_of_restricted(spec: Object) -> list[str]:
    """Return what the pod security standard `restricted` forbids of a pod; each text names the field."""
    found = []
    pod_context = spec.get("securityContext") or {}
    for volume in spec.get("volumes") or ():
        sources = set(volume) - {"name"}
        if not sources <= _RESTRICTED_VOLUMES:
            found.append(f"restricted volume types ({', '.join(sources)})")
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            found.append(f"host namespaces ({field}=true)")
    for container in spec.get("containers") or ():
        context = container.get("securityContext") or {}
        merged = {**pod_context, **context}
        capabilities = context.get("capabilities") or {}
        if context.get("allowPrivilegeEscalation") is not False:
            found.append("allowPrivilegeEscalation != false")
        if "ALL" not in (capabilities.get("drop") or ()):
            found.append('unrestricted capabilities (must drop "ALL")')
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            found.append("unrestricted capabilities (add)")
        if context.get("privileged"):
            found.append("privileged")
        if merged.get("runAsNonRoot") is not True or merged.get("runAsUser") == 0:
            found.append("runAsNonRoot != true")
        if (merged.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append("seccompProfile")
    return found


def _container(container: Object, volumes: set[str], path: str) -> Problems:
    problems: Problems = {}
    if not _DNS_LABEL.fullmatch(container.get("name", "")):
        problems[f"{path}.name"] = f"{container.get('name')!r} is no DNS label"
    if not container.get("image"):
        problems[f"{path}.image"] = "is required"
    if container.get("imagePullPolicy", "Always") not in ("Always", "IfNotPresent", "Never"):
        problems[f"{path}.imagePullPolicy"] = "unsupported value"
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    problems |= _quantities(limits, f"{path}.resources.limits")
    problems |= _quantities(requests, f"{path}.resources.requests")
    if not problems:
        for name, amount in requests.items():
            if name in limits and quantity(amount) > quantity(limits[name]):
                problems[f"{path}.resources.requests.{name}"] = "must be at most the limit"
    places = [mount.get("mountPath") for mount in container.get("volumeMounts") or ()]
    if len(set(places)) != len(places):
        problems[f"{path}.volumeMounts"] = "mountPath must differ"
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            problems[f"{path}.volumeMounts[{index}].name"] = f"no volume {mount.get('name')!r}"
        sub_path = mount.get("subPath", "x")
        if sub_path.startswith("/") or ".." in sub_path.split("/"):
            problems[f"{path}.volumeMounts[{index}].subPath"] = "must be relative, without .."
    for index, port in enumerate(container.get("ports") or ()):
        if not 1 <= port.get("containerPort", 0) <= 65535:
            problems[f"{path}.ports[{index}].containerPort"] = "must be 1 to 65535"
    return problems


def _quantities(found: Mapping[str, str], path: str) -> Problems:
    problems: Problems = {}
    for name, text in found.items():
        try:
            quantity(text)
        except ValueError as error:
            problems[f"{path}.{name}"] = str(error)
    return problems


def _is_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(_LABEL_NAME.fullmatch(name)) and (not slash or bool(_DNS_NAME.fullmatch(prefix)))
