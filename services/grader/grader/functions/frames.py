"""Messages between the grader and its function workers: JSON behind its length."""

import json
from typing import Any, BinaryIO

LENGTH_BYTES = 4
MAX_ANSWER_BYTES = 1 << 20


def encode(message: Any) -> bytes:
    """Return a message as bytes."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read(stream: BinaryIO) -> Any:
    """Return the next message; None at the end of the stream."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    body = stream.read(int.from_bytes(head, "big"))
    return json.loads(body) if body else None
