"""The agent-sandbox controller: keeps pods of each SandboxWarmPool and binds SandboxClaims to them."""

from functools import partial

from fake_kubernetes.store import Change, Object, Store

_POOL_LABEL = "agents.x-k8s.io/warm-pool-sandbox"


class Controller:
    """Acts on each change at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0
        store.listeners.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        plural = change.plural
        if plural == "sandboxwarmpools" and change.what == "ADDED":
            self._fill(change.found)
        elif plural == "sandboxclaims" and change.what == "ADDED":
            self._bind_all()
        elif plural == "sandboxclaims" and change.what == "DELETED":
            name = change.found.get("status", {}).get("sandbox", {}).get("name")
            if name:
                self._store.delete("pods", change.found["metadata"]["namespace"], name)
        elif plural == "pods" and change.what == "MODIFIED":
            self._bind_all()

    def _fill(self, pool: Object) -> None:
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        template = self._store.get(
            "sandboxtemplates", namespace, pool["spec"]["sandboxTemplateRef"]["name"]
        )
        free = [pod for pod in self._pods(name) if not _is_bound(pod)]
        for _ in range(pool["spec"]["replicas"] - len(free)):
            assert template is not None
            self._count += 1
            wanted = template["spec"]["podTemplate"]
            labels = {**wanted["metadata"].get("labels", {}), _POOL_LABEL: name}
            owner = {
                "apiVersion": pool["apiVersion"],
                "kind": pool["kind"],
                "name": name,
                "uid": pool["metadata"]["uid"],
            }
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{self._count}",
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "spec": wanted["spec"],
                "status": {"phase": "Pending"},
            }
            self._store.create("pods", namespace, body)

    def _bind_all(self) -> None:
        for claim in self._store.all("sandboxclaims"):
            if not claim.get("status"):
                self._bind(claim)

    def _bind(self, claim: Object) -> None:
        namespace = claim["metadata"]["namespace"]
        pool_name = claim["spec"]["warmPoolRef"]["name"]
        for pod in self._pods(pool_name):
            if _is_bound(pod) or not _is_ready(pod):
                continue
            extra = claim["spec"].get("additionalPodMetadata", {})
            address = pod["status"]["podIP"]
            status = {
                "conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady"}],
                "sandbox": {"name": pod["metadata"]["name"], "podIPs": [address]},
            }
            # The claim first: binding the pod brings the next round, which must find it taken.
            self._store.update(
                "sandboxclaims",
                namespace,
                claim["metadata"]["name"],
                partial(_set_status, status=status),
            )

            def mark(found: Object, claim: Object = claim, extra: Object = extra) -> None:
                labels = found["metadata"].setdefault("labels", {})
                labels.update(extra.get("labels", {}))
                labels["agents.x-k8s.io/claim-uid"] = claim["metadata"]["uid"]

            self._store.update("pods", namespace, pod["metadata"]["name"], mark)
            pool = self._store.get("sandboxwarmpools", namespace, pool_name)
            if pool is not None:
                self._fill(pool)
            return

    def _pods(self, pool: str) -> list[Object]:
        return [
            pod
            for pod in self._store.all("pods")
            if (pod["metadata"].get("labels") or {}).get(_POOL_LABEL) == pool
        ]


def _is_bound(pod: Object) -> bool:
    return "agents.x-k8s.io/claim-uid" in (pod["metadata"].get("labels") or {})


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _set_status(found: Object, status: Object) -> None:
    found["status"] = status
