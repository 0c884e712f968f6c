"""The fake cluster refuses what a real one would; otherwise the other tests would show nothing."""

import copy
import json

import aiohttp
import pytest
from fake_kubernetes import rules
from fake_kubernetes.cluster import NAMESPACE, running_cluster
from fake_kubernetes.selectors import by_labels

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import PODS, ApiStatus, Cluster
from sandbox.backends.kubernetes.objects import Manager
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.types import BoxSpec, Owner, Purpose

MANAGER = Manager(instance="abc", name="hone-abc-1", lease_uid="6f0e-uid")
OPTIONS = KubernetesOptions(
    runtime_class="gvisor",
    host_users=False,
    node_selector={"pool": "sandboxes"},
    image_pull_secret="registry",
)


def made_pod(options=OPTIONS, **changes):
    owner = Owner(rollout_id="r 1", run_id="run", purpose=Purpose.AGENT)
    spec = BoxSpec(sandbox_id="sbx_1", owner=owner, **changes)
    return objects.pod(
        MANAGER, spec, options, agent_config_name="agent", token_digest="0" * 64, deadline=1e9
    )


@pytest.fixture
async def cluster(tmp_path):
    async with running_cluster(tmp_path) as fake:
        # No kubelet is wanted here: pods stay as they were made.
        fake.store.listeners.clear()
        client = await Cluster.connect(fake.kubeconfig, "", NAMESPACE, 5.0)
        yield client
        await client.close()


def changed(path, value):
    """Return the pod with one field changed; a path is written as the server writes it."""
    pod = copy.deepcopy(made_pod())
    *parents, last = path.replace("[0]", ".0").split(".")
    here = pod
    for part in parents:
        here = here[int(part)] if part.isdigit() else here[part]
    here[last] = value
    return pod


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.restartpolicy", "Never"),
        ("spec.restartPolicy", "Sometimes"),
        ("spec.terminationGracePeriodSeconds", "0"),
        ("spec.activeDeadlineSeconds", 0),
        ("spec.automountServiceAccountToken", "false"),
        ("spec.containers[0].image", ""),
        ("spec.containers[0].securityContext.allowPrivilegeEscalation", 1),
        ("spec.containers[0].resources.limits", {"memory": "512MB"}),
        ("spec.containers[0].resources.limits", {"memory": 512}),
        ("spec.containers[0].readinessProbe", {"httpGet": {"path": "/healthz"}}),
        ("spec.volumes", [{"name": "agent"}]),
        ("spec.containers[0].volumeMounts", [{"name": "none", "mountPath": "/x"}]),
        ("metadata.name", "Sbx_1"),
        ("metadata.labels", {"hone.dev/rollout": "with space"}),
        ("metadata.ownerReferences", [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}]),
        ("spec.dnsConfig", {}),
        ("spec.tolerations", [{"tolerationSecond": 3}]),
    ],
)
async def test_a_wrong_field_is_refused_by_its_path(cluster, path, value):
    with pytest.raises(ApiStatus) as caught:
        await cluster.create(PODS, changed(path, value))
    assert caught.value.status == 422
    assert path.split(".")[-1].split("[")[0] in caught.value.message


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("spec.securityContext", {"runAsNonRoot": True, "runAsUser": 1000}, "seccompProfile"),
        ("spec.containers[0].securityContext", {}, "allowPrivilegeEscalation"),
        ("spec.hostNetwork", True, "hostNetwork"),
        (
            "spec.securityContext",
            {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 0},
            "runAsNonRoot",
        ),
    ],
)
async def test_a_weaker_pod_is_refused_by_the_namespace(cluster, path, value, word):
    with pytest.raises(ApiStatus) as caught:
        await cluster.create(PODS, changed(path, value))
    assert caught.value.status == 403
    assert word in caught.value.message


async def test_our_pod_is_accepted_as_it_is(cluster):
    made = await cluster.create(PODS, made_pod())
    spec = made["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["hostUsers"] is False
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["activeDeadlineSeconds"] == 3660
    assert rules.violations_of_restricted(spec) == []
    assert "--max-processes" in spec["containers"][0]["args"]
    assert made["metadata"]["labels"][objects.LABEL_ROLLOUT] != "r 1"
    assert made["metadata"]["annotations"][objects.NOTE_ROLLOUT] == "r 1"


def test_a_separate_user_costs_the_restricted_standard_and_nothing_more():
    pod = made_pod(KubernetesOptions(separate_uid=True))
    found = rules.violations_of_restricted(pod["spec"])
    assert found == ["unrestricted capabilities (add)", "runAsNonRoot != true"]


async def test_a_pod_cannot_be_changed_in_place(cluster):
    made = await cluster.create(PODS, made_pod())
    with pytest.raises(ApiStatus) as caught:
        await cluster.patch(PODS, made["metadata"]["name"], {"spec": {"hostname": "other"}})
    assert caught.value.status == 422


async def test_a_wrong_token_is_refused(tmp_path):
    async with running_cluster(tmp_path) as fake:
        found = json.loads(fake.kubeconfig.read_text())
        address = found["clusters"][0]["cluster"]["server"]
        async with aiohttp.ClientSession() as session:
            url = f"{address}/api/v1/namespaces/{NAMESPACE}/pods"
            response = await session.get(url, ssl=False)
            assert response.status == 401
            assert (await response.json())["kind"] == "Status"


def test_selectors_choose_as_the_server_does():
    found = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    for text, holds in {
        "a=1": True,
        "a==1,b=2": True,
        "a!=1": False,
        "a in (1, 3),b": True,
        "a notin (1)": False,
        "c": False,
        "!c": True,
        "": True,
    }.items():
        assert by_labels(text)(found) is holds, text
