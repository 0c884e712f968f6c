"""Each way in which the cluster can fail a creation or a sandbox, and what the caller is told."""

import asyncio

import pytest
from fake_kubernetes.faults import Fault
from fake_kubernetes.kubelet import Plan

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import PODS, ApiStatus, Cluster
from sandbox.backends.protocol import BoxLost
from sandbox.types import Owner, Purpose, Termination
from servicekit.errors import FailedPrecondition, ResourceExhausted, Unavailable


async def nothing_left(rig, backend):
    await rig.cluster.until(
        lambda: not rig.cluster.pods() and not rig.cluster.kubelet.container_count, "no pods"
    )
    assert backend.live_count() == 0


async def test_429_is_waited_out_as_long_as_it_says(rig, backend):
    fault = rig.cluster.plant(Fault("POST", "pods", times=2, status=429, retry_after="1"))
    begun = asyncio.get_running_loop().time()
    shell = await rig.make(backend)
    assert asyncio.get_running_loop().time() - begun >= 2.0
    assert fault.hits == 2
    assert (await shell.sh("echo up")).stdout == b"up\n"


async def test_429_for_longer_than_there_is_time_is_told_at_once(rig, backend):
    rig.cluster.plant(Fault("POST", "pods", times=99, status=429, retry_after="120"))
    with pytest.raises(ResourceExhausted) as caught:
        await rig.make(backend)
    assert caught.value.reason == "CLUSTER_BUSY"
    assert caught.value.retryable
    assert caught.value.retry_after_seconds == 120.0
    await nothing_left(rig, backend)


async def test_a_full_quota_is_no_missing_right(rig, backend):
    rig.cluster.api.max_pods = 0
    with pytest.raises(ResourceExhausted) as caught:
        await rig.make(backend)
    assert caught.value.reason == "QUOTA_EXCEEDED"
    assert "exceeded quota" in caught.value.message
    rig.cluster.api.max_pods = 1
    assert (await (await rig.make(backend)).sh("echo up")).stdout == b"up\n"


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_a_refusal_is_not_retried(rig, backend, status):
    fault = rig.cluster.plant(
        Fault("POST", "pods", times=9, status=status, reason="Forbidden", message="no right")
    )
    with pytest.raises(FailedPrecondition) as caught:
        await rig.make(backend)
    assert caught.value.reason == "CLUSTER_REFUSES"
    assert not caught.value.retryable
    assert caught.value.attributable == "infra"
    assert fault.hits == 1


async def test_another_network_than_none_is_refused(rig, backend):
    with pytest.raises(FailedPrecondition, match="network_profile 'open'"):
        await rig.make(backend, network_profile="open")
    assert rig.cluster.pods() == []


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "sandboxes"'),
        (403, "Forbidden", "pods is forbidden: status unknown for quota: sandboxes"),
    ],
)
async def test_a_quota_that_is_being_counted_is_no_refusal(rig, backend, status, reason, message):
    fault = rig.cluster.plant(
        Fault("POST", "pods", times=2, status=status, reason=reason, message=message)
    )
    await rig.make(backend)
    assert fault.hits == 2
    assert len(rig.cluster.pods()) == 1


async def test_5xx_is_retried_under_the_same_name(rig, backend):
    fault = rig.cluster.plant(Fault("POST", "pods", times=3, status=503))
    await rig.make(backend)
    assert fault.hits == 3
    assert len(rig.cluster.pods()) == 1


async def test_5xx_to_the_end_is_unavailable(rig):
    backend = rig.backend(create_seconds=1.0)
    await backend.start()
    rig.cluster.plant(Fault("POST", "pods", times=999, status=500))
    with pytest.raises(Unavailable) as caught:
        await rig.make(backend)
    assert caught.value.reason == "CLUSTER_UNREACHABLE"
    assert caught.value.retryable


async def test_a_lost_reply_is_found_out_and_the_pod_adopted(rig, backend):
    fault = rig.cluster.plant(Fault("POST", "pods", lose=True))
    shell = await rig.make(backend)
    assert fault.hits == 1
    posts = [path for method, path in rig.cluster.api.requests if method == "POST"]
    assert sum(path.endswith("/pods") for path in posts) == 2
    assert len(rig.cluster.pods()) == 1
    assert (await shell.sh("echo ours")).stdout == b"ours\n"


async def test_a_dropped_connection_is_tried_again(rig, backend):
    fault = rig.cluster.plant(Fault("POST", "pods", times=2, drop=True))
    await rig.make(backend)
    assert fault.hits == 2


async def test_a_pod_of_another_manager_is_not_adopted(rig, backend):
    spec = rig.spec()
    other = rig.backend("two")
    await other.start()
    theirs = await other.create(spec, rig.lost.append)
    with pytest.raises(Unavailable) as caught:
        await backend.create(spec, rig.lost.append)
    assert caught.value.reason == "NAME_TAKEN"
    await theirs.destroy()


async def test_a_late_success_is_destroyed(rig):
    backend = rig.backend(request_seconds=0.3, create_seconds=1.0)
    await backend.start()
    late = asyncio.Event()
    fault = rig.cluster.plant(Fault("POST", "pods", times=99, late=late))
    with pytest.raises(Unavailable):
        await rig.make(backend)
    assert fault.hits >= 1
    assert rig.cluster.pods() == []
    late.set()
    deleted = [p for m, p in rig.cluster.api.requests if m == "DELETE"]
    await rig.cluster.until(
        lambda: len([p for m, p in rig.cluster.api.requests if m == "DELETE"]) > len(deleted),
        "the late pod is deleted",
    )
    await nothing_left(rig, backend)


async def test_a_pod_that_never_starts_is_given_up_and_deleted(rig):
    backend = rig.backend(create_seconds=0.5)
    await backend.start()
    rig.cluster.kubelet.plans.append(Plan("pending"))
    with pytest.raises(Unavailable) as caught:
        await rig.make(backend)
    assert caught.value.reason == "PROVISION_TIMEOUT"
    await nothing_left(rig, backend)


async def test_a_cancelled_creation_leaves_nothing(rig, backend):
    rig.cluster.kubelet.plans.append(Plan("pending"))
    task = asyncio.ensure_future(rig.make(backend))
    await rig.cluster.until(rig.cluster.pods, "the pod is there")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(rig, backend)


async def test_a_pod_without_a_node_is_no_room(rig, backend):
    rig.cluster.kubelet.plans.append(Plan("unschedulable"))
    with pytest.raises(ResourceExhausted) as caught:
        await rig.make(backend)
    assert caught.value.reason == "UNSCHEDULABLE"
    assert "Insufficient memory" in caught.value.message
    await nothing_left(rig, backend)


async def test_a_node_that_comes_in_time_is_waited_for(rig):
    backend = rig.backend(unschedulable_seconds=10.0)
    await backend.start()
    rig.cluster.kubelet.plans.append(Plan("unschedulable"))
    spec = rig.spec()
    task = asyncio.ensure_future(backend.create(spec, rig.lost.append))
    name = objects.object_name(spec.sandbox_id)

    def waits() -> bool:
        return any(pod["status"].get("conditions") for pod in rig.cluster.pods() if "status" in pod)

    await rig.cluster.until(waits, "the pod waits for a node")
    rig.cluster.kubelet.schedule(name)
    assert (await task).name == name


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ('ErrImagePull: failed to resolve "python:none": not found', FailedPrecondition, "UNKNOWN"),
        ("InvalidImageName: couldn't parse image name", FailedPrecondition, "UNKNOWN"),
        ("ImagePullBackOff: dial tcp: i/o timeout", Unavailable, "PULL"),
    ],
)
async def test_an_image_that_cannot_be_had(rig, backend, text, kind, reason):
    rig.cluster.kubelet.plans.append(Plan("image", text))
    with pytest.raises(kind) as caught:
        await rig.make(backend)
    assert caught.value.reason == f"IMAGE_{reason}"
    assert caught.value.attributable == "infra"
    await nothing_left(rig, backend)


async def test_a_pod_that_fails_at_start_is_our_fault(rig, backend):
    rig.cluster.kubelet.plans.append(Plan("fail"))
    with pytest.raises(Unavailable) as caught:
        await rig.make(backend)
    assert caught.value.reason == "POD_FAILED"
    await nothing_left(rig, backend)


async def _started(shell) -> asyncio.Task:
    """Begin a command that says something and goes on."""
    seen = asyncio.Event()
    task = asyncio.ensure_future(shell.sh("echo begun; exec sleep 60", emit=lambda _: seen.set()))
    await asyncio.wait_for(seen.wait(), 10)
    return task


async def test_memory_that_ran_out_is_the_workload_s_doing(rig, shell):
    running = asyncio.ensure_future(shell.sh("echo partial; touch /work/now; exec sleep 60"))
    await _until_file(shell, "/work/now")
    await rig.cluster.kubelet.out_of_memory(shell.box.name)
    outcome = await running
    assert outcome.termination is Termination.OOM_KILLED
    assert outcome.stdout == b"partial\n"
    after = await shell.sh("echo again")
    assert after.termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD
    with pytest.raises(FailedPrecondition) as caught:
        await shell.box.read_file("/work/now", 0, 0)
    assert caught.value.attributable == "workload"
    assert rig.lost == []


@pytest.mark.parametrize(
    "message",
    [
        'Usage of EmptyDir volume "disk" exceeds the limit "16Mi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 64Mi. ",
        'Container sandbox exceeded its local ephemeral storage limit "64Mi". ',
    ],
)
async def test_an_eviction_for_its_own_disk_is_the_workload_s_doing(rig, shell, message):
    running = await _started(shell)
    await rig.cluster.kubelet.evict(shell.box.name, message)
    outcome = await running
    assert outcome.termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD
    assert rig.lost == []


async def test_an_eviction_because_the_node_is_short_is_ours(rig, shell):
    running = await _started(shell)
    await rig.cluster.kubelet.evict(
        shell.box.name,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1, available: 0. "
        "Container sandbox was using 2Gi, request is 64Mi, has larger consumption of ephemeral-storage.",
    )
    with pytest.raises(BoxLost, match="low on resource"):
        await running
    assert rig.lost == [shell.box.sandbox_id]


async def test_a_lost_node_is_ours_and_no_call_hangs(rig, shell):
    running = await _started(shell)
    rig.cluster.kubelet.lose_node(shell.box.name)
    with pytest.raises(BoxLost, match="NodeStatusUnknown"):
        await asyncio.wait_for(running, 5)
    assert rig.lost == [shell.box.sandbox_id]
    with pytest.raises(BoxLost):
        await shell.sh("echo again")


async def test_a_preempted_pod_is_ours(rig, shell):
    running = await _started(shell)
    rig.cluster.kubelet.preempt(shell.box.name)
    with pytest.raises(BoxLost, match="Preemption"):
        await running


async def test_an_agent_that_ends_is_ours(rig, shell):
    running = await _started(shell)
    await rig.cluster.kubelet.fail(shell.box.name)
    with pytest.raises(BoxLost):
        await running
    assert rig.lost == [shell.box.sandbox_id]


async def test_a_pod_deleted_from_outside_is_ours(rig, shell):
    running = await _started(shell)
    rig.cluster.store.delete("pods", "hone-sandboxes", shell.box.name)
    with pytest.raises(BoxLost, match="deleted from outside"):
        await running
    assert rig.lost == [shell.box.sandbox_id]


async def test_destroying_is_repeated_until_it_is_certain(rig, backend, shell):
    lost = rig.cluster.plant(Fault("DELETE", "pods", lose=True))
    busy = rig.cluster.plant(Fault("DELETE", "pods", times=2, status=500))
    await asyncio.gather(shell.box.destroy(), shell.box.destroy())
    await shell.box.destroy()
    assert lost.hits + busy.hits == 3
    assert rig.lost == []
    await nothing_left(rig, backend)


async def test_a_destroyed_box_ends_what_runs_in_it(rig, shell):
    running = await _started(shell)
    await shell.box.destroy()
    with pytest.raises(BoxLost, match="destroyed"):
        await running
    assert rig.lost == []


async def test_a_claim_labels_the_pod_with_its_owner(rig, backend):
    shell = await rig.make(backend, owner=None)
    (pod,) = rig.cluster.pods()
    assert pod["metadata"]["labels"][objects.LABEL_POOL] == "warm"
    owner = Owner(rollout_id="r-1", run_id="run 1", purpose=Purpose.GRADE)
    await shell.box.claim(owner)
    (pod,) = rig.cluster.pods()
    labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert labels[objects.LABEL_POOL] == "taken"
    assert labels[objects.LABEL_ROLLOUT] == "r-1"
    assert labels[objects.LABEL_RUN] == objects.label_value("run 1") != "run 1"
    assert notes[objects.NOTE_RUN] == "run 1"


async def test_a_claim_of_a_pod_that_somebody_changed_is_refused(rig, backend):
    shell = await rig.make(backend, owner=None)
    rig.cluster.plant(Fault("PATCH", "pods", status=409, reason="Conflict"))
    with pytest.raises(Unavailable) as caught:
        await shell.box.claim(Owner(rollout_id="r", run_id="x", purpose=Purpose.AGENT))
    assert caught.value.reason == "BOX_GONE"


async def test_a_claim_is_based_on_the_version_that_was_seen(rig, backend):
    shell = await rig.make(backend, owner=None)
    rig.cluster.store.end_watches()
    version = rig.cluster.pods()[0]["metadata"]["resourceVersion"]
    await shell.box.claim(Owner(rollout_id="r", run_id="x", purpose=Purpose.AGENT))
    pod = rig.cluster.pods()[0]
    stale = objects.claim_patch(
        {"metadata": {"resourceVersion": version}},
        Owner(rollout_id="q", run_id="x", purpose=Purpose.AGENT),
    )
    cluster = await Cluster.connect(rig.cluster.kubeconfig, "", "hone-sandboxes", 5.0)
    with pytest.raises(ApiStatus) as caught:
        await cluster.patch(PODS, pod["metadata"]["name"], stale)
    await cluster.close()
    assert caught.value.status == 409
    assert rig.cluster.pods()[0]["metadata"]["labels"][objects.LABEL_ROLLOUT] == "r"


async def _until_file(shell, path: str) -> None:
    async with asyncio.timeout(10):
        while (await shell.run("test", "-e", path)).exit_code:
            await asyncio.sleep(0.01)
