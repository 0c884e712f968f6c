"""Sandboxes made ahead, per template: they hide what a creation costs from whoever asks.

Each is used once: taken, handed over, destroyed; none comes back. They count against admission like others and give way
to creates that find no room. Making them has the lowest priority, and a backend that fails is left alone for a while.
The pool grows and shrinks on `tick`, not while somebody takes from it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.backends.protocol import Box
from sandbox.fleet.admission import Admission
from sandbox.fleet.maker import Maker
from sandbox.fleet.plans import Plans
from sandbox.fleet.records import Records
from sandbox.fleet.turns import Turns
from sandbox.types import CreateSpec, Template
from servicekit.errors import HoneError

log = logging.getLogger(__name__)

MAX_AGE_SECONDS = 3600.0
"""One that nobody took for this long is replaced: what it was made from may have changed."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_FORGIVEN_SECONDS = 300.0
"""Failures that lie further apart do not add up."""

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmBox:
    """A sandbox that is ready and nobody's."""

    sandbox_id: str
    template: Template
    box: Box
    made_time: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Shelf:
    """What is ready of one template."""

    template: Template
    ready: OrderedDict[str, WarmBox] = field(default_factory=OrderedDict)
    """Oldest first."""
    filling: int = 0
    failures: int = 0
    fail_time: float = 0.0
    pause_until: float = 0.0


class WarmPool:
    """Keeps sandboxes ready."""

    def __init__(
        self,
        *,
        templates: Mapping[str, Template],
        plans: Plans,
        maker: Maker,
        records: Records,
        admission: Admission,
        turns: Turns,
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        """Makes nothing until `open` and the first `tick`.

        Args:
            templates: How many of each are kept ready at all times.
            plans: How many more are about to be needed.
            maker: Makes them.
            records: Is told of what is gone.
            admission: Says whether there is room.
            turns: Making one takes a turn that nobody else wants.
            clock: Seconds since the epoch.
            spawn: Runs work in the background.
        """
        self._shelves = {name: _Shelf(template=one) for name, one in templates.items()}
        self._plans = plans
        self._maker = maker
        self._records = records
        self._admission = admission
        self._turns = turns
        self._clock = clock
        self._spawn = spawn
        self._where: dict[str, _Shelf] = {}
        self._fillers: dict[asyncio.Task[None], None] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._open = False

    @property
    def ready_count(self) -> int:
        """How many can be taken."""
        return len(self._where)

    @property
    def leaving_count(self) -> int:
        """How many are being destroyed."""
        return len(self._leaving)

    def ids(self) -> Iterator[str]:
        """Yield the ids of all that exist."""
        yield from self._where
        yield from self._leaving

    def open(self) -> None:
        """Begin to keep sandboxes ready."""
        self._open = True

    def take(self, spec: CreateSpec) -> WarmBox | None:
        """Take one that is exactly what is asked for; whoever takes it hands it over or ends it."""
        shelf = self._shelves.get(spec.template.name)
        if (
            shelf is None
            or not shelf.ready
            or spec.template != shelf.template
            or spec.limits != shelf.template.limits
            or spec.network_profile != shelf.template.network_profile
            or spec.snapshot_id
        ):
            return None
        sandbox_id, warm = shelf.ready.popitem(last=False)
        del self._where[sandbox_id]
        return warm

    def handed_over(self, warm: WarmBox) -> None:
        """Hear that one was as it should be."""
        self._shelves[warm.template.name].failures = 0

    def spoilt(self, warm: WarmBox, error: str) -> None:
        """Hear that one could not be handed over."""
        self._failed(self._shelves[warm.template.name], error)

    def lost(self, sandbox_id: str) -> bool:
        """Drop one that died; say whether it was of the pool."""
        shelf = self._where.get(sandbox_id)
        if shelf is None:
            return sandbox_id in self._leaving
        self._failed(shelf, "died")
        self._discard(shelf, sandbox_id)
        return True

    async def give_way(self) -> bool:
        """End one, so that there is room for what was asked for; say whether there was any."""
        if self._where:
            sandbox_id, shelf = next(iter(self._where.items()))
            await asyncio.shield(self._discard(shelf, sandbox_id))
            return True
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()), return_when=asyncio.FIRST_COMPLETED)
            return True
        if self._fillers:
            filler, _ = self._fillers.popitem()
            filler.cancel()
            await asyncio.wait([filler])
            return True
        return False

    def tick(self) -> None:
        """Make what is missing and end what is too many or too old."""
        now = self._clock()
        for shelf in self._shelves.values():
            target = self._target(shelf)
            while shelf.ready and (
                len(shelf.ready) > target
                or next(iter(shelf.ready.values())).made_time + MAX_AGE_SECONDS <= now
            ):
                self._discard(shelf, next(iter(shelf.ready)))
            room = max(1, self._turns.parallel // 2) - len(self._fillers)
            for _ in range(min(room, target - len(shelf.ready) - shelf.filling)):
                if self._may_fill(shelf):
                    self._start_filler(shelf)

    async def close(self) -> None:
        """End all that is ready or being made; keep none ready any more."""
        self._open = False
        fillers = list(self._fillers)
        for filler in fillers:
            filler.cancel()
        if fillers:
            await asyncio.wait(fillers)
        for sandbox_id, shelf in list(self._where.items()):
            self._discard(shelf, sandbox_id)
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()))

    def _target(self, shelf: _Shelf) -> int:
        template = shelf.template
        return max(template.warm, self._plans.need(template.name)) if self._open else 0

    def _may_fill(self, shelf: _Shelf) -> bool:
        return (
            self._open
            and self._clock() >= shelf.pause_until
            and len(shelf.ready) + shelf.filling < self._target(shelf)
            and not self._admission.shortage(shelf.template.limits.memory_bytes)
        )

    def _start_filler(self, shelf: _Shelf) -> None:
        task = self._spawn(self._fill(shelf))
        self._fillers[task] = None
        task.add_done_callback(lambda done: self._fillers.pop(done, None))

    async def _fill(self, shelf: _Shelf) -> None:
        """Make one after the other while one is missing."""
        while self._may_fill(shelf):
            memory_bytes = shelf.template.limits.memory_bytes
            self._admission.reserve(memory_bytes)
            shelf.filling += 1
            try:
                async with self._turns.idle_turn():
                    sandbox_id = self._maker.new_id()
                    box = await self._maker.make_ahead(sandbox_id, shelf.template)
            except BaseException as error:  # also when cancelled: the promise goes back
                self._admission.release(memory_bytes)
                if not isinstance(error, HoneError | OSError):
                    raise
                self._failed(shelf, str(error))
                return
            finally:
                shelf.filling -= 1
            shelf.ready[sandbox_id] = WarmBox(
                sandbox_id=sandbox_id, template=shelf.template, box=box, made_time=self._clock()
            )
            self._where[sandbox_id] = shelf

    def _failed(self, shelf: _Shelf, error: str) -> None:
        now = self._clock()
        if now - shelf.fail_time > _FORGIVEN_SECONDS:
            shelf.failures = 0
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(shelf.failures, 30))
        shelf.failures += 1
        shelf.fail_time, shelf.pause_until = now, now + pause
        extra = {"template": shelf.template.name, "error": error, "pause_seconds": pause}
        log.warning("warm pool: a sandbox failed; no more are made for a while", extra=extra)

    def _discard(self, shelf: _Shelf, sandbox_id: str) -> "asyncio.Task[None]":
        warm = shelf.ready.pop(sandbox_id)
        del self._where[sandbox_id]
        task = self._spawn(self._end(warm))
        self._leaving[sandbox_id] = task
        return task

    async def _end(self, warm: WarmBox) -> None:
        try:
            await warm.box.destroy()
        finally:
            self._records.drop(warm.sandbox_id)
            self._admission.release(warm.template.limits.memory_bytes)
            del self._leaving[warm.sandbox_id]
