"""Publishes with a bounded window and one inbox for all acknowledgements.

The client's own `publish_async` is not used: its futures never resolve on a server error and stay pending for ever
after the server was killed. Here every acknowledgement that is under way when the connection goes fails at once, and
the event is sent again under the same Nats-Msg-Id as soon as the connection is back.
"""

import asyncio
import json
import random
from collections.abc import Mapping

import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from eventbus.bus import PublishAck
from eventbus.jetstream.connection import NatsConnection
from eventbus.jetstream.retry import ConnectionLost, StreamMissing, persist
from eventbus.jetstream.window import Window
from servicekit.errors import DataLoss


class AckInbox:
    """Sends messages and matches acknowledgements to them, over one subscription."""

    def __init__(self, connection: NatsConnection) -> None:
        """Keeps the connection; `open` subscribes."""
        self._connection = connection
        self._prefix = ""
        self._count = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._subscription: Subscription | None = None
        self._unwatch = connection.watch(self._on_connection_change)

    async def open(self) -> None:
        """Subscribes to the inbox."""
        self._prefix = self._connection.client.new_inbox() + "."
        self._subscription = await self._connection.client.subscribe(
            self._prefix + "*", cb=self._on_ack
        )

    def close(self) -> None:
        """Fails whatever is still waiting."""
        self._unwatch()
        self._fail_all("the event bus is closed")

    async def request(self, subject: str, payload: bytes, headers: dict[str, str]) -> Msg:
        """Sends one message and returns the server's answer.

        Raises:
            ConnectionLost: the connection went.
            TimeoutError: no answer came.
        """
        self._count += 1
        token = str(self._count)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        self._waiting[token] = answer
        timer = loop.call_later(
            self._connection.options.request_timeout_seconds, self._time_out, token
        )
        try:
            await self._connection.client.publish(
                subject, payload, reply=self._prefix + token, headers=headers
            )
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(token, None)

    async def _on_ack(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject[len(self._prefix) :])
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _time_out(self, token: str) -> None:
        answer = self._waiting.get(token)
        if answer is not None and not answer.done():
            answer.set_exception(TimeoutError("no acknowledgement from NATS"))

    def _on_connection_change(self) -> None:
        if not self._connection.is_connected:
            self._fail_all("the connection to NATS went")

    def _fail_all(self, why: str) -> None:
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(ConnectionLost(why))


class Publisher:
    """Adds messages to the stream, each exactly once within the duplicate window."""

    def __init__(self, connection: NatsConnection, rng: random.Random) -> None:
        """Keeps the parts; `open` subscribes."""
        self._connection = connection
        self._rng = rng
        self._inbox = AckInbox(connection)
        self._window = Window(connection.options.publish_window)

    async def open(self) -> None:
        """Makes ready to publish."""
        await self._inbox.open()

    def close(self) -> None:
        """Fails whatever is still waiting."""
        self._inbox.close()

    async def publish(
        self, what: str, subject: str, payload: bytes, headers: Mapping[str, str]
    ) -> PublishAck:
        """Publishes and returns where the message stands.

        Args:
            what: The event, for messages.
            subject: Where to publish.
            payload: The message.
            headers: Must hold Nats-Msg-Id, which makes trying again safe.

        Raises:
            Unavailable: NATS did not acknowledge before the deadline.
            ResourceExhausted: the stream was full until the deadline.
        """
        sent = dict(headers)

        async def once() -> PublishAck:
            return _ack_of(await self._inbox.request(subject, payload, sent))

        async with self._window:
            return await persist(
                self._connection, what, once, rng=self._rng, notices_disconnection=True
            )


def _ack_of(message: Msg) -> PublishAck:
    if message.headers and message.headers.get("Status") == "503":
        raise StreamMissing("no stream takes the subject")
    try:
        answer = json.loads(message.data)
    except ValueError as err:
        raise DataLoss(f"NATS acknowledged with {message.data[:200]!r}, not JSON") from err
    if "error" in answer:
        nats.js.errors.APIError.from_error(answer["error"])
    return PublishAck(sequence=answer["seq"], duplicate=bool(answer.get("duplicate", False)))
