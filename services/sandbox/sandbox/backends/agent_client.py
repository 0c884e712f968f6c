"""The manager's side of the protocol of the agent in a sandbox, on plain asyncio streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sandbox.pod_agent import protocol
from servicekit.errors import BY_CODE, HoneError, Internal

_CONNECT_SECONDS = 5.0
_HEAD_SECONDS = 10.0
_SILENCE_SECONDS = 4 * protocol.BEAT_SECONDS
_HEAD_BYTES = 64 * 1024
_COPY_BYTES = 256 * 1024


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to an agent; raises OSError where there is none."""


class AgentLost(Exception):
    """The agent cannot be reached, or broke off."""


class AgentClient:
    """Calls one sandbox's agent."""

    def __init__(self, host: str, port: int, token: str, connect: Connect | None = None) -> None:
        """Connects anew for each call: by `connect` if given, otherwise over TCP."""
        self._host = host
        self._port = port
        self._token = token
        self._connect = connect

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            OSError: there is none to be had.
        """
        if self._connect is not None:
            return await self._connect()
        return await asyncio.open_connection(self._host, self._port, limit=_HEAD_BYTES)

    async def pin(self) -> None:
        """Make this client's token the agent's, once.

        Raises:
            AgentLost: somebody else came first.
        """
        await self._json("PUT", "/v1/token", {})

    async def info(self) -> dict[str, Any]:
        """Return what the agent says of itself."""
        return await self._json("GET", "/v1/info", {})

    async def kill(self, exec_id: str) -> None:
        """End a running command with all it started."""
        await self._json("POST", "/v1/kill", {"exec_id": exec_id})

    async def execute(
        self, request: dict[str, Any], stdin: bytes, on_output: Callable[[int, bytes], None]
    ) -> dict[str, Any]:
        """Run a command; hand on each piece of output by its frame's kind; return how it ended."""
        body = protocol.exec_body(request, stdin)
        async with _Call(self, "POST", "/v1/exec", {}, len(body)) as call:
            call.feed(_pieces(body))
            async for kind, payload in call.frames(_SILENCE_SECONDS):
                if kind == protocol.END:
                    return _end(payload)
                if kind != protocol.BEAT:
                    on_output(kind, payload)
        raise AgentLost("the answer was cut off")

    async def operate(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        timeout_seconds: float,
        *,
        body: bytes | Path = b"",
        on_data: Callable[[bytes], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Do a file operation; hand on its data; return its end.

        Raises:
            HoneError: as the agent says.
        """
        count = body.stat().st_size if isinstance(body, Path) else len(body)
        async with _Call(self, method, path, query, count, timeout_seconds) as call:
            call.feed(_file_pieces(body) if isinstance(body, Path) else _pieces(body))
            async for kind, payload in call.frames(timeout_seconds + _SILENCE_SECONDS):
                if kind == protocol.END:
                    return _end(payload)
                on_data(payload)
        raise AgentLost("the answer was cut off")

    async def _json(self, method: str, path: str, query: Mapping[str, str | int]) -> dict[str, Any]:
        async with _Call(self, method, path, query, 0) as call:
            text = await call.rest()
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise AgentLost(f"the answer was cut off: {text[:100]!r}") from error
        if not isinstance(answer, dict):
            raise AgentLost(f"the answer is no object: {text[:100]!r}")
        return answer


class _Call:
    """One request on one connection."""

    def __init__(
        self,
        agent: AgentClient,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        body_bytes: int,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._agent = agent
        target = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        self._head = (
            f"{method} {target} HTTP/1.1\r\nHost: {agent._host}\r\n"
            f"Authorization: Bearer {agent._token}\r\nX-Timeout: {timeout_seconds:g}\r\n"
            f"Content-Length: {body_bytes}\r\n\r\n"
        ).encode()
        self._feeding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "_Call":
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._reader, self._writer = await self._agent.connect()
        except OSError as error:
            raise AgentLost(f"no connection: {error!r}") from error
        self._writer.write(self._head)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
        # Not waited for: the peer may be a machine that is gone.
        self._writer.transport.abort()

    def feed(self, pieces: AsyncIterator[bytes]) -> None:
        """Send the body while the answer is awaited."""
        self._feeding = asyncio.get_running_loop().create_task(self._feed(pieces))

    async def frames(self, silence_seconds: float) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the answer's frames to the end of the connection."""
        await self._read_head(max(silence_seconds, _HEAD_SECONDS))
        try:
            while True:
                async with asyncio.timeout(silence_seconds):
                    head = await self._reader.readexactly(protocol.FRAME.size)
                    kind, length = protocol.FRAME.unpack(head)
                    if length > protocol.MAX_FRAME_BYTES * 4:
                        raise AgentLost(f"a frame of {length} bytes")
                    payload = await self._reader.readexactly(length)
                yield kind, payload
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise AgentLost("the answer was cut off") from error
        except OSError as error:
            raise AgentLost(f"{error!r}") from error

    async def rest(self) -> bytes:
        """Return the answer's body whole."""
        await self._read_head(_HEAD_SECONDS)
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                return await self._reader.read(-1)
        except OSError as error:
            raise AgentLost(f"{error!r}") from error

    async def _read_head(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise AgentLost(f"no answer: {error!r}") from error
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise AgentLost(f"the agent answered {head.splitlines()[0].decode(errors='replace')}")

    async def _feed(self, pieces: AsyncIterator[bytes]) -> None:
        try:
            async for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
        except ConnectionError:
            return  # the reading side finds out


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


async def _file_pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _COPY_BYTES):
            yield piece


def _end(payload: bytes) -> dict[str, Any]:
    found = json.loads(payload)
    assert isinstance(found, dict)
    error = found.get("error")
    if error is None:
        return found
    raise _typed(error)


def _typed(error: dict[str, Any]) -> HoneError:
    kind = BY_CODE.get(error["code"], Internal)
    return kind(
        error["message"],
        reason=error["reason"],
        retryable=error["retryable"],
        attributable=error["attributable"],
    )
