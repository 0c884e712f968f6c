"""What the agent and the manager say to each other; used by both sides.

HTTP/1.1, one request per connection. Every answer but an error before the work has begun is 200 with a body of frames
until the connection closes: one byte of kind, four of length, the payload. The last frame is END with a JSON object; a
body that ends without it was cut off.

    GET  /healthz                         no token; the pod's readiness probe
    PUT  /v1/token                        the first caller's token holds from then on; only with --pin
    GET  /v1/info
    POST /v1/exec                         body: length and JSON of an exec request, then its standard input
    POST /v1/kill?exec_id=
    GET  /v1/file?path=&offset=&max=      PUT /v1/file?path=&mode=
    GET  /v1/list?path=                   GET /v1/stat?path=
    GET  /v1/tar?path=&max=               PUT /v1/tar?folder=
    GET  /v1/snapshot                     PUT /v1/snapshot
"""

import json
import struct
from typing import Any

PORT = 8730

FRAME = struct.Struct("!BI")
LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 4 * 1024 * 1024

STDOUT, STDERR, STDOUT_TAIL, STDERR_TAIL, BEAT, DATA, END = range(1, 8)

BEAT_SECONDS = 5.0
"""While a command is silent, a frame this often says that the agent lives."""

SHA256_DIGITS = 64


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return FRAME.pack(kind, len(payload)) + payload


def end_frame(**fields: Any) -> bytes:
    """Return the last frame of a body."""
    return frame(END, json.dumps(fields).encode())


def exec_body(request: dict[str, Any], stdin: bytes) -> bytes:
    """Return the body of an exec request."""
    text = json.dumps(request).encode()
    return LENGTH.pack(len(text)) + text + stdin
