"""The Kubernetes API as the backend needs it: objects as plain dicts, every failure one of two exceptions.

The only file that imports the `kubernetes` package (its asyncio half). Requests are built, signed and sent by the
package; answers are not turned into its model classes, which would cost more than the request.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio import client, config

Object = dict[str, Any]

_POOL_SIZE = 256
_WATCH_SECONDS = 240
_WATCH_SLACK_SECONDS = 30.0
_WATCH_LINE_BYTES = 4 * 1024 * 1024
_MERGE_PATCH = "application/merge-patch+json"
_GONE = 410
_config: Any = config  # not typed


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object by where the API keeps it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """As objects name it."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Kind("", "v1", "pods")
CONFIG_MAPS = Kind("", "v1", "configmaps")


class ApiStatus(Exception):
    """The API server answered, and not with success."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after_seconds: float | None
    ) -> None:
        """Keeps the HTTP status and what the Status object says."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class ApiUnreachable(Exception):
    """No answer came, or half of one: what was asked may have been done or not."""


class WatchExpired(Exception):
    """The watch's resource version is too old; list again."""


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, api: client.ApiClient, namespace: str, request_seconds: float) -> None:
        """Owns the client; `request_seconds` is the deadline of every request but a watch."""
        self._api = api
        self._namespace = namespace
        self._request_seconds = request_seconds

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None, context: str, namespace: str, request_seconds: float
    ) -> "Cluster":
        """Read how to reach the cluster: from a file, or from the pod that this process runs in.

        Raises:
            ValueError: there is no usable configuration.
        """
        settings = client.Configuration()
        # Retrying is the backend's own affair: it knows what may be repeated. (False would mean without end.)
        settings.retries = None
        settings.connection_pool_maxsize = _POOL_SIZE
        try:
            if kubeconfig is not None:
                await _config.load_kube_config(
                    str(kubeconfig), context or None, settings, persist_config=False
                )
            else:
                _config.incluster_config.InClusterConfigLoader(
                    token_filename=_config.incluster_config.SERVICE_TOKEN_FILENAME,
                    cert_filename=_config.incluster_config.SERVICE_CERT_FILENAME,
                ).load_and_set(settings)
        except (_config.ConfigException, OSError) as error:
            raise ValueError(str(error)) from error
        return cls(client.ApiClient(settings), namespace, request_seconds)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API server."""
        url = urlsplit(self._api.configuration.host)
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]  # the package says no types

    async def create(self, kind: Kind, body: Object) -> Object:
        """Make an object; unknown fields are refused."""
        return await self._call("POST", self._path(kind), body, {"fieldValidation": "Strict"})

    async def get(self, kind: Kind, name: str) -> Object:
        """Read an object."""
        return await self._call("GET", self._path(kind, name))

    async def patch(self, kind: Kind, name: str, body: Object) -> Object:
        """Merge into an object; with `metadata.resourceVersion` only if it has not changed."""
        return await self._call("PATCH", self._path(kind, name), body)

    async def delete(self, kind: Kind, name: str, *, uid: str = "") -> None:
        """Remove an object at once; with `uid` only that one."""
        body: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Background",
        }
        if uid:
            body["preconditions"] = {"uid": uid}
        await self._call("DELETE", self._path(kind, name), body)

    async def list(self, kind: Kind, selector: str) -> tuple[list[Object], str]:
        """Return the objects with these labels, and the version to watch from."""
        answer = await self._call("GET", self._path(kind), None, {"labelSelector": selector})
        return answer["items"], answer["metadata"]["resourceVersion"]

    async def has_kind(self, kind: Kind) -> bool:
        """Say whether the cluster serves a kind."""
        try:
            answer = await self._call("GET", f"/apis/{kind.group}/{kind.version}")
        except ApiStatus as error:
            if error.status == 404:
                return False
            raise
        return any(each["name"] == kind.plural for each in answer["resources"])

    async def watch(
        self, kind: Kind, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield what happens after a version as (type, object), until the server ends the watch.

        Raises:
            WatchExpired: the version is too old.
        """
        query = {
            "labelSelector": selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        response = await self._open(
            "GET", self._path(kind), None, query, _WATCH_SECONDS + _WATCH_SLACK_SECONDS
        )
        try:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    found = event["object"]
                    if found.get("code") == _GONE:
                        raise WatchExpired(str(found.get("message", "")))
                    raise ApiStatus(
                        found.get("code", 500),
                        found.get("reason", ""),
                        found.get("message", ""),
                        None,
                    )
                yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, ValueError, KeyError) as error:
            raise ApiUnreachable(f"watch of {kind.plural}: {error!r}") from error
        finally:
            response.close()

    def _path(self, kind: Kind, name: str = "") -> str:
        root = f"/apis/{kind.group}" if kind.group else "/api"
        path = f"{root}/{kind.version}/namespaces/{self._namespace}/{kind.plural}"
        return f"{path}/{name}" if name else path

    async def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: dict[str, str] | None = None,
    ) -> Object:
        try:
            async with asyncio.timeout(self._request_seconds):
                response = await self._open(method, path, body, query or {}, self._request_seconds)
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachable(f"{method} {path}: {error!r}") from error
        try:
            decoded = json.loads(answer)
        except ValueError as error:
            raise ApiUnreachable(f"{method} {path}: the answer is no JSON") from error
        if not isinstance(decoded, dict):
            raise ApiUnreachable(f"{method} {path}: the answer is no object")
        return decoded

    async def _open(
        self, method: str, path: str, body: Object | None, query: dict[str, str], seconds: float
    ) -> aiohttp.ClientResponse:
        """Send a request; return the response, its body unread, if it is a success."""
        headers = {"Accept": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = _MERGE_PATCH
        try:
            request = await self._api.param_serialize(  # reads the token anew where it is a file
                method=method,
                resource_path=path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            wrapped = await self._api.call_api(*request, _request_timeout=seconds)
            response: aiohttp.ClientResponse = wrapped.response
            if response.status >= 300:
                raise _failure(response, await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnreachable(f"{method} {path}: {error!r}") from error
        return response


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield whole lines, whatever their length, up to a bound."""
    pending = bytearray()
    async for data in response.content.iter_any():
        pending += data
        *whole, rest = pending.split(b"\n")
        for line in whole:
            if line.strip():
                yield bytes(line)
        pending = bytearray(rest)
        if len(pending) > _WATCH_LINE_BYTES:
            raise ValueError(f"a watch event of more than {_WATCH_LINE_BYTES} bytes")


def _failure(response: aiohttp.ClientResponse, body: bytes) -> Exception:
    try:
        found = json.loads(body)
        reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = response.reason or "", body[:200].decode(errors="replace")
    if response.status == _GONE:
        return WatchExpired(message)
    return ApiStatus(response.status, reason, message, _retry_after(response))


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return None
