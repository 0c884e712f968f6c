"""The daemon inside a remote sandbox (E2B's envd): starting programs over Connect, and uploading files.

Connect's streams are messages with a five-byte head each: one byte of flags, four of length; the last one says how the
stream ended. Both are used in their JSON form, which every version of envd speaks and which needs no generated code.
"""

import base64
import binascii
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

ENVD_PORT = 49983

_HEAD = struct.Struct(">BI")
_COMPRESSED = 0x01
_END_OF_STREAM = 0x02
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_PING_SECONDS = 30
_SILENCE_SECONDS = 90.0
"""Longest time without even a keep-alive on a stream; then the connection is dead."""

_UPLOAD_BYTES_PER_SECOND = 256 * 1024
"""The slowest upload that is waited for."""

_SHOWN_CHARACTERS = 300


class StreamBroken(Exception):
    """The connection or the sandbox is gone, or talks nonsense: what became of the call is not known."""


class StartRefused(Exception):
    """The daemon could not start the program; says why."""


class DiskFull(Exception):
    """The sandbox's disk has no room for the file."""


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of its output."""

    is_stderr: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """It ended, and its pipes are closed."""

    exited: bool
    exit_code: int
    status: str
    """For people, for example `signal: killed`."""


class Envd:
    """Talks to one sandbox."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        url: str,
        remote_id: str,
        access_token: str,
        user: str,
        call_seconds: float,
    ) -> None:
        """Reaches the daemon at `url`; programs and files are `user`'s."""
        self._session = session
        self._url = url.rstrip("/")
        self._user = user
        self._call_seconds = call_seconds
        self._headers = {
            "E2b-Sandbox-Id": remote_id,
            "E2b-Sandbox-Port": str(ENVD_PORT),
            "Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode(),
        }
        if access_token:
            self._headers["X-Access-Token"] = access_token

    @asynccontextmanager
    async def start(
        self, argv: Sequence[str], env: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Started | Output | Ended]]:
        """Start a program and give its events; leaving the block ends the listening, not the program.

        Raises:
            StartRefused: it was not started.
            StreamBroken: nobody knows.
        """
        process = {"cmd": argv[0], "args": list(argv[1:]), "envs": dict(env)}
        message = json.dumps({"process": process, "stdin": False}).encode()
        headers = self._headers | {
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": str(_PING_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._call_seconds, sock_read=_SILENCE_SECONDS
        )
        try:
            async with self._session.post(
                f"{self._url}/process.Process/Start",
                data=_HEAD.pack(0, len(message)) + message,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise StreamBroken(f"the sandbox answered {await _described(response)}")
                yield _events(response.content)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StreamBroken(f"{type(error).__name__}: {error}") from error

    async def upload(self, path: str, content: bytes | Path) -> None:
        """Write a file; parents are made. Content that lies on disk is sent from there.

        Raises:
            DiskFull: the sandbox has no room.
            StreamBroken: it is not known what became of it.
        """
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        seconds = self._call_seconds + size / _UPLOAD_BYTES_PER_SECOND
        if isinstance(content, bytes):
            await self._upload(path, content, seconds)
        else:
            with content.open("rb") as file:
                await self._upload(path, file, seconds)

    async def _upload(self, path: str, source: Any, seconds: float) -> None:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("file", source, filename="file", content_type="application/octet-stream")
        try:
            async with self._session.post(
                f"{self._url}/files",
                params={"path": path, "username": self._user},
                data=form,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                if response.status == HTTPStatus.INSUFFICIENT_STORAGE:
                    raise DiskFull(await _described(response))
                if response.status != HTTPStatus.OK:
                    raise StreamBroken(
                        f"uploading: the sandbox answered {await _described(response)}"
                    )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StreamBroken(f"uploading: {type(error).__name__}: {error}") from error


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[Started | Output | Ended]:
    while True:
        try:
            flags, length = _HEAD.unpack(await stream.readexactly(_HEAD.size))
            if length > _MAX_MESSAGE_BYTES or flags & _COMPRESSED:
                raise StreamBroken(f"a message of {length} bytes, flags {flags}")
            found = json.loads(await stream.readexactly(length))
        except (EOFError, ValueError) as error:  # also when the stream just stops
            raise StreamBroken(f"the stream stopped: {error}") from error
        if flags & _END_OF_STREAM:
            _raise_end(found)
            return
        event = _event(found)
        if event is not None:
            yield event


def _event(message: Any) -> Started | Output | Ended | None:
    """Return what a message tells; None for a keep-alive, and for what a newer daemon adds."""
    try:
        event = message["event"]
        if "start" in event:
            return Started(int(event["start"]["pid"]))
        if "data" in event:
            data = event["data"]
            if "stdout" not in data and "stderr" not in data:
                return None
            is_stderr = "stderr" in data
            text = data["stderr" if is_stderr else "stdout"]
            return Output(is_stderr, base64.b64decode(text, validate=True))
        if "end" in event:
            end = event["end"]  # JSON leaves out what is zero
            return Ended(
                bool(end.get("exited", False)),
                int(end.get("exitCode", 0)),
                str(end.get("status", "")),
            )
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise StreamBroken(f"a message is not understood: {error}") from error
    return None


def _raise_end(found: Any) -> None:
    error = found.get("error") if isinstance(found, dict) else None
    if not error:
        return
    code, text = str(error.get("code", "")), str(error.get("message", ""))[:_SHOWN_CHARACTERS]
    if code in ("unavailable", "canceled", "deadline_exceeded", "unauthenticated", "unimplemented"):
        raise StreamBroken(f"{code}: {text}")
    raise StartRefused(f"{code}: {text}")


async def _described(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(_SHOWN_CHARACTERS)).decode(errors="replace")
    return f"{response.status} {''.join(c if c.isprintable() else ' ' for c in text)}".strip()
