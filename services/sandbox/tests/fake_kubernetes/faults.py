"""Faults that a test plants: which requests they hit, how often, and what happens to them."""

import asyncio
import json
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Fault:
    """Hits requests of one method and kind.

    `status` answers instead of doing; `lose` does and then drops the connection; `drop` drops it without doing;
    `late` does once it is set and answers then, whether or not anybody still waits.
    """

    method: str
    plural: str
    times: int = 1
    status: int = 0
    message: str = "planted by the test"
    reason: str = ""
    retry_after: str = ""
    lose: bool = False
    drop: bool = False
    late: asyncio.Event | None = None
    hits: int = field(default=0, init=False)

    def takes(self, method: str, plural: str) -> bool:
        """Say whether it hits this request; counts."""
        if self.hits >= self.times or (method, plural) != (self.method, self.plural):
            return False
        self.hits += 1
        return True


def status_response(
    code: int, reason: str, message: str, retry_after: str = "", details: object = None
) -> web.Response:
    """Return a Status object as the API server sends it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    if details is not None:
        body["details"] = details
    headers = {"Retry-After": retry_after} if retry_after else {}
    text = json.dumps(body)
    return web.Response(status=code, text=text, content_type="application/json", headers=headers)


def drop_connection(request: web.Request) -> None:
    """Cut the connection without a word."""
    if request.transport is not None:
        request.transport.abort()
