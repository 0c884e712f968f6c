"""The live sandboxes by id, by key and by rollout, and those that are being ended."""

from collections.abc import Iterator

from sandbox.fleet.entry import Entry
from sandbox.types import BoxKey


class Table:
    """Finds entries; mutable, owned by the fleet."""

    def __init__(self) -> None:
        """Starts empty."""
        self._by_id: dict[str, Entry] = {}
        self._by_key: dict[BoxKey, Entry] = {}
        self._by_rollout: dict[str, dict[str, Entry]] = {}
        self._dying: dict[str, Entry] = {}

    def __len__(self) -> int:
        """Count what lives or is being ended."""
        return len(self._by_id) + len(self._dying)

    def add(self, entry: Entry) -> None:
        """Put in a sandbox that was made."""
        sandbox_id, key = entry.record.sandbox_id, entry.record.key
        self._by_id[sandbox_id] = entry
        self._by_key[key] = entry
        self._by_rollout.setdefault(key.rollout_id, {})[sandbox_id] = entry

    def begin_end(self, entry: Entry) -> None:
        """Move one to those that are being ended."""
        sandbox_id, key = entry.record.sandbox_id, entry.record.key
        del self._by_id[sandbox_id]
        del self._by_key[key]
        mates = self._by_rollout[key.rollout_id]
        del mates[sandbox_id]
        if not mates:
            del self._by_rollout[key.rollout_id]
        self._dying[sandbox_id] = entry

    def finish_end(self, entry: Entry) -> None:
        """Take out one of which nothing is left."""
        del self._dying[entry.record.sandbox_id]

    def living(self, sandbox_id: str) -> Entry | None:
        """Return a live sandbox."""
        return self._by_id.get(sandbox_id)

    def dying(self, sandbox_id: str) -> Entry | None:
        """Return one that is being ended."""
        return self._dying.get(sandbox_id)

    def of_key(self, key: BoxKey) -> Entry | None:
        """Return the live sandbox of a key."""
        return self._by_key.get(key)

    def of_rollout(self, rollout_id: str) -> list[Entry]:
        """Return the live sandboxes of a rollout."""
        return list(self._by_rollout.get(rollout_id, {}).values())

    def all(self) -> list[Entry]:
        """Return all live sandboxes."""
        return list(self._by_id.values())

    def ending(self) -> list[Entry]:
        """Return all that are being ended."""
        return list(self._dying.values())

    def ids(self) -> Iterator[str]:
        """Yield the ids of all that live or are being ended."""
        yield from self._by_id
        yield from self._dying
