"""Pull requests of one consumer: several may linger at once, over one inbox.

The client's `fetch` waits for one batch before it asks for the next and recovers from a killed server only at its
timeout. Here messages go straight to a callback, each request ends by itself on the server after `fetch_seconds`,
and a reconnection forgets all requests at once, so that the owner asks again.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from eventbus.jetstream.connection import NatsConnection

_GRACE_SECONDS = 1.0
"""How long after its end a request may still be answered."""

_DRAIN_SECONDS = 2.0

_ENDED = frozenset({"404", "408"})
"""Statuses that end a request and nothing else: no messages, and its time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the reply subject of a delivered message says."""

    stream_sequence: int
    consumer_sequence: int
    delivery_count: int
    pending: int
    """Messages that this consumer has not been given yet."""


def position_of(message: Msg) -> Position:
    """Reads a message's reply subject: 9 tokens from old servers, 11 or more with domain and account."""
    tokens = message.reply.split(".")
    at = 4 if len(tokens) == 9 else 6
    return Position(
        delivery_count=int(tokens[at]),
        stream_sequence=int(tokens[at + 1]),
        consumer_sequence=int(tokens[at + 2]),
        pending=int(tokens[at + 4]),
    )


@dataclass(slots=True)
class _Request:
    """A pull request that lingers on the server."""

    left: int
    deadline: float


class PullInbox:
    """Asks a consumer for messages and hands them to a callback as they come.

    Args:
        connection: To ask over.
        stream: Stream of the consumer.
        consumer: Its name.
        on_message: Takes each message.
        on_change: Called when a request ended, the connection changed, or the consumer is gone.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        consumer: str,
        *,
        on_message: Callable[[Msg], None],
        on_change: Callable[[], None],
    ) -> None:
        """Keeps the parts; `open` subscribes."""
        self._connection = connection
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._on_message = on_message
        self._on_change = on_change
        self._requests: dict[str, _Request] = {}
        self._count = 0
        self._prefix = ""
        self._subscription: Subscription | None = None
        self._unwatch: Callable[[], None] | None = None
        self.gone = ""
        """Why the consumer cannot be asked any more; empty while it can."""

    @property
    def outstanding(self) -> int:
        """Messages asked for that may still come."""
        now = time.monotonic()
        for token in [t for t, r in self._requests.items() if r.deadline < now]:
            del self._requests[token]
        return sum(request.left for request in self._requests.values())

    async def open(self) -> None:
        """Subscribes to the inbox."""
        self._prefix = self._connection.client.new_inbox() + "."
        self._subscription = await self._connection.client.subscribe(
            self._prefix + "*", cb=self._receive
        )
        self._unwatch = self._connection.watch(self._on_connection_change)

    async def close(self) -> None:
        """Unsubscribes; the server then drops what still lingers."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._subscription is not None:
            # Closed or draining, the connection has let go of the subscription by itself.
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def drain(self) -> None:
        """Unsubscribes and hands over what is already on its way, so that nothing given back comes here again."""
        if self._subscription is not None and self._connection.is_connected:
            # Where NATS goes meanwhile there is nothing left to hand over.
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    # The client leaves this one method without annotations.
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
        await self.close()

    async def request(self, batch: int) -> None:
        """Asks for so many more messages."""
        self._count += 1
        token = str(self._count)
        seconds = self._connection.options.fetch_seconds
        self._requests[token] = _Request(batch, time.monotonic() + seconds + _GRACE_SECONDS)
        body = json.dumps({"batch": batch, "expires": int(seconds * 1e9)})
        await self._connection.client.publish(self._next, body.encode(), reply=self._prefix + token)

    async def _receive(self, message: Msg) -> None:
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.reply:
            self._count_down()
            self._on_message(message)
            return
        if status == "100":
            return
        self._requests.pop(message.subject[len(self._prefix) :], None)
        text = message.headers.get("Description", "") if message.headers else ""
        if status not in _ENDED and not text.startswith(("Exceeded Max", "Message Size")):
            self._requests.clear()
            self.gone = f"{status} {text}".strip()
        self._on_change()

    def _count_down(self) -> None:
        for token, request in self._requests.items():
            request.left -= 1
            if request.left <= 0:
                del self._requests[token]
                self._on_change()
            return

    def _on_connection_change(self) -> None:
        self._requests.clear()
        self._on_change()
