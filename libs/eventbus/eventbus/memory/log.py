"""A stream in memory: ordered, deduplicating, bounded, with new events refused when it is full."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eventbus import subjects
from eventbus.bus import PublishAck


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored event."""

    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str]


class MemoryLog:
    """What one NATS server would hold.

    Args:
        max_bytes: Room; 0 means without limit.
        duplicate_window_seconds: How long an event id is known.
    """

    def __init__(self, *, max_bytes: int, duplicate_window_seconds: float) -> None:
        """Starts empty."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self.last_sequence = 0
        self._window = duplicate_window_seconds
        self._entries: dict[int, Entry] = {}
        self._known: dict[str, tuple[int, float]] = {}
        self._watchers: list[Callable[[], None]] = []

    @property
    def first_sequence(self) -> int:
        """First sequence held; one after the last if there is none."""
        return next(iter(self._entries), self.last_sequence + 1)

    def add(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PublishAck | None:
        """Stores an event, or finds it; returns None if there is no room."""
        now = asyncio.get_running_loop().time()
        message_id = headers["Nats-Msg-Id"]
        known = self._known.get(message_id)
        if known is not None and now - known[1] < self._window:
            return PublishAck(sequence=known[0], duplicate=True)
        size = _size(subject, data)
        if self.max_bytes and self.bytes + size > self.max_bytes:
            return None
        self.last_sequence += 1
        entry = Entry(
            sequence=self.last_sequence, subject=subject, data=data, headers=dict(headers)
        )
        self._entries[entry.sequence] = entry
        self._known[message_id] = (entry.sequence, now)
        self.bytes += size
        self._tell()
        return PublishAck(sequence=entry.sequence, duplicate=False)

    def get(self, sequence: int) -> Entry | None:
        """Returns a stored event."""
        return self._entries.get(sequence)

    def after(self, sequence: int, filters: Sequence[str]) -> Entry | None:
        """Returns the first event after a sequence that passes the filters."""
        for candidate in range(max(sequence + 1, self.first_sequence), self.last_sequence + 1):
            entry = self._entries.get(candidate)
            if entry is not None and subjects.matches(entry.subject, filters):
                return entry
        return None

    def purge(self, filters: Sequence[str]) -> list[Entry]:
        """Removes and returns what passes the filters."""
        gone = [e for e in self._entries.values() if subjects.matches(e.subject, filters)]
        for entry in gone:
            del self._entries[entry.sequence]
            self.bytes -= _size(entry.subject, entry.data)
        self._tell()
        return gone

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when something was added or purged; returns what ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _tell(self) -> None:
        for callback in list(self._watchers):
            callback()


def _size(subject: str, data: bytes) -> int:
    return len(subject) + len(data)
