"""The one watch that tells the state of all pods: it goes on, whatever happens to it."""

import asyncio

from fake_kubernetes.faults import Fault


def watches(rig) -> int:
    return rig.cluster.store.watch_count


async def test_one_watch_serves_all_pods(rig, backend):
    await rig.cluster.until(lambda: watches(rig) == 1, "the watch is open")
    before = len(rig.cluster.api.requests)
    await asyncio.gather(*(rig.make(backend) for _ in range(5)))
    asked = rig.cluster.api.requests[before:]
    assert [method for method, path in asked if path.endswith("/pods")] == ["POST"] * 5
    assert not [path for method, path in asked if method == "GET"]
    assert watches(rig) == 1


async def test_a_watch_that_ends_is_opened_again_where_it_was(rig, backend):
    shell = await rig.make(backend)
    rig.cluster.store.end_watches()
    rig.cluster.store.delete("pods", "hone-sandboxes", shell.box.name)
    await rig.cluster.until(lambda: rig.lost == [shell.box.sandbox_id], "the deletion is seen")
    assert backend._parts.pods.relist_count == 1


async def test_an_expired_watch_lists_anew_and_misses_nothing(rig, backend):
    kept, gone = await rig.make(backend), await rig.make(backend)
    rig.cluster.plant(Fault("GET", "pods", times=2, status=503))
    rig.cluster.store.end_watches()
    rig.cluster.store.delete("pods", "hone-sandboxes", gone.box.name)
    rig.cluster.store.forget_history()
    await rig.cluster.until(lambda: rig.lost == [gone.box.sandbox_id], "the deletion is found")
    assert backend._parts.pods.relist_count == 2
    assert (await kept.sh("echo untouched")).stdout == b"untouched\n"
    assert (await (await rig.make(backend)).sh("echo new")).stdout == b"new\n"


async def test_a_broken_watch_is_tried_again(rig, backend):
    fault = rig.cluster.plant(Fault("GET", "pods", times=3, drop=True))
    rig.cluster.store.end_watches()
    shell = await rig.make(backend)
    assert fault.hits == 3
    assert (await shell.sh("echo up")).stdout == b"up\n"


async def test_a_watch_refused_with_410_lists_anew(rig, backend):
    rig.cluster.plant(Fault("GET", "pods", status=410, reason="Gone"))
    rig.cluster.store.end_watches()
    await rig.make(backend)
    assert backend._parts.pods.relist_count == 2


async def test_a_watch_from_a_version_that_the_server_does_not_know_lists_anew(rig, backend):
    # An API server that was restored from a backup; it says so until the end of days.
    fault = Fault("GET", "pods", times=3, status=504, reason="Timeout", message="Too large version")
    rig.cluster.plant(fault)
    rig.cluster.store.end_watches()
    await rig.make(backend)
    assert (backend._parts.pods.relist_count, fault.hits) == (2, 3)


async def test_old_news_of_a_deleted_pod_does_not_bring_it_back(rig, backend):
    shell = await rig.make(backend)
    mirror = backend._parts.pods
    pod = mirror.get(shell.box.name)
    await shell.box.destroy()
    mirror._take("MODIFIED", pod)
    assert backend.live_count() == 0
    assert rig.lost == []
