"""The Docker daemon as the backend uses it: the one file that imports the Docker SDK.

Blocking calls run in a pool of threads of their own, each with a deadline; the pool's size bounds what the daemon is
asked at once. Errors become typed: what the daemon cannot do at present is `Unavailable`, what it says of a request is
`Refused` with its status, for the caller to judge.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import docker
import docker.errors
import requests

from sandbox.backends.docker.wire import ExecStream, Wire
from servicekit.errors import FailedPrecondition, HoneError, OutOfRange, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK_BYTES = 1024 * 1024
_OK = 300
_NOT_FOUND = 404
_CONFLICT = 409
_OVERLOADED = 429
_BROKEN = 500
_UPGRADED = (101, 200)


class Refused(Exception):
    """The daemon refuses a request; says why."""

    def __init__(self, what: str, status: int, message: str) -> None:
        """Keeps the daemon's status and words."""
        super().__init__(f"{what}: {message} (HTTP {status})")
        self.status = status
        self.message = message


class Missing(Refused):
    """What the request names is not there."""


class Engine:
    """Calls to one daemon."""

    def __init__(self, host: str, *, seconds: float, threads: int) -> None:
        """Connects to nothing yet; a call may take `seconds`, twice that with its time in the queue."""
        self._host = host
        self._seconds = seconds
        self._wire = Wire(host, seconds)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="docker")
        self._threads = threads
        self._client: Any = None

    async def connect(self) -> dict[str, Any]:
        """Reach the daemon; return what it says of itself.

        Raises:
            FailedPrecondition: no daemon answers there.
        """
        try:
            self._client = await self.call("connect", self._make_client)
            info: dict[str, Any] = await self.call("info", self._client.info)
        except (HoneError, Refused) as error:
            raise FailedPrecondition(
                f"no Docker daemon at {self._host}: {error}; start one, let this user reach its socket, or set "
                "HONE_SANDBOX_DOCKER__HOST",
                reason="ISOLATION_UNAVAILABLE",
                attributable="infra",
            ) from error
        return info

    @property
    def sdk(self) -> Any:
        """The SDK's client; its methods go through `call`."""
        assert self._client is not None
        return self._client

    async def call(
        self, what: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Make a blocking call of the SDK.

        Raises:
            Refused, Missing: the daemon says no.
            Unavailable: it cannot be reached, is overloaded or broken, or took too long.
        """
        work = functools.partial(function, *args, **kwargs)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            async with asyncio.timeout(2 * self._seconds):
                return await future
        except TimeoutError as error:
            raise Unavailable(f"the Docker daemon did not answer in time: {what}") from error
        except docker.errors.APIError as error:
            raise _typed(what, error) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise Unavailable(f"the Docker daemon at {self._host}: {what}: {error}") from error

    async def start_exec(self, exec_id: str) -> ExecStream:
        """Start a command that was created; return its streams.

        Raises:
            Refused, Missing, Unavailable: as `call`.
        """
        reply = await self._wire.request(
            "POST", f"/exec/{exec_id}/start", body={"Detach": False, "Tty": False}, upgrade=True
        )
        if reply.status not in _UPGRADED:
            try:
                raise _judged("start a command", reply.status, await reply.message())
            finally:
                reply.writer.close()
        return ExecStream(reply)

    async def limit_processes(self, container: str, limit: int) -> None:
        """Change how many processes a container may have, which the SDK has no call for.

        Raises:
            Refused, Missing, Unavailable: as `call`.
        """
        reply = await self._wire.request(
            "POST", f"/containers/{container}/update", body={"PidsLimit": limit}
        )
        try:
            if reply.status >= _OK:
                raise _judged("limit processes", reply.status, await reply.message())
        finally:
            reply.writer.close()

    async def stat(self, container: str, path: str) -> str:
        """Return what the daemon says of a path, still encoded; the last part of the path may be a link.

        Raises:
            Missing: nothing is there, or the container is gone.
            Refused, Unavailable: as `call`.
        """
        reply = await self._wire.request(
            "HEAD", f"/containers/{container}/archive", query={"path": path}
        )
        reply.writer.close()
        if reply.status >= _BROKEN:  # only the call with a body says why
            await self.call(f"stat {path}", self._client.get_archive, container, path)
        if reply.status >= _OK:
            raise _judged(f"stat {path}", reply.status, "no such path")
        return reply.headers.get("x-docker-container-path-stat", "")

    async def fetch(self, container: str, path: str, target: Path, max_bytes: int) -> None:
        """Have the daemon pack a path into a file here.

        Raises:
            OutOfRange: it would be larger.
            Refused, Missing, Unavailable: as `call`.
        """
        await self.call(f"pack {path}", self._fetch, container, path, target, max_bytes)

    async def send(self, container: str, folder: str, archive: Path) -> None:
        """Have the daemon unpack a file from here below a folder that exists.

        Raises:
            Refused, Missing, Unavailable: as `call`.
        """
        await self.call(f"unpack to {folder}", self._send, container, folder, archive)

    def events(self, label: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what happens to containers with a label; see `Wire.events`."""
        return self._wire.events({"type": ["container"], "label": [label]})

    def close(self) -> None:
        """Let go of the daemon."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    def _make_client(self) -> Any:
        return docker.APIClient(
            base_url=self._host,
            version="auto",
            timeout=self._seconds,
            max_pool_size=self._threads,
        )

    def _fetch(self, container: str, path: str, target: Path, max_bytes: int) -> None:
        chunks: Iterator[bytes] = self._client.get_archive(container, path, _CHUNK_BYTES)[0]
        size = 0
        with target.open("wb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise OutOfRange(f"{path}: its archive is larger than {max_bytes} bytes")
                file.write(chunk)

    def _send(self, container: str, folder: str, archive: Path) -> None:
        with archive.open("rb") as file:
            self._client.put_archive(container, folder, file)


def labelled(label: str) -> Mapping[str, list[str]]:
    """Return the filter that selects what bears a label."""
    return {"label": [label]}


def _typed(what: str, error: Any) -> Exception:
    return _judged(what, error.status_code or _BROKEN, str(error.explanation or error))


def _judged(what: str, status: int, message: str) -> Exception:
    if status == _NOT_FOUND:
        return Missing(what, status, message)
    if status == _OVERLOADED or status >= _BROKEN:
        return Unavailable(f"the Docker daemon: {what}: {message} (HTTP {status})")
    return Refused(what, status, message)
