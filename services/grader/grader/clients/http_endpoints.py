"""Endpoints over HTTP: POST of JSON, answered by JSON.

Redirects are refused, since they would lead past the list of allowed addresses; proxies of the environment are not
used, for the same reason.
"""

import asyncio
import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from grader.clients.addresses import Addresses, uncallable
from grader.clients.endpoints import Message, TryAgain, refused, unreachable, unreadable
from grader.clients.replies import MAX_REPLY_BYTES, ReplyError, read_reply
from grader.instruments.endpoints import Reply

AGAIN_STATUSES = frozenset((408, 425, 429))
"""Of the caller's errors: those that say to come back."""
SHOWN_CHARACTERS = 200
"""Of a refusal's body."""


class HttpTransport:
    """Asks over HTTP and HTTPS."""

    def __init__(self, addresses: Addresses) -> None:
        """Call only what the addresses allow; connect on first use."""
        self._addresses = addresses
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, url: str, message: Message) -> Reply:
        """Ask once.

        Raises:
            TryAgain: the endpoint cannot be reached, or cannot answer now, or its answer is no grade.
            GradingFaultError: it refuses the question, or may not be called.
        """
        try:
            # A literal address never comes to the resolver.
            await self._addresses.of(*_host_and_port(url))
            async with self._opened().post(
                url,
                data=message.body,
                headers={
                    **message.headers,
                    "Content-Type": "application/json",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                },
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=message.timeout_seconds),
            ) as response:
                body = await _read(response, url)
                status, retry_after = response.status, response.headers.get("Retry-After", "")
        except aiohttp.InvalidURL as err:
            raise uncallable(f"{url} cannot be asked: {_said(err)}") from err
        except (aiohttp.ClientError, OSError) as err:
            if isinstance(err, TimeoutError):
                raise
            raise TryAgain(unreachable(f"{url} cannot be asked: {_said(err)}")) from err
        return await _reply(url, status, retry_after, body)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=_Resolver(self._addresses), limit=256)
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                # A question must not depend on what another was answered.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _Resolver(AbstractResolver):
    """Finds allowed addresses only."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return what may be connected to."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._addresses.of(host, port)
        ]

    async def close(self) -> None:
        """Do nothing."""


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    """Return the body; of a refusal as much as is shown."""
    answers = response.status < 300
    limit = MAX_REPLY_BYTES if answers else SHOWN_CHARACTERS
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            response.close()
            if answers:
                raise unreadable(f"{url}: the answer is longer than {limit} bytes")
            break
    return bytes(body)


async def _reply(url: str, status: int, retry_after: str, body: bytes) -> Reply:
    shown = body[:SHOWN_CHARACTERS].decode("utf-8", "replace")
    if status >= 500 or status in AGAIN_STATUSES:
        fault = unreachable(f"{url} answers {status}: {shown}")
        raise TryAgain(fault, after_seconds=_seconds(retry_after), up=True)
    if status >= 400:
        raise refused(f"{url} refuses with {status}: {shown}")
    if status >= 300:
        raise refused(
            f"{url} answers {status}, a redirect, which is not followed; give the url itself"
        )
    try:
        return await asyncio.to_thread(read_reply, body)
    except ReplyError as err:
        raise unreadable(f"{url}: the answer {err}") from err


def _seconds(retry_after: str) -> float | None:
    """Read Retry-After: seconds, or a date."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _said(err: Any) -> str:
    return str(err) or type(err).__name__
