"""The creates that are under way: joined by whoever asks for the same sandbox, stopped when nobody wants them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.fleet.entry import Entry
from sandbox.types import BoxKey, CreateSpec
from servicekit.errors import HoneError


@dataclass(slots=True, kw_only=True, eq=False)
class Creation:
    """A create under way; mutable."""

    spec: CreateSpec
    epoch: int
    begin_time: float
    task: "asyncio.Task[Entry] | None" = None
    callers: int = 0
    """How many wait for it."""
    queued: bool = True
    """Nothing has been made for it yet."""
    refusal: HoneError | None = None
    """What its callers are told, where it was cancelled."""


class Creations:
    """Finds creates by key, rollout and run."""

    def __init__(self) -> None:
        """Starts empty."""
        self._by_key: dict[BoxKey, Creation] = {}
        self._by_rollout: dict[str, set[Creation]] = {}

    def of_key(self, key: BoxKey) -> Creation | None:
        """Return the create under way for a key."""
        return self._by_key.get(key)

    def of_rollout(self, rollout_id: str) -> list[Creation]:
        """Return the creates under way for a rollout."""
        return list(self._by_rollout.get(rollout_id, ()))

    def all(self) -> list[Creation]:
        """Return all creates under way."""
        return list(self._by_key.values())

    def begin(self, creation: Creation, start: Callable[[], "asyncio.Task[Entry]"]) -> None:
        """Start a create; it is forgotten when it ends."""
        key = creation.spec.key
        self._by_key[key] = creation
        self._by_rollout.setdefault(key.rollout_id, set()).add(creation)
        creation.task = start()
        creation.task.add_done_callback(lambda _: self._forget(creation))

    async def result(self, creation: Creation) -> Entry:
        """Wait for what it makes.

        Who gives up does not stop what has begun. A create that still waits for its turn leaves the queue with the last
        caller that waits for it.
        """
        assert creation.task is not None
        creation.callers += 1
        try:
            return await asyncio.shield(creation.task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                pass  # the caller itself was cancelled
            elif creation.refusal is not None:
                raise creation.refusal from None
            if creation.callers == 1 and creation.queued:
                self.stop(creation)
            raise
        finally:
            creation.callers -= 1

    def stop(self, creation: Creation, refusal: HoneError | None = None) -> None:
        """Cancel a create, whatever it has made; its callers are told `refusal`."""
        assert creation.task is not None
        self._forget(creation)  # at once: who asks for the same key from here on gets another
        creation.refusal = refusal
        creation.task.cancel()

    def _forget(self, creation: Creation) -> None:
        key = creation.spec.key
        if self._by_key.get(key) is creation:
            del self._by_key[key]
        mates = self._by_rollout.get(key.rollout_id, set())
        mates.discard(creation)
        if not mates:
            self._by_rollout.pop(key.rollout_id, None)


async def ended(creations: list[Creation]) -> None:
    """Wait until creates have come to their end, whichever it is."""
    tasks = [one.task for one in creations if one.task is not None]
    if tasks:
        await asyncio.wait(tasks)
