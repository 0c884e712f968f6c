"""What is kept of a command's output: the head and the tail, never more than the cap."""

from collections import deque


class CappedOutput:
    """Keeps the first and the last half of a cap; everything between is counted and dropped."""

    def __init__(self, cap_bytes: int) -> None:
        """Starts empty; at most `cap_bytes` are ever returned."""
        self._head_cap = cap_bytes - cap_bytes // 2
        self._tail_cap = cap_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take in the next piece."""
        self.total_bytes += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_cap:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_cap:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self.total_bytes > self._head_cap + self._tail_cap

    def content(self) -> bytes:
        """Return what was kept: all of it, or head and tail back to back."""
        tail = b"".join(self._tail)
        return bytes(self._head) + (tail[-self._tail_cap :] if self._tail_cap else b"")
