"""Which policies this replica serves: loaded on demand, counted by rollouts in flight, dropped at zero.

One engine per model. A policy that a newer version of its run has replaced goes when its last
rollout ends; of the others a few stay, because the next step will ask for them again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rollout.adapters import AdapterFolders
from rollout.engines.base import Engine, EngineError, ModelKey, PolicyKey
from rollout.jobs import AdapterRef
from servicekit.errors import InvalidArgument, NotFound

_LOG = logging.getLogger("hone.rollout")

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

MAX_IDLE = 2
"""Policies without rollouts that stay loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """One policy that serves."""

    policy: PolicyKey
    in_flight: int


@dataclass(slots=True)
class _Loaded:
    """A policy and who uses it."""

    adapter: AdapterRef | None
    in_flight: int = 0
    used: int = 0


@dataclass(slots=True)
class _Served:
    """An engine and the policies in it."""

    engine: Engine
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    policies: dict[PolicyKey, _Loaded] = field(default_factory=dict)
    wanted: Counter[PolicyKey] = field(default_factory=Counter)
    """Who uses a policy or waits for it to be loaded; it stays as long as anyone does."""


class Policies:
    """Engines by model, policies by version."""

    def __init__(
        self,
        *,
        make_engine: Callable[[], Engine],
        resolve: Callable[[str], Path],
        adapters: AdapterFolders,
    ) -> None:
        """Takes how to make an engine, and how to find the folder of a model (a blocking call)."""
        self._make_engine = make_engine
        self._resolve = resolve
        self._adapters = adapters
        self._served: dict[ModelKey, _Served] = {}
        self._starting: dict[ModelKey, asyncio.Task[_Served]] = {}
        self._start_lock = asyncio.Lock()
        self._wanted: Counter[ModelKey] = Counter()
        """Who uses a model or waits for it to open; its engine stays as long as anyone does."""
        self._work: set[asyncio.Task[Any]] = set()
        self._clock = 0

    @property
    def engine_name(self) -> str:
        """Name of the engine in use; empty before the first model."""
        return next((served.engine.name for served in self._served.values()), "")

    def status(self) -> list[PolicyStatus]:
        """Lists what serves."""
        return [
            PolicyStatus(policy=policy, in_flight=loaded.in_flight)
            for served in self._served.values()
            for policy, loaded in sorted(served.policies.items())
        ]

    async def open_model(self, model: ModelKey) -> Engine:
        """Returns the engine of a model, started if it is the first use.

        Raises:
            InvalidArgument: there is no usable model of that path.
            EngineError: the engine cannot start; names the folder and the cause.
        """
        async with self._held(model) as served:
            return served.engine

    async def load(self, model: ModelKey, policy: PolicyKey, adapter: AdapterRef | None) -> None:
        """Makes a policy ready to serve. Idempotent; all or nothing.

        Raises:
            EngineError: the engine cannot start or the adapter does not fit.
            NotFound: the adapter's blob is gone.
            DataLoss: the blob is not what the reference says.
        """
        async with self._held(model) as served:
            await self._loaded(served, policy, adapter)
            await self._drop_idle(served)

    def serves(self, model: ModelKey) -> bool:
        """Says whether the model's engine runs."""
        return model in self._served

    @asynccontextmanager
    async def use(
        self, model: ModelKey, policy: PolicyKey, adapter: AdapterRef | None
    ) -> AsyncIterator[Engine]:
        """Holds a policy for one rollout. Errors as `load`."""
        async with self._held(model) as served:
            with _counting(served.wanted, policy):
                loaded = await self._loaded(served, policy, adapter)
                loaded.in_flight += 1
            async with self._counted(served, loaded):
                yield served.engine

    @asynccontextmanager
    async def use_loaded(self, model: ModelKey, policy: PolicyKey) -> AsyncIterator[Engine]:
        """Holds a policy that is loaded.

        Raises:
            NotFound: it is not; LoadPolicy loads it.
        """
        served = self._served.get(model)
        loaded = served.policies.get(policy) if served is not None else None
        if served is None or loaded is None:
            raise NotFound(
                f"policy {policy.run_id} v{policy.version} is not loaded here; call LoadPolicy first"
            )
        loaded.in_flight += 1
        with _counting(self._wanted, model):
            async with self._counted(served, loaded):
                yield served.engine

    @asynccontextmanager
    async def _held(self, model: ModelKey) -> AsyncIterator[_Served]:
        """Counts a use of a model before it waits for anything, so that no other model ends it."""
        with _counting(self._wanted, model):
            yield await self._open(model)

    @asynccontextmanager
    async def _counted(self, served: _Served, loaded: _Loaded) -> AsyncIterator[None]:
        """Gives back one use at the end, and what nobody uses any more with it."""
        try:
            yield
        finally:
            loaded.in_flight -= 1
            if not loaded.in_flight:
                await self._drop_idle(served)

    async def close(self) -> None:
        """Stops all engines."""
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        for served in self._served.values():
            await served.engine.close()
        self._served.clear()

    async def _open(self, model: ModelKey) -> _Served:
        if model in self._served:
            return self._served[model]
        task = self._starting.get(model)
        if task is None:
            task = self._starting[model] = self._outliving(self._start(model))
            task.add_done_callback(lambda _: self._starting.pop(model, None))
        return await asyncio.shield(task)

    async def _start(self, model: ModelKey) -> _Served:
        async with self._start_lock:
            await self._close_unused()
            folder = await self._folder(model)
            engine = self._make_engine()
            await self._guarded(engine, engine.start(folder, model))
            served = self._served[model] = _Served(engine)
            _LOG.info("engine started", extra={"engine": engine.name, "model": model.path})
            return served

    def _outliving(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts work that many wait for: it goes on when one of them runs out of time."""

        def ended(task: "asyncio.Task[T]") -> None:
            self._work.discard(task)
            if not task.cancelled():
                task.exception()  # Seen, though nobody may wait for it any more.

        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(ended)
        return task

    async def _folder(self, model: ModelKey) -> Path:
        try:
            return await asyncio.to_thread(self._resolve, model.path)
        except (ValueError, OSError) as err:
            raise InvalidArgument(f"model {model.path!r} cannot be opened: {err}") from err

    @staticmethod
    async def _guarded(engine: Engine, starting: Awaitable[None]) -> None:
        """Closes an engine that does not start."""
        try:
            await starting
        except BaseException:
            await engine.close()
            raise

    async def _close_unused(self) -> None:
        """Frees models that no rollout uses; memory holds few."""
        for model, served in list(self._served.items()):
            if not self._wanted[model]:
                del self._served[model]
                await served.engine.close()

    async def _loaded(
        self, served: _Served, policy: PolicyKey, adapter: AdapterRef | None
    ) -> _Loaded:
        async def load() -> _Loaded:
            async with served.lock:
                return await self._load(served, policy, adapter)

        return await asyncio.shield(self._outliving(load()))

    async def _load(
        self, served: _Served, policy: PolicyKey, adapter: AdapterRef | None
    ) -> _Loaded:
        self._clock += 1
        loaded = served.policies.get(policy)
        if loaded is not None and loaded.adapter != adapter:
            # A learner that lost its last checkpoint makes a version again, with other weights.
            await self._forget_superseded(served, policy, loaded)
            loaded = None
        if loaded is None:
            folder = None if adapter is None else await self._adapters.get(adapter)
            await served.engine.load_policy(policy, folder)
            loaded = served.policies[policy] = _Loaded(adapter)
            _LOG.info("policy loaded", extra={"run_id": policy.run_id, "version": policy.version})
        loaded.used = self._clock
        return loaded

    async def _forget_superseded(self, served: _Served, policy: PolicyKey, loaded: _Loaded) -> None:
        if loaded.in_flight:
            raise EngineError(
                f"policy {policy.run_id} v{policy.version} still acts from another adapter than "
                "the request names",
                retryable=True,
            )
        del served.policies[policy]
        await served.engine.unload_policy(policy)

    async def _drop_idle(self, served: _Served) -> None:
        """Unloads policies that were replaced, and the longest unused beyond what may stay."""
        async with served.lock:
            newest: dict[str, int] = {}
            for policy in served.policies:
                newest[policy.run_id] = max(policy.version, newest.get(policy.run_id, 0))
            idle = sorted(
                (
                    policy
                    for policy, loaded in served.policies.items()
                    if not loaded.in_flight and not served.wanted[policy]
                ),
                key=lambda policy: served.policies[policy].used,
            )
            replaced = [policy for policy in idle if policy.version < newest[policy.run_id]]
            current = [policy for policy in idle if policy not in replaced]
            for policy in replaced + current[: max(0, len(current) - MAX_IDLE)]:
                loaded = served.policies.pop(policy)
                await served.engine.unload_policy(policy)
                if loaded.adapter is not None:
                    await self._adapters.drop(loaded.adapter)


@contextmanager
def _counting(counter: Counter[K], key: K) -> Iterator[None]:
    """Counts one user of a key for as long as the block runs."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]
