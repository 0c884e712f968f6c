"""The example manifests: they fit the published schemas, and grant what the backend asks for and nothing more."""

from pathlib import Path

import pytest
import yaml
from fake_kubernetes import rules, schemas
from fake_kubernetes.cluster import NAMESPACE, running_cluster

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.claims import CLAIMS, POOLS, TEMPLATES
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.settings import SandboxSettings
from sandbox.types import Owner, Purpose, Template

from .conftest import LIMITS, Clock, Rig

FOLDER = Path(__file__).parents[4] / "deploy" / "kubernetes" / "sandbox"


def documents():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    found = []
    for name in kustomization["resources"]:
        found += [d for d in yaml.safe_load_all((FOLDER / name).read_text()) if d]
    return found


def one(kind):
    (found,) = [each for each in documents() if each["kind"] == kind]
    return found


@pytest.mark.parametrize("found", documents(), ids=lambda found: found["kind"])
def test_every_manifest_fits_its_schema(found):
    assert schemas.check(f"V1{found['kind']}", found) == {}
    assert rules.metadata(found) == {}
    assert found["metadata"].get("namespace") in (None, "hone", NAMESPACE)


def test_every_file_is_applied():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files


def test_the_service_s_own_pod_is_hardened():
    spec = one("Deployment")["spec"]["template"]["spec"]
    assert rules.violations_of_restricted(spec) == []
    assert rules.pod_spec({**spec, "restartPolicy": "Always"}) == {}


def test_the_deployment_s_environment_is_what_the_settings_read(monkeypatch):
    (container,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = SandboxSettings()
    assert settings.backend == "kubernetes"
    assert settings.kubernetes.namespace == NAMESPACE == one("Namespace")["metadata"]["name"]
    assert settings.provision_seconds == 60.0
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port}
    known = {f"HONE_SANDBOX_{name.upper()}" for name in SandboxSettings.model_fields}
    nested = {f"HONE_SANDBOX_KUBERNETES__{name.upper()}" for name in KubernetesOptions.model_fields}
    assert {variable["name"] for variable in container["env"]} <= known | nested


def test_the_network_policy_lets_the_service_reach_the_agent_and_nobody_else():
    spec = one("NetworkPolicy")["spec"]
    assert spec["podSelector"] == {}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    (rule,) = spec["ingress"]
    assert [port["port"] for port in rule["ports"]] == [KubernetesOptions().agent_port]
    (peer,) = rule["from"]
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_a_sandbox_of_the_largest_size_fits_the_limit_range():
    policy = one("LimitRange")["spec"]["limits"][0]["max"]
    assert rules.quantity(policy["memory"]) == 8 * 2**30
    resources = objects._resources(LIMITS, KubernetesOptions())
    for name, most in policy.items():
        assert rules.quantity(resources["limits"][name]) <= rules.quantity(most)


async def test_the_role_grants_what_is_asked_for_and_nothing_more(tmp_path, containers):
    async with running_cluster(tmp_path, has_extensions=True) as cluster:
        rig = Rig(cluster, tmp_path, Clock())
        await _use_everything(rig)
        asked = {_verb(method, path, query) for method, path, query in cluster.api.asked}
    granted = {
        (group, resource, verb)
        for rule in one("Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked - {None} <= granted
    # Asked only after a lost reply; see test_failures.py.
    rare = {("", "configmaps", "get"), ("", "pods", "get"), (CLAIMS.group, CLAIMS.plural, "get")}
    assert granted - asked <= rare


async def _use_everything(rig):
    warm = Template(name="warm", limits=LIMITS, warm=1)
    first = rig.backend("one")
    await first.start()
    made = await rig.make(first, owner=None)
    await made.box.claim(Owner(rollout_id="r", run_id="x", purpose=Purpose.AGENT))
    await made.box.destroy()
    await rig.make(first, template=warm)
    (manager,) = {
        each["metadata"]["labels"][objects.LABEL_MANAGER] for each in rig.cluster.config_maps()
    }
    second = rig.backend("two", lease_seconds=3.0)
    await second.start()
    lease = rig.cluster.store.get("configmaps", NAMESPACE, manager)
    assert lease is not None
    rig.clock.now += 1000.0
    own = {c["metadata"]["name"]: c for c in rig.cluster.config_maps() if "data" in c}
    before = {name: found["data"]["renewTime"] for name, found in own.items()}

    def renewed() -> bool:
        found = [c for c in rig.cluster.config_maps() if "data" in c]
        return any(c["data"]["renewTime"] != before[c["metadata"]["name"]] for c in found)

    await rig.cluster.until(renewed, "the lease is renewed")
    await second.reap(frozenset())
    for kind in (CLAIMS, POOLS, TEMPLATES):
        assert rig.cluster.store.all(kind.plural) == []
    await second.close()
    first._boxes.clear()  # its objects are gone already
    await first.close()


def _verb(method: str, path: str, query: str):
    parts = path.strip("/").split("/")
    if "namespaces" not in parts:
        return None  # discovery, which everybody may ask
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[parts.index("namespaces") + 2 :]
    verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch"}.get(method)
    if verb is None:
        verb = "get" if len(rest) == 2 else "watch" if "watch" in query else "list"
    return group, rest[0], verb
