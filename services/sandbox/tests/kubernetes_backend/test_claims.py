"""Sandboxes out of pools that the agent-sandbox controller keeps, where its kinds are installed."""

import asyncio

import pytest
from fake_kubernetes.cluster import NAMESPACE, running_cluster
from fake_kubernetes.faults import Fault
from fake_kubernetes.kubelet import Plan

from sandbox.backends.agent_client import AgentClient, AgentLost
from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.makers import ClaimMaker
from sandbox.types import Feature, Limits, Template
from servicekit.errors import FailedPrecondition, Unavailable

from .conftest import LIMITS, Clock, Rig

WARM = Template(name="warm", limits=LIMITS, warm=2)


@pytest.fixture
async def claimed(tmp_path, containers):
    async with running_cluster(tmp_path, has_extensions=True) as cluster:
        made = Rig(cluster, tmp_path, Clock())
        yield made
        for backend in made.backends:
            await backend.close()


async def test_a_sandbox_is_claimed_from_the_pool_of_its_template(claimed):
    backend = claimed.backend()
    info = await backend.start()
    assert Feature.WARM_POOL not in info.features
    shell = await claimed.make(backend, template=WARM)
    assert (await shell.sh("echo claimed")).stdout == b"claimed\n"
    store = claimed.cluster.store
    (pool,) = store.all("sandboxwarmpools")
    assert pool["spec"]["replicas"] == 2
    (claim,) = store.all("sandboxclaims")
    assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    assert claim["metadata"]["annotations"][objects.NOTE_SANDBOX] == shell.box.sandbox_id
    assert backend.live_count() == 1
    await claimed.cluster.until(lambda: len(claimed.cluster.pods()) == 3, "the pool is refilled")
    await shell.box.destroy()
    assert store.all("sandboxclaims") == []
    assert backend.live_count() == 0
    await claimed.cluster.until(lambda: len(claimed.cluster.pods()) == 2, "the pod went along")


async def test_each_claim_has_a_pod_of_its_own(claimed):
    backend = claimed.backend()
    await backend.start()
    shells = await asyncio.gather(*(claimed.make(backend, template=WARM) for _ in range(4)))
    await asyncio.gather(*(s.sh(f"echo {n} > /work/who") for n, s in enumerate(shells)))
    said = await asyncio.gather(*(s.sh("cat /work/who") for s in shells))
    assert [each.stdout for each in said] == [b"0\n", b"1\n", b"2\n", b"3\n"]


async def test_a_claimed_pod_takes_the_token_of_its_first_caller_alone(claimed):
    backend = claimed.backend()
    await backend.start()
    shell = await claimed.make(backend, template=WARM)
    agent = shell.box._agent
    thief = AgentClient(agent._host, agent._port, "another token")
    with pytest.raises(AgentLost, match="409"):
        await thief.pin()
    with pytest.raises(AgentLost, match="401"):
        await thief.info()
    assert (await agent.info())["uid"] == 1000


async def test_a_pod_that_the_watch_has_not_told_of_yet_has_the_same_digest(claimed):
    backend = claimed.backend()
    await backend.start()
    first = await claimed.make(backend, template=WARM)
    parts = backend._parts
    parts.claim_maker = ClaimMaker(parts.claim_maker._means, lambda name: None)
    second = await claimed.make(backend, template=WARM)
    assert first.box.rootfs_digest == second.box.rootfs_digest


async def test_what_a_pool_does_not_fit_gets_a_pod_of_its_own(claimed):
    backend = claimed.backend()
    await backend.start()
    larger = Limits(memory_bytes=2 * LIMITS.memory_bytes, disk_bytes=LIMITS.disk_bytes)
    shell = await claimed.make(backend, template=WARM, limits=larger)
    assert claimed.cluster.store.all("sandboxclaims") == []
    (pod,) = claimed.cluster.pods()
    assert pod["metadata"]["name"] == shell.box.name


async def test_a_claim_that_is_deleted_from_outside_is_a_lost_sandbox(claimed):
    backend = claimed.backend()
    await backend.start()
    shell = await claimed.make(backend, template=WARM)
    claimed.cluster.store.delete("sandboxclaims", NAMESPACE, shell.box.name)
    await claimed.cluster.until(lambda: claimed.lost == [shell.box.sandbox_id], "it is lost")


async def test_a_claim_that_nothing_serves_is_given_up(claimed):
    backend = claimed.backend(create_seconds=1.0)
    await backend.start()
    claimed.cluster.kubelet.default_plan = Plan("pending")
    with pytest.raises(Unavailable):
        await claimed.make(backend, template=WARM)
    assert claimed.cluster.store.all("sandboxclaims") == []


async def test_a_dead_manager_s_claims_and_pools_are_cleared(claimed):
    first = claimed.backend("elsewhere")
    await first.start()
    await claimed.make(first, template=WARM)
    store = claimed.cluster.store
    (manager,) = {
        c["metadata"]["labels"][objects.LABEL_MANAGER] for c in store.all("sandboxclaims")
    }
    store.delete("configmaps", NAMESPACE, manager, collect=False)
    backend = claimed.backend("one")
    await backend.start()
    await backend.reap(frozenset())
    for plural in ("sandboxclaims", "sandboxwarmpools", "sandboxtemplates"):
        assert store.all(plural) == []
    await claimed.cluster.until(lambda: not claimed.cluster.pods(), "no pod")


async def test_claims_are_demanded_where_they_are_unknown(rig):
    with pytest.raises(FailedPrecondition) as caught:
        await rig.backend(pool="claims").start()
    assert caught.value.reason == "CLAIMS_UNKNOWN"
    assert rig.cluster.config_maps() == []


async def test_pods_can_be_demanded_where_claims_are_known(claimed):
    backend = claimed.backend(pool="pods")
    info = await backend.start()
    assert Feature.WARM_POOL in info.features
    await claimed.make(backend, template=WARM)
    assert claimed.cluster.store.all("sandboxclaims") == []


async def test_a_start_that_fails_leaves_nothing_that_runs(claimed):
    claimed.cluster.plant(Fault("GET", "sandboxclaims", status=403, message="no right"))
    with pytest.raises(FailedPrecondition) as caught:
        await claimed.backend().start()
    assert caught.value.reason == "CLUSTER_REFUSES"
    assert [task for task in asyncio.all_tasks() if "Mirror" in repr(task)] == []
    assert claimed.cluster.config_maps() == []
