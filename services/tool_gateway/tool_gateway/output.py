"""Keeps what a model is told within its limit."""

MAX_CONTENT_BYTES = 32 * 1024
"""Of one result; longer text keeps its head and tail."""


def clip(text: str, limit: int = MAX_CONTENT_BYTES) -> str:
    """Return text of at most `limit` bytes of UTF-8, with its middle left out if need be."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    note = f"\n[... {len(data) - limit} bytes left out ...]\n".encode()
    # The note takes room of its own, so a little more than it says is left out.
    room = limit - len(note)
    head, tail = room * 2 // 3, room - room * 2 // 3
    return (
        data[:head].decode("utf-8", "ignore")
        + note.decode()
        + data[-tail:].decode("utf-8", "ignore")
    )
