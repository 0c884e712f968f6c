"""Finds what belongs to no sandbox any more: past its deadline, ended, unknown, or of a dead manager."""

from collections.abc import Callable

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import CONFIG_MAPS, PODS, Cluster, Kind, Object
from sandbox.backends.kubernetes.graveyard import Graveyard
from sandbox.backends.kubernetes.lease import Lease

_LATE_SECONDS = 60.0
"""How far past its deadline an object of another living manager may be: that manager ends it first."""
_UNKNOWN_SECONDS = 60.0
"""An object of our own without a sandbox in the table is deleted after this long."""
_SETTLE_SECONDS = 10.0
_SELECTOR = f"{objects.LABEL_APP}={objects.APP}"


class Clearing:
    """Clears the namespace of remains."""

    def __init__(
        self,
        cluster: Cluster,
        lease: Lease,
        graveyard: Graveyard,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds since the epoch."""
        self._cluster = cluster
        self._lease = lease
        self._graveyard = graveyard
        self._clock = clock
        self._first_seen: dict[str, float] = {}
        self.kinds: tuple[Kind, ...] = ()
        """Kinds to clear beside pods."""

    async def clear(self, known: frozenset[str], busy: frozenset[str]) -> int:
        """Delete remains; return how many sandboxes were among them.

        Args:
            known: Ids of sandboxes that live.
            busy: Names of objects that are being made.
        """
        pods, _ = await self._cluster.list(PODS, _SELECTOR)
        others = {kind: (await self._cluster.list(kind, _SELECTOR))[0] for kind in self.kinds}
        # Leases last: a manager that starts meanwhile has a lease before it has a pod.
        configs, _ = await self._cluster.list(CONFIG_MAPS, _SELECTOR)
        leases = [each for each in configs if _manager(each)[1] == each["metadata"]["name"]]
        everything = [*pods, *configs, *(each for found in others.values() for each in found)]
        dead = self._lease.dead_managers({_manager(each) for each in everything}, leases)
        self._forget_all_but({pod["metadata"]["name"] for pod in pods})
        remains = [pod for pod in pods if self._is_remains(pod, dead, known, busy)]
        for pod in remains:
            self._graveyard.bury(PODS, pod["metadata"]["name"])
        for kind, found in (*others.items(), (CONFIG_MAPS, configs)):
            for each in found:
                if _manager(each)[1] in dead:
                    self._graveyard.bury(kind, each["metadata"]["name"])
        await self._graveyard.settle(_SETTLE_SECONDS)
        return len(remains)

    def _forget_all_but(self, names: set[str]) -> None:
        for gone in self._first_seen.keys() - names:
            del self._first_seen[gone]

    def _is_remains(
        self, pod: Object, dead: set[str], known: frozenset[str], busy: frozenset[str]
    ) -> bool:
        instance_and_name = _manager(pod)
        if instance_and_name[1] in dead:
            return True
        metadata = pod["metadata"]
        notes = metadata.get("annotations") or {}
        is_own = instance_and_name[1] == self._lease.manager.name
        if is_own and (notes.get(objects.NOTE_SANDBOX) in known or metadata["name"] in busy):
            self._first_seen.pop(metadata["name"], None)
            return False
        deadline = objects.parse_timestamp(notes.get(objects.NOTE_DEADLINE, ""))
        if deadline is not None and self._clock() > deadline + _LATE_SECONDS:
            return True
        if not is_own or objects.NOTE_SANDBOX not in notes:
            return False
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            return True
        first = self._first_seen.setdefault(metadata["name"], self._clock())
        return self._clock() - first > _UNKNOWN_SECONDS


def _manager(found: Object) -> tuple[str, str]:
    labels = found["metadata"].get("labels") or {}
    return labels.get(objects.LABEL_INSTANCE, ""), labels.get(objects.LABEL_MANAGER, "")
