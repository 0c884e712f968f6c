"""The scheduler and the node: moves pods through their phases, runs their containers, ends them as a test asks."""

import asyncio
import contextlib
import ipaddress
import itertools
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_kubernetes.container import Container
from fake_kubernetes.store import Change, Object, Store, now

IMAGE_DIGEST = "sha256:" + "c0ffee00" * 8
_PROBE_SECONDS = 0.02
_FIRST_ADDRESS = ipaddress.ip_address("127.64.0.0")
_ADDRESSES = 1 << 22
_addresses = itertools.count(os.getpid() * 977 % _ADDRESSES)
"""Goes on from cluster to cluster: an agent of the last one may still be ending."""


@dataclass(frozen=True)
class Plan:
    """What becomes of a pod: `run`, `pending` for ever, `unschedulable`, `image` (cannot be pulled) or `fail`."""

    what: str = "run"
    text: str = ""


class Kubelet:
    """Looks after every pod of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._containers: dict[str, Container] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.default_plan = Plan()
        self.plans: deque[Plan] = deque()
        """For the next pods, in order; then the default."""
        self.logs: list[str] = []
        store.listeners.append(self._on_change)

    def container(self, name: str) -> Container:
        """Return a pod's running container."""
        return next(c for n, c in self._containers.items() if n == self._uid(name))

    @property
    def container_count(self) -> int:
        return len(self._containers)

    async def gone(self, uid: str) -> None:
        """Wait until nothing runs of a pod that was deleted."""
        while uid in self._tasks or uid in self._containers or self._ending:
            await asyncio.sleep(0.005)

    def schedule(self, name: str) -> None:
        """Let a pod that waited run after all."""
        pod = self._pod(name)
        self._launch(pod, Plan())

    async def out_of_memory(self, name: str) -> None:
        """End a pod as the kernel and the node do when its memory ran out."""
        await self._end(name, 137, "OOMKilled", {})

    async def evict(self, name: str, message: str) -> None:
        """End a pod because of what it, or others, used."""
        await self._end(name, 137, "Error", {"reason": "Evicted", "message": message})

    async def fail(self, name: str, code: int = 1) -> None:
        """End a pod's container by its own error."""
        await self._end(name, code, "Error", {})

    def preempt(self, name: str) -> None:
        """Take a pod's place for another one."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "preempting to accommodate a higher priority pod",
        }
        self._status(name, lambda status: status["conditions"].append(condition))

    def lose_node(self, name: str) -> None:
        """Cut a pod's machine off: nothing of it answers, and its state becomes unknown after a while."""
        self.container(name).signal(signal.SIGSTOP)
        ready = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }

        def change(status: Object) -> None:
            others = [each for each in status["conditions"] if each["type"] != "Ready"]
            status["conditions"] = [*others, ready]

        self._status(name, change)

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        for task in (*self._tasks.values(), *self._ending):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for container in list(self._containers.values()):
            await container.kill()

    def _on_change(self, change: Change) -> None:
        if change.plural != "pods":
            return
        uid = change.found["metadata"]["uid"]
        if change.what == "ADDED":
            self._launch(change.found, self.plans.popleft() if self.plans else self.default_plan)
        elif change.what == "DELETED":
            task = asyncio.get_running_loop().create_task(self._remove(uid))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _launch(self, pod: Object, plan: Plan) -> None:
        uid = pod["metadata"]["uid"]
        self._tasks[uid] = asyncio.get_running_loop().create_task(self._run(pod, plan))

    async def _remove(self, uid: str) -> None:
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        container = self._containers.pop(uid, None)
        if container is not None:
            await container.kill()

    async def _run(self, pod: Object, plan: Plan) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if plan.what == "pending":
            return
        if plan.what == "unschedulable":
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": plan.text or "0/3 nodes are available: 3 Insufficient memory.",
            }
            self._status(name, lambda status: status.update(conditions=[condition]))
            return
        self._status(name, _scheduled)
        if plan.what == "image":
            reason, _, message = plan.text.partition(": ")
            waiting = {"waiting": {"reason": reason, "message": message}}
            self._status(
                name, lambda status: status.update(containerStatuses=[_container(pod, waiting)])
            )
            return
        ports = pod["spec"]["containers"][0].get("ports") or [{"containerPort": 80}]
        address = self._address(ports[0]["containerPort"])
        config_maps = {each["metadata"]["name"]: each for each in self._store.all("configmaps")}
        container = self._containers[uid] = Container(pod, config_maps, address)
        await container.start()
        if plan.what == "fail":
            await container.kill()
            self._status(name, lambda status: status.update(_ended(pod, 1, "Error", {})))
            return
        running = {"running": {"startedAt": now()}}

        def started(status: Object) -> None:
            status.update(
                phase="Running",
                podIP=address,
                podIPs=[{"ip": address}],
                hostIP="127.0.0.1",
                containerStatuses=[_container(pod, running)],
            )

        self._status(name, started)
        ending = asyncio.ensure_future(container.wait())
        try:
            await self._until_ready(pod, address, ending)
            code = await self._until_over(pod, ending)
        finally:
            ending.cancel()
        self.logs.append(container.log())
        reason = {"reason": "DeadlineExceeded"} if code < 0 else {}
        if code < 0:
            await container.kill()
        what = "Completed" if not code else "Error"
        self._status(name, lambda status: status.update(_ended(pod, abs(code), what, reason)))

    async def _until_ready(self, pod: Object, address: str, ending: "asyncio.Future[int]") -> None:
        """Probe as the pod asks, then say that it is ready."""
        probe = pod["spec"]["containers"][0].get("readinessProbe", {}).get("httpGet")
        while probe is not None and not ending.done():
            if await _answers(address, probe["port"], probe["path"]):
                break
            await asyncio.sleep(_PROBE_SECONDS)
        if ending.done():
            return

        def ready(status: Object) -> None:
            others = [each for each in status["conditions"] if each["type"] != "Ready"]
            status["conditions"] = [*others, {"type": "Ready", "status": "True"}]
            status["containerStatuses"][0]["ready"] = True

        self._status(pod["metadata"]["name"], ready)

    async def _until_over(self, pod: Object, ending: "asyncio.Future[int]") -> int:
        """Return the exit code, or -1 at the pod's own deadline."""
        seconds = pod["spec"].get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(ending)
        except TimeoutError:
            return -1

    async def _end(self, name: str, code: int, reason: str, extra: Object) -> None:
        pod = self._pod(name)
        uid = pod["metadata"]["uid"]
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        container = self._containers.pop(uid, None)
        if container is not None:
            await container.kill()
        self._status(name, lambda status: status.update(_ended(pod, code, reason, extra)))

    def _status(self, name: str, change: Callable[[Object], Any]) -> None:
        pod = self._find(name)
        if pod is not None:
            self._store.update(
                "pods",
                pod["metadata"]["namespace"],
                name,
                lambda found: change(found.setdefault("status", {})),
            )

    def _find(self, name: str) -> Object | None:
        return next((p for p in self._store.all("pods") if p["metadata"]["name"] == name), None)

    def _pod(self, name: str) -> Object:
        pod = self._find(name)
        assert pod is not None, f"no pod {name}"
        return pod

    def _uid(self, name: str) -> str:
        return str(self._pod(name)["metadata"]["uid"])

    def _address(self, port: int) -> str:
        """Return an address that is free on this machine, where other clusters may be running."""
        while True:
            address = str(_FIRST_ADDRESS + next(_addresses) % _ADDRESSES)
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind((address, port))
                except OSError:
                    continue
            return address


def _scheduled(status: Object) -> None:
    status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    status["startTime"] = now()


def _container(pod: Object, state: Object) -> Object:
    container = pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"docker.io/library/python@{IMAGE_DIGEST}",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }


def _ended(pod: Object, code: int, reason: str, extra: Object) -> Object:
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()}}
    phase = "Failed" if code or extra else "Succeeded"
    return {"phase": phase, "containerStatuses": [_container(pod, state)], **extra}


async def _answers(host: str, port: int, path: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return (await reader.readline()).split()[1:2] == [b"200"]
    except OSError:
        return False
    finally:
        writer.close()
