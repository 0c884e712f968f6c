"""The two ways to a pod: one made for the sandbox, or one that the agent-sandbox controller keeps ready."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandbox.backends.agent_client import AgentClient
from sandbox.backends.kubernetes import claims, objects
from sandbox.backends.kubernetes.api import (
    CONFIG_MAPS,
    PODS,
    ApiStatus,
    ApiUnreachable,
    Cluster,
    Kind,
    Object,
)
from sandbox.backends.kubernetes.birth import Birth
from sandbox.backends.kubernetes.errors import may_pass, typed
from sandbox.backends.kubernetes.objects import Manager
from sandbox.backends.kubernetes.options import KubernetesOptions
from sandbox.backends.kubernetes.pace import Pace
from sandbox.backends.kubernetes.status import image_id
from sandbox.types import BoxSpec
from servicekit.errors import Unavailable

_TOKEN_BYTES = 32
_DIGEST = "sha256:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A pod that is ready."""

    agent: AgentClient
    rootfs_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What both ways need."""

    cluster: Cluster
    pace: Pace
    options: KubernetesOptions
    manager: Callable[[], Manager]
    agent_config_name: str
    clock: Callable[[], float]
    """Seconds since the epoch."""


class Maker(Protocol):
    """A way to a pod."""

    kind: Kind
    """Of the object that stands for the sandbox; deleting it ends the pod."""

    async def make(self, spec: BoxSpec, birth: Birth, deadline: float) -> Made:
        """Make the object and wait until its agent can be called; `deadline` is the loop's time."""
        ...


class PodMaker:
    """Makes a pod for each sandbox."""

    kind = PODS

    def __init__(self, means: Means) -> None:
        """Makes nothing yet."""
        self._means = means

    async def make(self, spec: BoxSpec, birth: Birth, deadline: float) -> Made:
        """Make a pod; see `Maker.make`."""
        means = self._means
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        digest = hashlib.sha256(token.encode()).hexdigest()
        body = objects.pod(
            means.manager(),
            spec,
            means.options,
            agent_config_name=means.agent_config_name,
            token_digest=digest,
            deadline=means.clock() + spec.lifetime_seconds,
        )
        await post(means, PODS, body, birth, deadline)
        pod = await birth.ready()
        if digest not in pod["spec"]["containers"][0]["args"]:
            raise Unavailable(f"pod {birth.name} is of an earlier attempt", reason="NAME_TAKEN")
        agent = AgentClient(pod["status"]["podIP"], means.options.agent_port, token)
        return Made(agent=agent, rootfs_digest=rootfs_digest(pod))


class ClaimMaker:
    """Claims a pod of a pool that the agent-sandbox controller keeps; one pool per template."""

    kind = claims.CLAIMS

    def __init__(self, means: Means, find_pod: Callable[[str], Object | None]) -> None:
        """`find_pod` returns the pod of a sandbox if it has been heard of."""
        self._means = means
        self._find_pod = find_pod
        self._pools: dict[str, asyncio.Task[None]] = {}

    def forget_pools(self) -> None:
        """Make each pool again when it is next needed: they are gone."""
        self._pools.clear()

    def fits(self, spec: BoxSpec) -> bool:
        """Say whether pods of a pool are what is asked for."""
        template = spec.template
        return spec.owner is not None and template.warm > 0 and spec.limits == template.limits

    async def make(self, spec: BoxSpec, birth: Birth, deadline: float) -> Made:
        """Claim a pod; see `Maker.make`."""
        means = self._means
        manager = means.manager()
        key = objects.template_key(spec.template, spec.limits, means.options)
        if key not in self._pools or self._pools[key].cancelled() or _failed(self._pools[key]):
            self._pools[key] = asyncio.get_running_loop().create_task(self._make_pool(spec, key))
        await asyncio.shield(self._pools[key])
        end = means.clock() + spec.lifetime_seconds
        body = claims.claim(manager, spec, key, end)
        await post(means, claims.CLAIMS, body, birth, deadline)
        found = await birth.ready()
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        agent = AgentClient(claims.pod_ip(found), means.options.agent_port, token)
        await agent.pin()
        pod = self._find_pod(birth.name) or await self._ask_for_pod(birth.name)
        return Made(agent=agent, rootfs_digest=rootfs_digest(pod))

    async def _ask_for_pod(self, name: str) -> Object:
        """Look for the pod of a claim that is ready though the watch has not told of it."""
        pods, _ = await self._means.cluster.list(PODS, f"{objects.LABEL_SANDBOX}={name}")
        if not pods:
            raise Unavailable(f"no pod bears the name of the claim {name}", reason="POD_FAILED")
        return pods[0]

    async def _make_pool(self, spec: BoxSpec, key: str) -> None:
        means = self._means
        manager = means.manager()
        bodies = (
            (
                claims.TEMPLATES,
                claims.template(manager, spec, key, means.options, means.agent_config_name),
            ),
            (claims.POOLS, claims.pool(manager, spec, key)),
        )
        for kind, body in bodies:
            try:
                await means.cluster.create(kind, body)
            except ApiStatus as error:
                if error.reason != "AlreadyExists":
                    raise


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


async def post(means: Means, kind: Kind, body: Object, birth: Birth, deadline: float) -> None:
    """Make an object, again after a time-out or a lost reply: its name is the same each time.

    Raises:
        HoneError: the API server refuses, or asks for more patience than there is time.
    """
    loop = asyncio.get_running_loop()
    attempt = 0
    while True:
        await means.pace.wait()
        try:
            await means.cluster.create(kind, body)
            return
        except (ApiStatus, ApiUnreachable) as error:
            if isinstance(error, ApiStatus) and error.reason == "AlreadyExists":
                await _adopt(means, kind, body)
                return
            wait = means.pace.backoff_seconds(attempt)
            if isinstance(error, ApiStatus) and error.retry_after_seconds is not None:
                wait = error.retry_after_seconds
            if not may_pass(error) or loop.time() + wait >= deadline:
                raise typed(error, f"{kind.plural} {birth.name}") from error
            birth.last_error = error
            if isinstance(error, ApiStatus) and error.status == 429:
                means.pace.hush(wait)
            else:
                await asyncio.sleep(wait)
            attempt += 1


async def _adopt(means: Means, kind: Kind, body: Object) -> None:
    """Take an object that is there already for ours if our label says so: the reply to its creation was lost."""
    name = body["metadata"]["name"]
    try:
        found = await means.cluster.get(kind, name)
    except (ApiStatus, ApiUnreachable) as error:
        raise typed(error, f"{kind.plural} {name}") from error
    labels = found["metadata"].get("labels") or {}
    if labels.get(objects.LABEL_MANAGER) != means.manager().name:
        raise Unavailable(f"{kind.plural} {name} is another manager's", reason="NAME_TAKEN")


async def provide_agent(cluster: Cluster, manager: Manager, archive: bytes) -> str:
    """Make the ConfigMap that carries the agent into pods, owned by the manager's lease; return its name."""
    body = objects.agent_config(manager, archive)
    name = str(body["metadata"]["name"])
    try:
        await cluster.create(CONFIG_MAPS, body)
    except ApiStatus as error:
        if error.reason != "AlreadyExists":
            raise
        owners = body["metadata"]["ownerReferences"]
        await cluster.patch(CONFIG_MAPS, name, {"metadata": {"ownerReferences": owners}})
    return name


def rootfs_digest(pod: Object) -> str:
    """Return the digest of the image that a pod runs; of its name where the node does not say."""
    _, found, digest = image_id(pod).rpartition(_DIGEST)
    if found:
        return f"{_DIGEST}{digest}"
    return _text_digest(pod["spec"]["containers"][0]["image"])


def _text_digest(text: str) -> str:
    return f"{_DIGEST}{hashlib.sha256(text.encode()).hexdigest()}"
