"""The backend kubernetes: a hardened pod per sandbox, driven by an agent inside it.

A sandbox's object has a name that follows from its id, so that every doubt (a lost reply, a time-out, a creation that
succeeds after it was given up) ends with a deletion by name. One watch tells the state of all pods. A pod of ours that
belongs to no sandbox here is deleted on sight.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.backends.agent_box import AgentBox
from sandbox.backends.folder import StateFolder
from sandbox.backends.kubernetes import claims, objects
from sandbox.backends.kubernetes.api import (
    PODS,
    ApiStatus,
    ApiUnreachable,
    Cluster,
    Kind,
    Object,
)
from sandbox.backends.kubernetes.birth import Birth
from sandbox.backends.kubernetes.clearing import Clearing
from sandbox.backends.kubernetes.errors import typed
from sandbox.backends.kubernetes.graveyard import Graveyard
from sandbox.backends.kubernetes.lease import Lease
from sandbox.backends.kubernetes.makers import (
    ClaimMaker,
    Made,
    Maker,
    Means,
    PodMaker,
    provide_agent,
)
from sandbox.backends.kubernetes.objects import Manager
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.backends.kubernetes.pace import Pace
from sandbox.backends.kubernetes.probe import check_network
from sandbox.backends.kubernetes.status import judge
from sandbox.backends.kubernetes.watch import Mirror
from sandbox.backends.protocol import BackendInfo
from sandbox.backends.verdict import State, Verdict
from sandbox.pod_agent import bundle
from sandbox.types import BoxSpec, Feature, Owner
from servicekit.errors import FailedPrecondition, Unavailable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Parts:
    """What there is between start and close."""

    cluster: Cluster
    lease: Lease
    graveyard: Graveyard
    clearing: Clearing
    pods: Mirror
    pod_maker: PodMaker
    claims: Mirror | None = None
    claim_maker: ClaimMaker | None = None


class KubernetesBackend:
    """Makes sandboxes in one namespace of a cluster."""

    def __init__(
        self,
        state_dir: Path,
        options: KubernetesOptions,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reaches nothing until `start`.

        Args:
            state_dir: Holds the lock and the name of this installation.
            options: Where and how.
            rng: Spreads retries.
            clock: Seconds since the epoch; leases and deadlines are compared by it.
        """
        self._folder = StateFolder(state_dir)
        self._options = options
        self._clock = clock
        self._pace = Pace(options.creates_per_second, rng or random.Random(), time.monotonic)
        self._parts: _Parts | None = None
        self._births: dict[str, Birth] = {}
        self._boxes: dict[str, AgentBox] = {}

    def lock(self) -> None:
        """Take the folder for this process; see `Backend.lock`."""
        self._folder.lock()

    async def start(self) -> BackendInfo:
        """Reach the cluster, take the lease, begin to watch; see `Backend.start`."""
        self.lock()
        options = self._options
        try:
            cluster = await Cluster.connect(
                options.kubeconfig, options.context, options.namespace, options.request_seconds
            )
        except ValueError as error:
            raise FailedPrecondition(
                f"no way to a cluster: {error}; set HONE_SANDBOX_KUBERNETES__KUBECONFIG, or run in a pod",
                reason="CLUSTER_UNKNOWN",
                attributable="infra",
            ) from error
        manager = self._manager()
        lease = Lease(cluster, manager, options.lease_seconds, self._clock)
        try:
            await lease.take()
            parts = self._parts = await self._assemble(cluster, lease)
            await parts.pods.start()
            if parts.claims is not None:
                await parts.claims.start()
            detail = await check_network(self, cluster.address) if options.check_network else ""
        except BaseException as error:  # also when cancelled: the lease must not stay
            if self._parts is not None:
                await _stop(self._parts)
            self._parts = None
            self._boxes.clear()  # what is left of the network's check goes with the lease
            await lease.drop()
            await cluster.close()
            if isinstance(error, ApiStatus | ApiUnreachable):
                raise typed(error, f"namespace {options.namespace}") from error
            raise
        others_pool = frozenset[Feature]() if parts.claim_maker is None else {Feature.WARM_POOL}
        return BackendInfo(
            backend="kubernetes",
            isolation=f"pod-{options.runtime_class or 'default'}",
            features=frozenset(Feature) - others_pool,
            detail=detail,
        )

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> AgentBox:
        """Make a sandbox; see `Backend.create`."""
        parts = self._started()
        if spec.network_profile != "none":
            raise FailedPrecondition(
                f"network_profile {spec.network_profile!r}: pods are sealed by one NetworkPolicy; known is 'none'",
                reason="UNSUPPORTED",
            )
        name = objects.object_name(spec.sandbox_id)
        maker: Maker = parts.pod_maker
        if parts.claim_maker is not None and parts.claim_maker.fits(spec):
            maker = parts.claim_maker
        birth = Birth(name, self._options.unschedulable_seconds)
        self._births[name] = birth
        seconds = self._options.create_seconds
        try:
            async with asyncio.timeout(seconds):
                deadline = asyncio.get_running_loop().time() + seconds
                made = await maker.make(spec, birth, deadline)
                box = self._box(spec, name, maker.kind, made, on_lost)
                await made.agent.info()  # the token fits and the agent answers
                if spec.snapshot is not None:
                    await box.restore(spec.snapshot)
        except BaseException as error:  # also when cancelled: nothing may be left of it
            self._boxes.pop(name, None)
            self._births.pop(name, None)
            await self._bury(maker.kind, name)
            raise birth.explain(error, seconds) from error
        finally:
            birth.close()
        del self._births[name]
        return box

    async def reap(self, known: frozenset[str]) -> int:
        """Remove remains; see `Backend.reap`."""
        busy = frozenset(self._births)
        try:
            return await self._started().clearing.clear(known, busy)
        except (ApiStatus, ApiUnreachable) as error:
            log.warning("no clearing this time", extra={"error": str(error)})
            return 0

    def live_count(self) -> int:
        """Count sandboxes' pods and claims as the API server knows them; see `Backend.live_count`."""
        if self._parts is None:
            return 0
        names = {_sandbox_of(pod) for pod in self._parts.pods.all()}
        if self._parts.claims is not None:
            names |= {_sandbox_of(claim) for claim in self._parts.claims.all()}
        return len(names - {""})

    async def close(self) -> None:
        """Stop; see `Backend.close`."""
        loop, seconds = asyncio.get_running_loop(), self._options.request_seconds
        destroying = [loop.create_task(box.destroy()) for box in list(self._boxes.values())]
        if destroying:
            await asyncio.wait(destroying, timeout=seconds)
        parts, self._parts = self._parts, None
        if parts is not None:
            left = await parts.graveyard.settle(seconds)
            if left:
                extra = {"count": left}
                log.error("objects left behind; the next manager clears them", extra=extra)
            await _stop(parts)
            await asyncio.gather(*destroying, return_exceptions=True)  # end with the graveyard
            await parts.lease.drop()
            await parts.cluster.close()
        self._folder.release()

    def _manager(self) -> Manager:
        instance = self._folder.instance()
        return Manager(instance=instance, name=f"hone-{instance}-{uuid.uuid4().hex[:8]}")

    async def _assemble(self, cluster: Cluster, lease: Lease) -> _Parts:
        options, manager = self._options, lease.manager
        archive = bundle.build()
        config_name = await provide_agent(cluster, manager, archive)
        selector = f"{objects.LABEL_MANAGER}={manager.name}"
        means = Means(
            cluster=cluster,
            pace=self._pace,
            options=options,
            manager=lambda: lease.manager,
            agent_config_name=config_name,
            clock=self._clock,
        )
        graveyard = Graveyard(cluster, self._pace, self._forget)
        parts = _Parts(
            cluster=cluster,
            lease=lease,
            graveyard=graveyard,
            clearing=Clearing(cluster, lease, graveyard, self._clock),
            pods=Mirror(cluster, PODS, selector, self._pace, self._see_pod, self._miss_pod),
            pod_maker=PodMaker(means),
        )
        if await self._uses_claims(cluster):
            parts.claim_maker = ClaimMaker(means, self._pod_of)
            parts.clearing.kinds = (claims.CLAIMS, claims.POOLS, claims.TEMPLATES)
            parts.claims = Mirror(
                cluster, claims.CLAIMS, selector, self._pace, self._see_claim, self._miss_claim
            )

        async def make_again() -> None:
            await provide_agent(cluster, lease.manager, archive)
            if parts.claim_maker is not None:
                parts.claim_maker.forget_pools()

        lease.on_made_again = make_again
        return parts

    async def _uses_claims(self, cluster: Cluster) -> bool:
        if self._options.pool == "pods":
            return False
        if await cluster.has_kind(claims.CLAIMS):
            return True
        if self._options.pool == "claims":
            raise FailedPrecondition(
                f"the cluster does not know {claims.CLAIMS.plural} of {claims.CLAIMS.api_version}; "
                "install agent-sandbox with its extensions, or set the option pool to pods",
                reason="CLAIMS_UNKNOWN",
                attributable="infra",
            )
        return False

    def _box(
        self,
        spec: BoxSpec,
        name: str,
        kind: Kind,
        made: Made,
        on_lost: Callable[[str], None],
    ) -> AgentBox:
        async def take(owner: Owner) -> None:
            await self._take(name, owner)

        async def look() -> Verdict:
            return await self._look(kind, name)

        async def remove() -> None:
            await asyncio.shield(self._started().graveyard.bury(kind, name))
            self._boxes.pop(name, None)

        box = AgentBox(
            spec.sandbox_id,
            name=name,
            rootfs_digest=made.rootfs_digest,
            agent=made.agent,
            take=take,
            look=look,
            remove=remove,
            on_lost=on_lost,
        )
        self._boxes[name] = box
        return box

    async def _take(self, name: str, owner: Owner) -> None:
        """Label a pod as its owner's, provided that nobody has changed it since it was last heard of."""
        parts = self._started()
        pod = parts.pods.get(name)
        if pod is None:
            raise Unavailable(f"pod {name} is gone", reason="BOX_GONE")
        try:
            await parts.cluster.patch(PODS, name, objects.claim_patch(pod, owner))
        except ApiStatus as error:
            if error.status in (404, 409):
                raise Unavailable(f"pod {name}: {error}", reason="BOX_GONE") from error
            raise typed(error, f"pod {name}") from error
        except ApiUnreachable as error:
            raise typed(error, f"pod {name}") from error

    async def _look(self, kind: Kind, name: str) -> Verdict:
        """Ask for the state of an object that should be alive."""
        try:
            found = await self._started().cluster.get(kind, name)
        except ApiStatus as error:
            return Verdict(state=State.LOST, text=str(error))
        except ApiUnreachable as error:
            return Verdict(state=State.STARTING, text=str(error))
        return judge(found) if kind == PODS else claims.judge(found)

    def _see_pod(self, pod: Object) -> None:
        name, verdict = _sandbox_of(pod), judge(pod)
        is_own_object = name == pod["metadata"]["name"]
        if name in self._births and is_own_object:
            self._births[name].see(pod, verdict)
        if name in self._boxes:
            self._boxes[name].see(verdict)
        if is_own_object:
            self._bury_if_unknown(PODS, name)

    def _miss_pod(self, pod: Object) -> None:
        self._miss(_sandbox_of(pod), "pod")

    def _see_claim(self, claim: Object) -> None:
        name, verdict = claim["metadata"]["name"], claims.judge(claim)
        if name in self._births:
            self._births[name].see(claim, verdict)
        if name in self._boxes:
            self._boxes[name].see(verdict)
        self._bury_if_unknown(claims.CLAIMS, name)

    def _miss_claim(self, claim: Object) -> None:
        self._miss(claim["metadata"]["name"], "claim")

    def _bury_if_unknown(self, kind: Kind, name: str) -> None:
        """Delete what was made after its creation had been given up."""
        if name not in self._births and name not in self._boxes and self._parts is not None:
            log.warning("late object deleted", extra={"kind": kind.plural, "object": name})
            self._parts.graveyard.bury(kind, name)

    def _miss(self, name: str, what: str) -> None:
        text = f"the {what} was deleted from outside"
        if name in self._births:
            self._births[name].fail(Unavailable(f"{name}: {text}", reason="POD_FAILED"))
        if name in self._boxes:
            self._boxes[name].see(Verdict(state=State.LOST, text=text))

    def _pod_of(self, name: str) -> Object | None:
        pods = self._started().pods.all()
        return next((pod for pod in pods if _sandbox_of(pod) == name), None)

    def _forget(self, kind: Kind, name: str) -> None:
        if self._parts is None:
            return
        if kind == PODS:
            self._parts.pods.forget(name)
        elif kind == claims.CLAIMS and self._parts.claims is not None:
            self._parts.claims.forget(name)

    async def _bury(self, kind: Kind, name: str) -> None:
        """Delete what a failed creation may have left; where that takes long it goes on without the caller."""
        if self._parts is None:
            return  # closed meanwhile: what it owned goes with the lease
        task = self._parts.graveyard.bury(kind, name)
        await asyncio.wait({task}, timeout=self._options.request_seconds)

    def _started(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the backend is not started, or is closed", reason="NOT_STARTED")
        return self._parts


async def _stop(parts: _Parts) -> None:
    await parts.graveyard.close()
    await parts.pods.stop()
    if parts.claims is not None:
        await parts.claims.stop()


def _sandbox_of(found: Object) -> str:
    labels = found["metadata"].get("labels") or {}
    return str(labels.get(objects.LABEL_SANDBOX, ""))
