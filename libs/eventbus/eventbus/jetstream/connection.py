"""One NATS connection that never gives up, and tells the log and its users when NATS goes and comes back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from eventbus.jetstream.options import BusOptions
from servicekit.errors import Unavailable

_LOG = logging.getLogger("hone.eventbus")

_PING_SECONDS = 5
_LOST_PINGS = 2
_CLOSE_SECONDS = 2


class NatsConnection:
    """A connection with an event for being connected and a count of how often it came back."""

    def __init__(self, url: str, name: str, options: BusOptions) -> None:
        """Keeps where to connect; `open` connects."""
        self.url = url
        self.options = options
        self._name = name
        self._connected = asyncio.Event()
        self._client = Client()
        self._watchers: list[Callable[[], None]] = []
        self._waiting_logged = False
        self._closing = False
        self._closer: asyncio.Task[None] | None = None
        self.repair: Callable[[], Awaitable[None]] | None = None
        """Makes the streams again; called where a request finds that one is missing."""
        self.generation = 0
        """Grows by one with each reconnection: whatever was under way before is gone."""

    @property
    def client(self) -> Client:
        """The client; never None, connected or not."""
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """A JetStream context whose requests wait `request_timeout_seconds`."""
        context: JetStreamContext = self._client.jetstream(
            timeout=self.options.request_timeout_seconds
        )
        return context

    @property
    def is_connected(self) -> bool:
        """Whether the server can be talked to."""
        return self._connected.is_set()

    async def open(self) -> None:
        """Connects, waiting for the server as long as it takes."""
        connecting = asyncio.create_task(self._connect())
        try:
            await asyncio.wait((connecting,))
        except asyncio.CancelledError:
            self._closing = True
            connecting.cancel()
            await asyncio.wait((connecting,), timeout=_CLOSE_SECONDS)
            raise
        try:
            connecting.result()
        except nats.errors.Error as err:
            raise Unavailable(
                f"cannot connect to NATS at {self.url}: {err}", reason="NATS_UNREACHABLE"
            ) from err
        self._waiting_logged = False
        self._connected.set()
        _LOG.info("NATS connected", extra={"nats_url": self.url})

    async def _connect(self) -> None:
        await self._client.connect(
            servers=self.url.split(","),
            name=self._name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            max_reconnect_attempts=-1,
            # Annotated as whole seconds, used as a float.
            reconnect_time_wait=self.options.reconnect_wait_seconds,  # type: ignore[arg-type]
            connect_timeout=2,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=_LOST_PINGS,
        )

    async def close(self) -> None:
        """Sends what is buffered and disconnects."""
        self._closing = True
        self._closer = asyncio.current_task()
        self._connected.clear()
        if self._client.is_connected:
            try:
                await self._client.flush(timeout=_CLOSE_SECONDS)
            except nats.errors.Error as err:
                _LOG.warning("NATS did not take the last bytes", extra={"error": str(err)})
        try:
            await self._client.close()
        except OSError as err:
            # The server is gone, and with it whatever was still to be sent.
            _LOG.info("NATS was gone at closing", extra={"error": repr(err)})
        except asyncio.CancelledError:
            # The client cancels its reconnecting, and with it, at times, the transport that it then waits for.
            if self._closer is not None and self._closer.cancelling():
                raise
            _LOG.info("NATS was gone at closing")

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when the connection goes and when it comes; returns what ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    async def wait_connected(self, timeout_seconds: float | None = None) -> None:
        """Returns once connected.

        Raises:
            TimeoutError: that took too long.
            Unavailable: the bus is closed.
        """
        if self._closing:
            raise Unavailable("the event bus is closed", reason="BUS_CLOSED", retryable=False)
        if self._connected.is_set():
            return
        async with asyncio.timeout(timeout_seconds):
            await self._connected.wait()

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        if not self._closing:
            self._waiting_logged = True
            _LOG.warning("NATS gone, waiting", extra={"nats_url": self.url})
        self._tell()

    async def _on_reconnected(self) -> None:
        self.generation += 1
        self._waiting_logged = False
        self._connected.set()
        _LOG.info("NATS back", extra={"nats_url": self.url, "reconnects": self.generation})
        self._tell()

    async def _on_closed(self) -> None:
        self._connected.clear()
        if not self._closing:
            _LOG.error("NATS connection closed for good", extra={"nats_url": self.url})
        self._tell()

    async def _on_error(self, err: Exception) -> None:
        if self._closing and asyncio.current_task() is not self._closer:
            # Closing cancels the client's connecting task, but wait_for of Python 3.11 swallows a cancellation that
            # meets a refused connection, and the task would try for ever: it is ended from within its next failure.
            raise asyncio.CancelledError
        if self._connected.is_set():
            _LOG.warning("NATS error", extra={"nats_url": self.url, "error": repr(err)})
        elif not self._waiting_logged:
            # One line per outage, not one per try.
            self._waiting_logged = True
            _LOG.warning("waiting for NATS", extra={"nats_url": self.url, "error": repr(err)})

    def _tell(self) -> None:
        for callback in list(self._watchers):
            callback()
