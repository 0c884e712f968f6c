"""Deletes objects until it is certain that they are gone, whatever the API server does meanwhile."""

import asyncio
import logging
from collections.abc import Callable

from sandbox.backends.kubernetes.api import ApiStatus, ApiUnreachable, Cluster, Kind
from sandbox.backends.kubernetes.pace import Pace

log = logging.getLogger(__name__)

_ATTEMPTS_TOLD = 5


class Graveyard:
    """Every deletion under way."""

    def __init__(self, cluster: Cluster, pace: Pace, on_gone: Callable[[Kind, str], None]) -> None:
        """`on_gone` is told of each object when the API server has confirmed it."""
        self._cluster = cluster
        self._pace = pace
        self._on_gone = on_gone
        self._tasks: dict[tuple[Kind, str], asyncio.Task[None]] = {}

    def bury(self, kind: Kind, name: str) -> asyncio.Task[None]:
        """Delete an object; one that is not there, or being deleted here already, is no error."""
        task = self._tasks.get((kind, name))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._delete(kind, name))
            self._tasks[(kind, name)] = task
            task.add_done_callback(lambda _: self._tasks.pop((kind, name), None))
        return task

    async def settle(self, seconds: float) -> int:
        """Wait until all is deleted, but not longer than this; return how many are left."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        left = [task for task in self._tasks.values() if not task.done()]
        return len(left)

    async def close(self) -> None:
        """Give up what is left; ownership and deadlines clear it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _delete(self, kind: Kind, name: str) -> None:
        attempt = 0
        while True:
            try:
                await self._cluster.delete(kind, name)
                break
            except ApiStatus as error:
                if error.status == 404:
                    break
                wait = error.retry_after_seconds
                text = str(error)
            except ApiUnreachable as error:
                wait, text = None, str(error)
            attempt += 1
            if attempt == _ATTEMPTS_TOLD:
                log.error("object cannot be deleted yet", extra={"object": name, "error": text})
            await asyncio.sleep(self._pace.backoff_seconds(attempt) if wait is None else wait)
        self._on_gone(kind, name)
