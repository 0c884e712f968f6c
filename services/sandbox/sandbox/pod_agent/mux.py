"""Many connections over one pair of pipes, where an agent has no network; used by both sides.

Each frame: four bytes of the connection's number, one of kind, four of length, the payload. A connection whose reader
does not keep up asks the other side to pause, so that it holds up no other one.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable
from typing import Any, cast

HEAD = struct.Struct("!IBI")
MAX_PAYLOAD_BYTES = 64 * 1024
OPEN, DATA, CLOSE, PAUSE, RESUME = range(1, 6)

_BUFFER_BYTES = 256 * 1024
"""Of one connection, read and not yet taken; twice this makes it pause."""


class Broken(Exception):
    """The other side does not keep to the rules."""


class Channel(asyncio.Transport):
    """One connection's transport."""

    def __init__(
        self,
        number: int,
        mux: "Mux",
        protocol: asyncio.StreamReaderProtocol,
        extra: dict[str, Any],
    ) -> None:
        """Belongs to a mux, which knows it by its number."""
        super().__init__(extra)
        self._number = number
        self._mux = mux
        self._protocol = protocol
        self._closed = False
        self._holds: set[str] = set()
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        """Send; see `asyncio.WriteTransport.write`."""
        if not self._closed:
            self._mux.send(self._number, DATA, bytes(data))

    def can_write_eof(self) -> bool:
        """Say that a connection is closed as a whole only."""
        return False

    def is_closing(self) -> bool:
        """Say whether it is closed."""
        return self._closed

    def close(self) -> None:
        """Close it; what was written before arrives."""
        if not self._closed:
            self._mux.send(self._number, CLOSE)
            self.end()

    def abort(self) -> None:
        """Close it; see `close`."""
        self.close()

    def pause_reading(self) -> None:
        """Ask the other side for a pause."""
        if not self._closed:
            self._mux.send(self._number, PAUSE)

    def resume_reading(self) -> None:
        """Ask the other side to go on."""
        if not self._closed:
            self._mux.send(self._number, RESUME)

    def hold(self, why: str) -> None:
        """Let writers wait, for one more reason."""
        if not self._holds:
            self._protocol.pause_writing()
        self._holds.add(why)

    def release(self, why: str) -> None:
        """Take a reason back."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds:
                self._protocol.resume_writing()

    def take(self, data: bytes) -> None:
        """Hand data to the reader."""
        if not self._closed:
            self._protocol.data_received(data)

    def end(self) -> None:
        """Take in that it is closed, by either side."""
        if not self._closed:
            self._closed = True
            self._mux.forget(self._number, self)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class Mux(asyncio.BaseProtocol):
    """Both directions of the pair; also the protocol of the pipe that is written to, to be told when it is full."""

    def __init__(
        self,
        accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object] | None = None,
    ) -> None:
        """Gives each connection that the other side opens to `accept`; without it none is taken."""
        self._accept = accept
        self._channels: dict[int, Channel] = {}
        self._numbers = itertools.count(1)
        self._out: asyncio.WriteTransport | None = None
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the pipe that is written to."""
        self._out = cast(asyncio.WriteTransport, transport)  # uvloop's own is of no asyncio class

    def connection_lost(self, exc: Exception | None) -> None:
        """End every connection: nothing can be sent any more."""
        self._out = None
        self.end_all()

    def pause_writing(self) -> None:
        """Hold all writers up: the pipe is full."""
        self._is_full = True
        for channel in self._channels.values():
            channel.hold("pipe")

    def resume_writing(self) -> None:
        """Let all writers go on."""
        self._is_full = False
        for channel in list(self._channels.values()):
            channel.release("pipe")

    def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            ConnectionError: the pipe is closed.
        """
        if self._out is None:
            raise ConnectionResetError("the pipe to the agent is closed")
        number = next(self._numbers)
        self.send(number, OPEN)
        return self._make(number)

    def send(self, number: int, kind: int, data: bytes = b"") -> None:
        """Send frames."""
        if self._out is None:
            return
        for start in range(0, max(len(data), 1), MAX_PAYLOAD_BYTES):
            piece = data[start : start + MAX_PAYLOAD_BYTES]
            self._out.write(HEAD.pack(number, kind, len(piece)) + piece)

    def forget(self, number: int, channel: Channel) -> None:
        """Take a connection out of the table."""
        if self._channels.get(number) is channel:
            del self._channels[number]

    def end_all(self) -> None:
        """End every connection."""
        for channel in list(self._channels.values()):
            channel.end()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the pipe ends.

        Raises:
            Broken: the other side does not keep to the rules.
        """
        try:
            while True:
                number, kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                if length > MAX_PAYLOAD_BYTES:
                    raise Broken(f"a frame of {length} bytes")
                self._take(number, kind, await reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            self.end_all()

    def _take(self, number: int, kind: int, data: bytes) -> None:
        if kind == OPEN and self._accept is not None:
            self._accept(*self._make(number))
            return
        channel = self._channels.get(number)
        if channel is None:
            return  # it was closed on this side meanwhile
        if kind == DATA:
            channel.take(data)
        elif kind == CLOSE:
            channel.end()
        elif kind == PAUSE:
            channel.hold("reader")
        elif kind == RESUME:
            channel.release("reader")
        else:
            raise Broken(f"a frame of kind {kind}")

    def _make(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_BUFFER_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        extra = {"peername": ("manager", number), "sockname": ("agent", number)}
        channel = Channel(number, self, protocol, extra)
        self._channels[number] = channel
        if self._is_full:
            channel.hold("pipe")
        return reader, asyncio.StreamWriter(channel, protocol, reader, loop)
