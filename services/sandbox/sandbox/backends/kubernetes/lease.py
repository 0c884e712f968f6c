"""Who lives: each manager holds a ConfigMap that it renews and that owns all it makes.

A manager whose lease is gone or old is dead, and so is every earlier process over the same data folder. Deleting the
lease is the third line of cleaning: the cluster's garbage collector then deletes what it owned.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sandbox.backends.kubernetes import objects
from sandbox.backends.kubernetes.api import (
    CONFIG_MAPS,
    ApiStatus,
    ApiUnreachable,
    Cluster,
    Object,
)
from sandbox.backends.kubernetes.objects import Manager

log = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals per lease time."""
_SKEW_SECONDS = 5.0


class Lease:
    """This manager's sign of life."""

    def __init__(
        self, cluster: Cluster, manager: Manager, lease_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Holds nothing until `take`; `clock` gives seconds since the epoch."""
        self._cluster = cluster
        self._seconds = lease_seconds
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._is_new = False
        """It was made again, and what it owns has not been."""
        self.manager = manager
        """With the lease's uid once it is taken."""
        self.on_made_again: Callable[[], Awaitable[None]] | None = None
        """Called until it succeeds, after somebody deleted the lease: what it owned goes with it."""

    async def take(self) -> None:
        """Make the lease and keep renewing it."""
        await self._make()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def drop(self) -> None:
        """Renew no more, and delete it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        try:
            await self._cluster.delete(CONFIG_MAPS, self.manager.name)
        except (ApiStatus, ApiUnreachable) as error:
            log.warning("lease not deleted; it runs out by itself", extra={"error": str(error)})

    def dead_managers(self, seen: set[tuple[str, str]], leases: list[Object]) -> set[str]:
        """Return which of these managers, as (instance, name), do not live any more."""
        now = self._clock()
        alive = set()
        for lease in leases:
            data = lease.get("data") or {}
            renewed = objects.parse_timestamp(data.get("renewTime", ""))
            seconds = float(data.get("leaseSeconds") or self._seconds)
            if renewed is not None and now - renewed <= seconds + _SKEW_SECONDS:
                alive.add(lease["metadata"]["name"])
        own = self.manager
        return {
            name
            for instance, name in seen
            if name and name != own.name and (instance == own.instance or name not in alive)
        }

    async def _make(self) -> None:
        body = objects.lease(self.manager, self._clock(), self._seconds)
        try:
            made = await self._cluster.create(CONFIG_MAPS, body)
        except ApiUnreachable:  # it may be there all the same
            made = await self._cluster.get(CONFIG_MAPS, self.manager.name)
        self.manager = replace(self.manager, lease_uid=made["metadata"]["uid"])

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            body = objects.lease(self.manager, self._clock(), self._seconds)
            try:
                await self._cluster.patch(CONFIG_MAPS, self.manager.name, {"data": body["data"]})
                await self._make_up()
            except ApiStatus as error:
                log.error("lease not renewed", extra={"error": str(error)})
                if error.status == 404:
                    await self._make_again()
            except ApiUnreachable as error:
                log.warning("lease not renewed", extra={"error": str(error)})

    async def _make_again(self) -> None:
        """Replace a lease that somebody deleted; what it owned is lost, what comes is not."""
        try:
            await self._make()
            self._is_new = True
            await self._make_up()
        except (ApiStatus, ApiUnreachable) as error:
            log.error("lease not made again, or not what it owned", extra={"error": str(error)})

    async def _make_up(self) -> None:
        if self._is_new and self.on_made_again is not None:
            await self.on_made_again()
        self._is_new = False
