"""The control plane of a micro-VM service with the E2B API, over REST: each call with a deadline.

What the service answers becomes a typed error here, and what it does not answer becomes `Uncertain`: the call may have
been carried out. Nothing is tried again here. The API key appears in one header and nowhere else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from servicekit.errors import FailedPrecondition, ResourceExhausted, Unavailable

_PAGE = 100
_SHOWN_CHARACTERS = 200
_DEFAULT_RETRY_SECONDS = 1.0
_MAX_REPLY_BYTES = 8 * 1024 * 1024
_REQUEST_TIMEOUT = HTTPStatus.REQUEST_TIMEOUT
_QUOTA_WORDS = ("quota", "limit", "concurrent")


class Uncertain(Unavailable):
    """The call got no answer, or a broken one: it may have been carried out, or may be yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """A sandbox that the service has made."""

    remote_id: str
    template_id: str
    domain: str
    """Under which it is reached; empty where the service names none."""
    access_token: str = field(repr=False)
    """For the sandbox itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVm:
    """A sandbox that the service says exists."""

    remote_id: str
    metadata: Mapping[str, str]


class RemoteApi:
    """Calls the service."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        url: str,
        api_key: str,
        call_seconds: float,
        create_seconds: float,
    ) -> None:
        """Calls `url` with the key; no call takes longer than its deadline."""
        self._session = session
        self._url = url.rstrip("/")
        self._api_key = api_key.encode()
        self._headers = {"X-API-Key": api_key}
        self._call_seconds = call_seconds
        self._create_seconds = create_seconds

    async def create(
        self, *, template: str, metadata: Mapping[str, str], seconds: int, internet: bool
    ) -> Vm:
        """Make a sandbox that ends by itself after so many seconds.

        Raises:
            Uncertain: it may have been made.
            ResourceExhausted: there is no room, or we ask too fast.
            FailedPrecondition: it never can be made.
        """
        body = {
            "templateID": template,
            "timeout": seconds,
            "metadata": dict(metadata),
            "allow_internet_access": internet,
            "autoPause": False,
        }
        what = f"making a sandbox of template {template!r}"
        reply = await self._send(
            "POST", "/sandboxes", what, body=body, seconds=self._create_seconds
        )
        found = reply.content(what)
        return Vm(
            remote_id=_text(found, "sandboxID", what),
            template_id=_text(found, "templateID", what),
            domain=found.get("domain") or "",
            access_token=found.get("envdAccessToken") or "",
        )

    async def list(self, metadata: Mapping[str, str]) -> list[ListedVm]:
        """List all sandboxes that bear these tags."""
        what, found, token = "listing sandboxes", list[ListedVm](), ""
        query = {"metadata": urlencode(metadata), "limit": str(_PAGE)}
        while True:
            page = query | ({"nextToken": token} if token else {})
            reply = await self._send("GET", "/v2/sandboxes", what, params=page)
            for item in reply.content(what, list):
                tags = item.get("metadata") if isinstance(item, dict) else None
                remote_id = _text(item, "sandboxID", what)
                found.append(ListedVm(remote_id=remote_id, metadata=tags or {}))
            token = reply.next_token
            if not token:
                return found

    async def exists(self, remote_id: str) -> bool:
        """Say whether a sandbox still exists."""
        reply = await self._send("GET", _path(remote_id), what := "looking at a sandbox")
        return not reply.is_missing(what)

    async def delete(self, remote_id: str) -> None:
        """End a sandbox; one that is gone is no error."""
        reply = await self._send("DELETE", _path(remote_id), what := "ending a sandbox")
        reply.is_missing(what)

    async def extend(self, remote_id: str, seconds: int) -> bool:
        """Let a sandbox end so many seconds from now; return whether it still exists."""
        path, what = f"{_path(remote_id)}/timeout", "extending a sandbox"
        return not (await self._send("POST", path, what, body={"timeout": seconds})).is_missing(
            what
        )

    async def snapshot(self, remote_id: str, name: str) -> str | None:
        """Save a sandbox's file system under a name; return its id, or None if the sandbox is gone."""
        path, what = f"{_path(remote_id)}/snapshots", "saving a sandbox"
        body = {"name": name, "memory": False}
        reply = await self._send("POST", path, what, body=body, seconds=self._create_seconds)
        return None if reply.is_missing(what) else _text(reply.content(what), "snapshotID", what)

    async def delete_snapshot(self, name: str) -> None:
        """Remove a snapshot; one that is gone is no error. The service keeps them as templates."""
        path, what = f"/templates/{quote(name, safe='')}", "removing a snapshot"
        (await self._send("DELETE", path, what)).is_missing(what)

    async def _send(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> "_Reply":
        """Return what the service answered, good or bad.

        Raises:
            Uncertain: no answer came, or one that leaves it open what was done.
        """
        limit = seconds or self._call_seconds
        try:
            async with self._session.request(
                method,
                self._url + path,
                json=body,
                params=params,
                headers=self._headers,
                allow_redirects=False,  # the key goes to this address alone
                timeout=aiohttp.ClientTimeout(total=limit),
            ) as response:
                text = await _whole(response.content, what)
                text = text.replace(self._api_key, b"...")  # services repeat what they refuse
                reply = _Reply(response.status, response.headers, text)
        except TimeoutError as error:
            raise Uncertain(
                f"{what}: the service did not answer within {limit:g} s", reason="REMOTE_TIMEOUT"
            ) from error
        except aiohttp.ClientError as error:
            raise Uncertain(f"{what}: {type(error).__name__}: {error}") from error
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status == _REQUEST_TIMEOUT:
            raise Uncertain(f"{what}: the service answered {reply.described}")
        return reply


class _Reply:
    """An answer of the service."""

    def __init__(self, status: int, headers: Mapping[str, str], text: bytes) -> None:
        self.status = status
        self.next_token = headers.get("x-next-token", "")
        self._retry_after = headers.get("Retry-After", "")
        self._text = text

    @property
    def described(self) -> str:
        """The status and the service's own words, short enough for a message."""
        try:
            words = str(json.loads(self._text)["message"])
        except (ValueError, KeyError, TypeError):
            words = self._text.decode(errors="replace")
        shown = "".join(c if c.isprintable() else " " for c in words[:_SHOWN_CHARACTERS])
        return f"{self.status} {shown}".strip()

    def is_missing(self, what: str) -> bool:
        """Say whether the thing is not there.

        Raises:
            HoneError: something else is wrong.
        """
        if self.status == HTTPStatus.NOT_FOUND:
            return True
        self._check(what)
        return False

    def content(self, what: str, kind: type = dict) -> Any:
        """Return the body of a good answer.

        Raises:
            HoneError: the answer is not good.
        """
        self._check(what)
        try:
            found = json.loads(self._text)
        except ValueError as error:
            raise Uncertain(f"{what}: the answer is no JSON: {self.described}") from error
        if not isinstance(found, kind):
            raise Uncertain(f"{what}: the answer is no {kind.__name__}: {self.described}")
        return found

    def _check(self, what: str) -> None:
        if HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES:
            return
        text = f"{what}: the service answered {self.described}"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS or (
            self.status == HTTPStatus.FORBIDDEN
            and any(word in self.described.lower() for word in _QUOTA_WORDS)
        ):
            raise ResourceExhausted(
                text, reason="REMOTE_LIMIT", retry_after_seconds=self._retry_seconds()
            )
        infra = self.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        raise FailedPrecondition(
            text + ("; see remote.api_key_file" if infra else ""),
            reason="REMOTE_REFUSED",
            attributable="infra" if infra else "client",
        )

    def _retry_seconds(self) -> float:
        try:
            return max(0.0, float(self._retry_after))
        except ValueError:
            return _DEFAULT_RETRY_SECONDS


async def _whole(content: aiohttp.StreamReader, what: str) -> bytes:
    """Read an answer to its end: one read gives no more than what has come so far."""
    text = bytearray()
    async for piece in content.iter_any():
        text += piece
        if len(text) > _MAX_REPLY_BYTES:
            raise Uncertain(f"{what}: the answer has more than {_MAX_REPLY_BYTES} bytes")
    return bytes(text)


def _path(remote_id: str) -> str:
    return f"/sandboxes/{quote(remote_id, safe='')}"


def _text(found: Any, name: str, what: str) -> str:
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, str) or not value:
        raise Uncertain(f"{what}: the answer has no {name}")
    return value
