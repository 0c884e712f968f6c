"""The agent's HTTP server: reads a request, checks its token, hands it on."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sandbox.pod_agent import protocol
from sandbox.pod_agent.exec import ExecRequest
from sandbox.pod_agent.execs import Execs
from sandbox.pod_agent.mux import Mux
from sandbox.pod_agent.supervise import Start
from sandbox.pod_agent.workers import OPERATIONS, Workers

_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 30.0
_EXEC_BYTES = 16 * 1024 * 1024
_TEXTS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict"}


@dataclass(frozen=True)
class Request:
    """A request without its body."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    body_bytes: int
    timeout_seconds: float


class TokenLock:
    """Knows who may call: by the digest of a token, which is no secret, or by whoever came first."""

    def __init__(self, digest: str) -> None:
        """Lets nobody in until a token is pinned if `digest` is empty."""
        self._digest = digest

    def pin(self, token: str) -> bool:
        """Take the first caller's token; return whether it is the one that holds."""
        if not self._digest:
            self._digest = _digest(token)
        return self.opens(token)

    def opens(self, token: str) -> bool:
        """Say whether a token is the right one."""
        return bool(self._digest) and hmac.compare_digest(_digest(token), self._digest)


class Server:
    """Serves the protocol."""

    def __init__(
        self, lock: TokenLock, may_pin: bool, execs: Execs, workers: Workers, info: dict[str, Any]
    ) -> None:
        """Serves nothing until `handle` is given connections."""
        self._lock = lock
        self._may_pin = may_pin
        self._execs = execs
        self._workers = workers
        self._info = info

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            if _is_from_inside(writer):
                return  # the pod's own processes have no business here, whatever they know
            try:
                request = await asyncio.wait_for(_read_head(reader), _HEAD_SECONDS)
            except ValueError as error:
                _answer(writer, 400, {"error": str(error)})
                return
            await self._route(request, reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):  # noqa: UP041 - see execs
            return  # the caller is gone; nobody is left to tell
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _route(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        route = (request.method, request.path)
        if route == ("GET", "/healthz"):
            _answer(writer, 200, {})
        elif route == ("PUT", "/v1/token") and self._may_pin:
            _answer(writer, 200 if self._lock.pin(request.token) else 409, {})
        elif not self._lock.opens(request.token):
            _answer(writer, 401, {"error": "the token is not this pod's"})
        elif route == ("GET", "/v1/info"):
            _answer(writer, 200, self._info)
        elif route == ("POST", "/v1/kill"):
            await self._execs.kill(request.query.get("exec_id", ""))
            _answer(writer, 200, {})
        elif route == ("POST", "/v1/exec"):
            await self._exec(request, reader, writer)
        elif route in OPERATIONS:
            _begin(writer)
            await self._workers.run(
                OPERATIONS[route],
                request.query,
                reader,
                request.body_bytes,
                writer,
                request.timeout_seconds,
            )
        else:
            _answer(writer, 404, {"error": f"no {request.method} {request.path} here"})

    async def _exec(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not protocol.LENGTH.size <= request.body_bytes <= _EXEC_BYTES:
            _answer(writer, 400, {"error": f"a body of {request.body_bytes} bytes is no command"})
            return
        wanted = _exec_request(await reader.readexactly(request.body_bytes))
        _begin(writer)
        # From here on the caller has nothing more to say: whatever comes is its end.
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch = asyncio.get_running_loop().create_task(_note_end(reader, gone))
        try:
            writer.write(await self._execs.run(wanted, writer.write, gone))
        finally:
            watch.cancel()


async def _note_end(reader: asyncio.StreamReader, gone: "asyncio.Future[None]") -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
    if not gone.done():
        gone.set_result(None)


async def _read_head(reader: asyncio.StreamReader) -> Request:
    """Read a request up to its body.

    Raises:
        ValueError: it is no request that is understood here.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"a head of more than {_HEAD_BYTES} bytes") from error
    lines = head.decode("latin-1").split("\r\n")
    method, target, *_ = [*lines[0].split(" "), "", ""]
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    url = urlsplit(target)
    return Request(
        method=method,
        path=url.path,
        query=dict(parse_qsl(url.query, keep_blank_values=True, errors="surrogateescape")),
        token=headers.get("authorization", "").partition("Bearer ")[2],
        body_bytes=int(headers.get("content-length", "0")),
        timeout_seconds=float(headers.get("x-timeout", "60")),
    )


def _exec_request(body: bytes) -> ExecRequest:
    (length,) = protocol.LENGTH.unpack_from(body)
    text_end = protocol.LENGTH.size + length
    fields = json.loads(body[protocol.LENGTH.size : text_end])
    return ExecRequest(
        exec_id=fields["exec_id"],
        start=Start(argv=fields["argv"], env=fields["env"], working_dir=fields["working_dir"]),
        timeout_seconds=fields["timeout_seconds"],
        max_output_bytes=fields["max_output_bytes"],
        kill_survivors=fields["kill_survivors"],
        stdin=body[text_end:],
    )


def _is_from_inside(writer: asyncio.StreamWriter) -> bool:
    return bool(writer.get_extra_info("peername")[0] == writer.get_extra_info("sockname")[0])


def _begin(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")


def _answer(writer: asyncio.StreamWriter, status: int, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    writer.write(
        f"HTTP/1.1 {status} {_TEXTS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def describe(identity_uid: int, separate: bool, folders: tuple[str, ...]) -> dict[str, Any]:
    """Return what the agent says of itself."""
    return {
        "is_first_process": os.getpid() == 1,
        "uid": os.getuid(),
        "command_uid": identity_uid,
        "separate_uid": separate,
        "python": sys.version.split()[0],
        "writable_folders": list(folders),
    }


async def serve_pipes(server: Server) -> None:
    """Serve over standard input and output until the manager closes its end; see `mux`."""
    loop = asyncio.get_running_loop()
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(server.handle(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    mux = Mux(accept)
    source, target = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):  # what is written by mistake must not come among the frames
        os.dup2(null, number)
    os.close(null)
    await loop.connect_write_pipe(lambda: mux, os.fdopen(target, "wb", buffering=0))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", buffering=0)
    )
    await mux.serve(reader)


async def serve(
    server: Server, host: str, port: int, on_listening: Callable[[], None] = lambda: None
) -> None:
    """Serve until the process ends."""
    listener = await asyncio.start_server(server.handle, host, port, backlog=512, limit=_HEAD_BYTES)
    on_listening()
    async with listener:
        await listener.serve_forever()
