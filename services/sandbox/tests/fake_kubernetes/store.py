"""What the cluster knows: objects, their versions, what changed when, who watches."""

import asyncio
import copy
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

_HISTORY = 5000


class Conflict(Exception):
    """The object changed since the version that the change is based on."""


@dataclass(frozen=True)
class Change:
    """One entry of the history."""

    version: int
    what: str
    plural: str
    found: Object


class Store:
    """Objects by kind and name, one namespace for all."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 100
        self._history: deque[Change] = deque(maxlen=_HISTORY)
        self._oldest = self._version
        self._watchers: set[asyncio.Queue[Change | None]] = set()
        self.listeners: list[Callable[[Change], None]] = []
        """Controllers; told of each change at once."""

    @property
    def version(self) -> int:
        return self._version

    @property
    def oldest(self) -> int:
        """Watches can go on from here."""
        return self._oldest

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((plural, namespace, name))

    def all(self, plural: str, namespace: str = "") -> list[Object]:
        return [
            found
            for (kind, space, _), found in self._objects.items()
            if kind == plural and namespace in ("", space)
        ]

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        found = copy.deepcopy(body)
        metadata = found["metadata"]
        metadata["namespace"] = namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        self._put("ADDED", plural, found)
        return found

    def update(
        self,
        plural: str,
        namespace: str,
        name: str,
        change: Callable[[Object], None],
        version: str = "",
    ) -> Object | None:
        """Change an object in place; None where it is gone."""
        current = self._objects.get((plural, namespace, name))
        if current is None:
            return None
        if version and current["metadata"]["resourceVersion"] != version:
            raise Conflict
        found = copy.deepcopy(current)
        change(found)
        if found == current:
            return current
        self._put("MODIFIED", plural, found)
        return found

    def delete(
        self, plural: str, namespace: str, name: str, *, collect: bool = True
    ) -> Object | None:
        """Delete an object, and, as the garbage collector does sooner or later, what it owned."""
        found = self._objects.pop((plural, namespace, name), None)
        if found is None:
            return None
        gone = copy.deepcopy(found)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell(Change(self._version, "DELETED", plural, gone))
        uid = gone["metadata"]["uid"]
        for (kind, space, owned), other in list(self._objects.items()) if collect else ():
            owners = other["metadata"].get("ownerReferences") or ()
            if owners and all(owner["uid"] == uid for owner in owners):
                self.delete(kind, space, owned)
        return gone

    def forget_history(self) -> None:
        """Let every watch that is behind fail with 410 from here on."""
        self._history.clear()
        self._version += 1
        self._oldest = self._version

    def end_watches(self) -> None:
        """Close the connection of every watch."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def since(self, version: int) -> Iterator[Change]:
        return (change for change in list(self._history) if change.version > version)

    def subscribe(self) -> "asyncio.Queue[Change | None]":
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._watchers.add(queue)
        return queue

    def unsubscribe(self, queue: "asyncio.Queue[Change | None]") -> None:
        self._watchers.discard(queue)

    @property
    def watch_count(self) -> int:
        return len(self._watchers)

    def _put(self, what: str, plural: str, found: Object) -> None:
        metadata = found["metadata"]
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[(plural, metadata["namespace"], metadata["name"])] = found
        self._tell(Change(self._version, what, plural, copy.deepcopy(found)))

    def _tell(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._oldest = self._history[0].version
        self._history.append(change)
        for watcher in self._watchers:
            watcher.put_nowait(change)
        for listener in self.listeners:
            listener(change)


def now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
