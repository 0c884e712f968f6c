"""Many pods at once: none lost, none left."""

import asyncio

import pytest
from fake_kubernetes.faults import Fault

from servicekit.errors import HoneError


@pytest.mark.slow
async def test_14_a_hundred_at_once_and_nothing_left(rig):
    backend = rig.backend(create_seconds=120.0, creates_per_second=50.0)
    await backend.start()
    shells = await asyncio.gather(*(rig.make(backend) for _ in range(100)))
    assert backend.live_count() == 100
    assert len({shell.box.name for shell in shells}) == 100
    said = await asyncio.gather(
        *(s.sh(f"echo {n} > /work/n; cat /work/n") for n, s in enumerate(shells))
    )
    assert [outcome.stdout for outcome in said] == [b"%d\n" % n for n in range(100)]
    await asyncio.gather(*(shell.box.destroy() for shell in shells))
    assert backend.live_count() == 0
    assert rig.cluster.pods() == []
    await rig.cluster.until(lambda: not rig.cluster.kubelet.container_count, "no container")
    assert rig.lost == []


@pytest.mark.slow
async def test_14b_forty_at_once_through_every_kind_of_trouble(rig):
    backend = rig.backend(create_seconds=60.0)
    await backend.start()
    for fault in (
        Fault("POST", "pods", times=5, status=429, retry_after="1"),
        Fault("POST", "pods", times=5, lose=True),
        Fault("POST", "pods", times=5, drop=True),
        Fault("POST", "pods", times=5, status=500),
        Fault("POST", "pods", times=3, status=403, message="exceeded quota: sandboxes"),
        Fault("DELETE", "pods", times=5, status=500),
        Fault("DELETE", "pods", times=5, lose=True),
    ):
        rig.cluster.plant(fault)
    made = await asyncio.gather(*(rig.make(backend) for _ in range(40)), return_exceptions=True)
    failed = [each for each in made if isinstance(each, BaseException)]
    assert len(failed) == 3
    assert all(isinstance(each, HoneError) and each.retryable for each in failed)
    shells = [each for each in made if not isinstance(each, BaseException)]
    assert backend.live_count() == len(rig.cluster.pods()) == len(shells) == 37
    await asyncio.gather(*(shell.box.destroy() for shell in shells))
    assert rig.cluster.pods() == []
    assert backend.live_count() == 0
