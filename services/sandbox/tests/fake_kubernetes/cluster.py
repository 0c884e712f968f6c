"""Puts the cluster together and says how to reach it."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from fake_kubernetes import certificates
from fake_kubernetes.api import ApiServer
from fake_kubernetes.controller import Controller
from fake_kubernetes.faults import Fault
from fake_kubernetes.kubelet import Kubelet
from fake_kubernetes.store import Object, Store

NAMESPACE = "hone-sandboxes"
_UNTIL_SECONDS = 20.0


class FakeCluster:
    """A running cluster."""

    def __init__(self, kubeconfig: Path, api: ApiServer, kubelet: Kubelet) -> None:
        self.kubeconfig = kubeconfig
        self.api = api
        self.store = api.store
        self.kubelet = kubelet

    def pods(self) -> list[Object]:
        return self.store.all("pods", NAMESPACE)

    def config_maps(self) -> list[Object]:
        return self.store.all("configmaps", NAMESPACE)

    def plant(self, fault: Fault) -> Fault:
        """Let a fault happen."""
        self.api.faults.append(fault)
        return fault

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        try:
            async with asyncio.timeout(_UNTIL_SECONDS):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not within {_UNTIL_SECONDS:g} s: {what}") from None


@asynccontextmanager
async def running_cluster(
    folder: Path, *, has_extensions: bool = False
) -> AsyncIterator[FakeCluster]:
    """Run a cluster; when it ends, nothing of its pods is left."""
    store = Store()
    token = secrets.token_hex(16)
    api = ApiServer(store, has_extensions=has_extensions, token=token)
    kubelet = Kubelet(store)
    if has_extensions:
        Controller(store)
    runner = web.AppRunner(api.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    certificate = certificates.make(folder)
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024, ssl_context=certificate.context())
    await site.start()
    host, port = runner.addresses[0][:2]
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(_kubeconfig(f"https://{host}:{port}", certificate.authority, token))
    )
    try:
        yield FakeCluster(kubeconfig, api, kubelet)
    finally:
        api.stalled.set()
        store.end_watches()
        await kubelet.close()
        await runner.cleanup()


def _kubeconfig(address: str, authority: Path, token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "fake",
                "cluster": {"server": address, "certificate-authority": str(authority)},
            }
        ],
        "users": [{"name": "manager", "user": {"token": token}}],
        "contexts": [
            {
                "name": "fake",
                "context": {"cluster": "fake", "user": "manager", "namespace": NAMESPACE},
            }
        ],
        "current-context": "fake",
    }
