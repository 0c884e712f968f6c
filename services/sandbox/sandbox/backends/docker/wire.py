"""The calls of the Docker Engine API that stream: a command's output and input, events, and what a path is.

These need the bare connection, with its halves closed apart and nothing lost between the head of the answer and the
first output; the Docker SDK gives that only through private attributes. Everything else goes through the SDK, in
`engine.py`. Plain sockets only: a daemon behind TLS or SSH is reached through a forwarded socket.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from sandbox.types import Stream
from servicekit.errors import FailedPrecondition, Unavailable

_BUFFER_BYTES = 1024 * 1024
_MAX_BODY_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
_FRAME_HEAD_BYTES = 8
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_OK = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The head of an answer, and the connection for what follows."""

    status: int
    headers: Mapping[str, str]
    """Names in small letters."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def message(self) -> str:
        """Read the daemon's words about an error."""
        length = min(int(self.headers.get("content-length", "0") or 0), _MAX_BODY_BYTES)
        text = (await self.reader.readexactly(length)).decode(errors="replace")
        try:
            return str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            return text.strip()


class Wire:
    """Opens connections to one daemon."""

    def __init__(self, host: str, seconds: float) -> None:
        """Each step up to the head of the answer may take `seconds`.

        Raises:
            FailedPrecondition: `host` is no unix:// or plain tcp:// address.
        """
        parts = urlsplit(host)
        if parts.scheme not in ("unix", "tcp") or not (parts.path or parts.port):
            raise FailedPrecondition(
                f"docker.host {host!r}: must be unix:///path/to/docker.sock or tcp://ADDRESS:PORT; forward a "
                "daemon behind TLS or SSH to a local socket, for example ssh -L /tmp/docker.sock:/var/run/docker.sock"
            )
        self._parts = parts
        self._host = host
        self._seconds = seconds

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        upgrade: bool = False,
    ) -> Reply:
        """Send a request and read the head of its answer; the caller closes the connection.

        Raises:
            Unavailable: the daemon cannot be reached, or does not answer in time.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        # HTTP/1.0 has no chunks: what follows the head is the stream itself. Only an upgrade needs 1.1.
        lines = [f"{method} {target} HTTP/{'1.1' if upgrade else '1.0'}", "Host: docker"]
        content = b""
        if body is not None:
            content = json.dumps(body).encode()
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        if upgrade:
            lines += ["Connection: Upgrade", "Upgrade: tcp"]
        head = "\r\n".join([*lines, "", ""]).encode()
        writer = None
        try:
            async with asyncio.timeout(self._seconds):
                reader, writer = await self._connect()
                writer.write(head + content)
                await writer.drain()
                answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(answer[0].split(" ", 2)[1])
        except BaseException as error:  # also when cancelled: the connection is nobody's
            if writer is not None:
                writer.close()
            if isinstance(error, OSError | EOFError | TimeoutError | ValueError | IndexError):
                what = f"{type(error).__name__} {error}".strip()
                raise Unavailable(
                    f"the Docker daemon at {self._host}: {method} {path}: {what}"
                ) from error
            raise
        pairs = (line.partition(":") for line in answer[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Reply(status=status, headers=headers, reader=reader, writer=writer)

    async def events(
        self, filters: Mapping[str, list[str]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield first an empty event, once the daemon listens, then each event, until the connection ends.

        Raises:
            Unavailable: the daemon cannot be reached, or breaks off.
        """
        reply = await self.request("GET", "/events", query={"filters": json.dumps(filters)})
        with contextlib.closing(reply.writer):
            try:
                if reply.status >= _OK:
                    raise Unavailable(f"the Docker daemon gives no events: {await reply.message()}")
                yield {}
                while line := await reply.reader.readline():
                    yield json.loads(line)
            except (OSError, EOFError, ValueError) as error:
                raise Unavailable(f"the Docker daemon's events broke off: {error}") from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._parts.scheme == "unix":
            return await asyncio.open_unix_connection(self._parts.path, limit=_BUFFER_BYTES)
        return await asyncio.open_connection(
            self._parts.hostname, self._parts.port, limit=_BUFFER_BYTES
        )


class ExecStream:
    """The output and input of one command."""

    def __init__(self, reply: Reply) -> None:
        """Takes over an upgraded connection."""
        self._reader = reply.reader
        self._writer = reply.writer

    async def read(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield output as it comes, until the daemon closes the stream.

        Raises:
            Unavailable: the connection broke; more was to come.
        """
        try:
            while True:
                head = await self._reader.readexactly(_FRAME_HEAD_BYTES)
                stream = _STREAMS.get(head[0], Stream.STDOUT)
                left = int.from_bytes(head[4:], "big")
                while left:
                    data = await self._reader.read(min(left, _READ_BYTES))
                    if not data:
                        raise ConnectionResetError("in the middle of a frame")
                    left -= len(data)
                    yield stream, data
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Unavailable(
                    "a command's output broke off in the middle of a frame"
                ) from error
        except OSError as error:
            raise Unavailable(f"a command's output broke off: {error}") from error

    async def feed(self, data: bytes) -> None:
        """Write the input and close it; a command that does not read it is no error."""
        with contextlib.suppress(OSError):
            if data:
                self._writer.write(data)
                await self._writer.drain()
            self._writer.write_eof()

    def close(self) -> None:
        """Close the connection; the command is not ended by it."""
        self._writer.close()
