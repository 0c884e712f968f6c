"""What is left behind by whom, and who clears it."""

import asyncio

import kubernetes_rows
import pytest
from fake_kubernetes.cluster import NAMESPACE
from fake_kubernetes.faults import Fault

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import CONFIG_MAPS
from servicekit.errors import FailedPrecondition


@pytest.fixture
def killed_manager(rig):
    """Let a manager of its own process make sandboxes, and kill it."""

    async def leave(instance: str, count: int) -> None:
        await kubernetes_rows.leave(rig.cluster, rig.folder / instance, count, rig.clock.now)

    return leave


def managers(rig) -> set[str]:
    return {pod["metadata"]["labels"][objects.LABEL_MANAGER] for pod in rig.cluster.pods()}


async def test_a_killed_manager_s_pods_are_cleared_by_the_next_at_once(rig, killed_manager):
    await killed_manager("one", 3)
    assert len(rig.cluster.pods()) == 3
    backend = rig.backend("one")
    await backend.start()
    shell = await rig.make(backend)
    assert await backend.reap(frozenset({shell.box.sandbox_id})) == 3
    assert [pod["metadata"]["name"] for pod in rig.cluster.pods()] == [shell.box.name]
    assert (await shell.sh("echo untouched")).stdout == b"untouched\n"
    leases = [each for each in rig.cluster.config_maps() if "renewTime" in each.get("data", {})]
    assert len(leases) == 1
    await shell.box.destroy()
    await rig.cluster.until(lambda: not rig.cluster.kubelet.container_count, "no container")
    assert backend.live_count() == 0


async def test_a_dead_manager_elsewhere_is_believed_alive_until_its_lease_is_old(
    rig, killed_manager
):
    await killed_manager("elsewhere", 2)
    backend = rig.backend("one")
    await backend.start()
    assert await backend.reap(frozenset()) == 0
    rig.clock.now += 59.0
    assert await backend.reap(frozenset()) == 0
    rig.clock.now += 10.0
    assert await backend.reap(frozenset()) == 2
    assert rig.cluster.pods() == []
    names = {each["metadata"]["name"] for each in rig.cluster.config_maps()}
    assert len({name.split("-agent-")[0] for name in names}) == 1


async def test_a_living_manager_s_pods_are_left_alone(rig, backend):
    other = rig.backend("two")
    await other.start()
    mine, theirs = await rig.make(backend), await rig.make(other)
    rig.clock.now += 50.0
    assert await backend.reap(frozenset({mine.box.sandbox_id})) == 0
    assert (await theirs.sh("echo alive")).stdout == b"alive\n"


async def test_a_manager_without_a_lease_is_dead(rig, backend):
    other = rig.backend("two")
    await other.start()
    await rig.make(other)
    (manager,) = managers(rig)
    rig.cluster.store.delete("configmaps", NAMESPACE, manager, collect=False)
    assert await backend.reap(frozenset()) == 1
    assert rig.cluster.pods() == []


async def test_a_deleted_lease_takes_its_pods_along(rig, backend):
    shell = await rig.make(backend)
    (manager,) = managers(rig)
    rig.cluster.store.delete("configmaps", NAMESPACE, manager)
    assert rig.cluster.pods() == []
    await rig.cluster.until(lambda: rig.lost == [shell.box.sandbox_id], "the box is lost")


async def test_a_deleted_lease_is_made_again(rig):
    backend = rig.backend(lease_seconds=3.0)
    await backend.start()
    (manager,) = {
        each["metadata"]["labels"][objects.LABEL_MANAGER] for each in rig.cluster.config_maps()
    }
    rig.cluster.store.delete("configmaps", NAMESPACE, manager)
    await rig.cluster.until(
        lambda: rig.cluster.store.get("configmaps", NAMESPACE, manager), "the lease is back"
    )
    # What it owned went with it, and is back too: pods carry the agent again.
    await rig.cluster.until(lambda: len(rig.cluster.config_maps()) == 2, "the agent is back")
    assert (await (await rig.make(backend)).sh("echo up")).stdout == b"up\n"


async def test_an_agent_that_the_garbage_collector_has_not_yet_taken_is_kept(rig):
    backend = rig.backend(lease_seconds=3.0)
    await backend.start()
    (manager,) = {
        each["metadata"]["labels"][objects.LABEL_MANAGER] for each in rig.cluster.config_maps()
    }
    rig.cluster.store.delete("configmaps", NAMESPACE, manager, collect=False)

    def all_belong_to_the_lease() -> bool:
        lease = rig.cluster.store.get("configmaps", NAMESPACE, manager)
        owners = [
            owner["uid"]
            for each in rig.cluster.config_maps()
            for owner in each["metadata"].get("ownerReferences", ())
        ]
        return lease is not None and owners == [lease["metadata"]["uid"]]

    await rig.cluster.until(all_belong_to_the_lease, "the agent belongs to the new lease")


async def test_objects_of_nobody_are_left_alone(rig, backend):
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "notes", "labels": {objects.LABEL_APP: objects.APP}},
    }
    await backend._parts.cluster.create(CONFIG_MAPS, body)
    await backend.reap(frozenset())
    assert rig.cluster.store.get("configmaps", NAMESPACE, "notes")


async def test_pods_that_are_gone_are_not_remembered(rig, backend):
    first = await rig.make(backend)
    assert await backend.reap(frozenset()) == 0
    assert backend._parts.clearing._first_seen.keys() == {first.box.name}
    await first.box.destroy()
    await backend.reap(frozenset())
    assert not backend._parts.clearing._first_seen


async def test_the_lease_is_renewed(rig):
    backend = rig.backend(lease_seconds=3.0)
    await backend.start()
    (lease,) = [each for each in rig.cluster.config_maps() if "renewTime" in each.get("data", {})]
    name, first = lease["metadata"]["name"], lease["data"]["renewTime"]
    rig.clock.now += 100.0
    await rig.cluster.until(
        lambda: rig.cluster.store.get("configmaps", NAMESPACE, name)["data"]["renewTime"] != first,
        "it is renewed",
    )


async def test_a_pod_past_its_deadline_goes_whoever_s_it_is(rig, backend):
    other = rig.backend("two", lease_seconds=100_000.0)
    await other.start()
    await rig.make(other, lifetime_seconds=100.0)
    rig.clock.now += 150.0
    assert await backend.reap(frozenset()) == 0
    rig.clock.now += 20.0
    assert await backend.reap(frozenset()) == 1
    assert rig.cluster.pods() == []


async def test_a_pod_that_nobody_knows_goes_after_a_while_and_a_failed_one_at_once(rig, backend):
    unknown, failed = await rig.make(backend), await rig.make(backend)
    await rig.cluster.kubelet.fail(failed.box.name)
    assert await backend.reap(frozenset()) == 1
    rig.clock.now += 61.0
    assert await backend.reap(frozenset({unknown.box.sandbox_id})) == 0
    assert await backend.reap(frozenset()) == 0
    rig.clock.now += 61.0
    assert await backend.reap(frozenset()) == 1
    assert rig.cluster.pods() == []


async def test_clearing_that_cannot_reach_the_cluster_waits_for_the_next_round(rig, backend):
    rig.cluster.plant(Fault("GET", "pods", status=500))
    assert await backend.reap(frozenset()) == 0


async def test_the_end_of_a_manager_leaves_nothing(rig):
    backend = rig.backend()
    await backend.start()
    await asyncio.gather(*(rig.make(backend) for _ in range(3)))
    await backend.close()
    await rig.cluster.until(lambda: not rig.cluster.kubelet.container_count, "no container")
    assert rig.cluster.pods() == rig.cluster.config_maps() == []


async def test_the_end_of_a_manager_does_not_wait_for_ever(rig):
    backend = rig.backend(request_seconds=0.5)
    await backend.start()
    await asyncio.gather(*(rig.make(backend) for _ in range(3)))
    rig.cluster.plant(Fault("DELETE", "pods", times=10_000, status=500))
    async with asyncio.timeout(10):
        await backend.close()
    assert rig.cluster.config_maps() == []  # the lease went, and with it what it owned
    assert rig.cluster.pods() == []


async def test_two_managers_do_not_work_with_one_folder(rig, backend):
    with pytest.raises(FailedPrecondition, match="another sandbox manager"):
        rig.backend("one").lock()


async def test_a_pod_ends_by_its_own_deadline_without_any_manager(rig, backend):
    shell = await rig.make(backend, lifetime_seconds=30.0)
    (pod,) = rig.cluster.pods()
    assert pod["spec"]["activeDeadlineSeconds"] == 90
    assert pod["metadata"]["annotations"][objects.NOTE_DEADLINE] == objects.timestamp(
        rig.clock.now + 30.0
    )
    assert shell.box.name == pod["metadata"]["name"]
