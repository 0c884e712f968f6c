"""Keeps a local copy of the objects of one kind: one list, then one watch, instead of a request per question.

The watch goes on from the last version seen. It is opened again when it ends or breaks; when the server refuses it, for
example because the version is too old (410), everything is listed anew and what has vanished meanwhile is reported as
deleted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sandbox.backends.kubernetes.api import (
    ApiStatus,
    ApiUnreachable,
    Kind,
    Object,
    WatchExpired,
)
from sandbox.backends.kubernetes.pace import Pace

log = logging.getLogger(__name__)

_GONE_REMEMBERED = 10_000


class Source(Protocol):
    """Where objects come from."""

    async def list(self, kind: Kind, selector: str) -> tuple[list[Object], str]:
        """Return all objects and the version to watch from."""
        ...

    def watch(self, kind: Kind, selector: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield changes after a version."""
        ...


class Mirror:
    """The objects of one kind with certain labels, as last heard of."""

    def __init__(
        self,
        source: Source,
        kind: Kind,
        selector: str,
        pace: Pace,
        on_change: Callable[[Object], None],
        on_delete: Callable[[Object], None],
    ) -> None:
        """Follows nothing until `start`; the two are told of each change and each end, in order."""
        self._source = source
        self._kind = kind
        self._selector = selector
        self._pace = pace
        self._on_change = on_change
        self._on_delete = on_delete
        self._objects: dict[str, Object] = {}
        self._gone: dict[str, None] = {}
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self.relist_count = 0

    async def start(self) -> None:
        """List once, then follow."""
        await self._relist()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def all(self) -> list[Object]:
        """Return every object that exists as far as is known."""
        return list(self._objects.values())

    def get(self, name: str) -> Object | None:
        """Return an object by name."""
        return self._objects.get(name)

    def forget(self, name: str) -> None:
        """Note that an object was deleted, without waiting to hear of it."""
        found = self._objects.pop(name, None)
        if found is not None:
            self._bury(found)

    async def _follow(self) -> None:
        failures = 0
        while True:
            before = self._version
            try:
                async for what, found in self._source.watch(
                    self._kind, self._selector, self._version
                ):
                    self._take(what, found)
                failures = 0 if self._version != before else failures + 1
            except WatchExpired:
                self._version = ""
            except (ApiStatus, ApiUnreachable) as error:
                failures = 1 if self._version != before else failures + 1
                log.warning("watch broken", extra={"kind": self._kind.plural, "error": str(error)})
                if isinstance(error, ApiStatus) and error.status != 429:
                    self._version = ""  # perhaps one that this server will never have
            if failures:
                await asyncio.sleep(self._pace.backoff_seconds(failures))
            while not self._version:
                try:
                    await self._relist()
                except (ApiStatus, ApiUnreachable, WatchExpired) as error:
                    failures += 1
                    extra = {"kind": self._kind.plural, "error": str(error)}
                    log.warning("objects cannot be listed", extra=extra)
                    await asyncio.sleep(self._pace.backoff_seconds(failures))

    async def _relist(self) -> None:
        found, self._version = await self._source.list(self._kind, self._selector)
        self.relist_count += 1
        names = {each["metadata"]["name"] for each in found}
        for name in set(self._objects) - names:
            self._remove(self._objects[name])
        for each in found:
            self._put(each)

    def _take(self, what: str, found: Object) -> None:
        self._version = found["metadata"]["resourceVersion"]
        if what in ("ADDED", "MODIFIED"):
            self._put(found)
        elif what == "DELETED":
            self._remove(found)

    def _put(self, found: Object) -> None:
        metadata = found["metadata"]
        if metadata["uid"] in self._gone:
            return  # an old event about an object whose deletion was confirmed
        known = self._objects.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] != metadata["uid"]:
            self._remove(known)
        self._objects[metadata["name"]] = found
        self._on_change(found)

    def _remove(self, found: Object) -> None:
        metadata = found["metadata"]
        if metadata["uid"] in self._gone:
            return
        known = self._objects.get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del self._objects[metadata["name"]]
        self._bury(found)
        self._on_delete(found)

    def _bury(self, found: Object) -> None:
        self._gone[found["metadata"]["uid"]] = None
        while len(self._gone) > _GONE_REMEMBERED:
            del self._gone[next(iter(self._gone))]
