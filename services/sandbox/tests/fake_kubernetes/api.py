"""The API server: discovery, lists, watches, and changes with all the checks that a real one makes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from fake_kubernetes import extensions, rules, schemas
from fake_kubernetes.faults import Fault, drop_connection, status_response
from fake_kubernetes.schemas import Problems
from fake_kubernetes.selectors import by_fields, by_labels
from fake_kubernetes.store import Change, Conflict, Object, Store

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Resource:
    """A kind that the server serves."""

    group: str
    version: str
    plural: str
    kind: str
    check: Callable[[Object], Problems]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def _check_pod(found: Object) -> Problems:
    problems = schemas.check("V1Pod", found)
    if not problems:
        problems = rules.pod_spec(found.get("spec") or {})
    return problems


def _check_config_map(found: Object) -> Problems:
    return schemas.check("V1ConfigMap", found) or rules.config_map(found)


def _model(name: str) -> Callable[[Object], Problems]:
    return lambda found: schemas.check(name, found)


_CORE = (
    Resource("", "v1", "pods", "Pod", _check_pod),
    Resource("", "v1", "configmaps", "ConfigMap", _check_config_map),
    Resource("", "v1", "events", "Event", _model("CoreV1Event")),
    Resource("", "v1", "namespaces", "Namespace", _model("V1Namespace")),
)
_EXTENSIONS = tuple(
    Resource(extensions.GROUP, extensions.VERSION, plural, kind, extensions.check)
    for plural, kind in (
        ("sandboxclaims", "SandboxClaim"),
        ("sandboxtemplates", "SandboxTemplate"),
        ("sandboxwarmpools", "SandboxWarmPool"),
    )
)


class ApiServer:
    """Serves a store over HTTP."""

    def __init__(self, store: Store, *, has_extensions: bool, token: str) -> None:
        self.store = store
        self.faults: list[Fault] = []
        self.max_pods = 10_000
        """Quota of the namespace."""
        self.pod_security = "restricted"
        """Standard that the namespace enforces; anything else enforces none."""
        self.requests: list[tuple[str, str]] = []
        """Method and path of all that was asked."""
        self.asked: list[tuple[str, str, str]] = []
        """The same with the query."""
        self.stalled = asyncio.Event()
        """While it is not set, nothing is answered."""
        self.stalled.set()
        self.on_deleted: Callable[[str], Awaitable[None]] | None = None
        """Awaited with a pod's uid before its deletion is answered; a real server answers at once."""
        self._token = token
        self._resources = {
            resource.plural: resource
            for resource in (*_CORE, *(_EXTENSIONS if has_extensions else ()))
        }
        self._late: set[asyncio.Task[Any]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.asked.append((request.method, request.path, request.query_string))
        await self.stalled.wait()
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return status_response(401, "Unauthorized", "Unauthorized")
        discovery = self._discovery(request.path)
        if discovery is not None:
            return web.json_response(discovery)
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(parts) >= 3 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        resource = self._resources.get(parts[0]) if parts else None
        if resource is None or len(parts) > 2:
            return status_response(404, "NotFound", "the server could not find the resource")
        name = parts[1] if len(parts) == 2 else ""
        for fault in self.faults:
            if fault.takes(request.method, resource.plural):
                return await self._hit(fault, request, resource, namespace, name)
        return await self._do(request, resource, namespace, name)

    async def _hit(
        self, fault: Fault, request: web.Request, resource: Resource, namespace: str, name: str
    ) -> web.StreamResponse:
        if fault.status:
            return status_response(
                fault.status, fault.reason, fault.message, retry_after=fault.retry_after
            )
        body = await request.read()
        if fault.late is not None:
            # On its own: the caller's giving up must not undo what the server has begun.
            task = asyncio.ensure_future(self._do_late(fault, request, resource, namespace, name))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return await asyncio.shield(task)
        assert fault.lose or fault.drop
        if fault.lose:
            self._change(request.method, resource, namespace, name, body, request)
        drop_connection(request)
        return web.Response()

    async def _do_late(
        self, fault: Fault, request: web.Request, resource: Resource, namespace: str, name: str
    ) -> web.StreamResponse:
        body = await request.read()
        assert fault.late is not None
        await fault.late.wait()
        return self._change(request.method, resource, namespace, name, body, request)

    async def _do(
        self, request: web.Request, resource: Resource, namespace: str, name: str
    ) -> web.StreamResponse:
        if request.method == "GET" and not name:
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, resource, namespace)
            return web.json_response(self._list(request, resource, namespace))
        body = await request.read()
        response = self._change(request.method, resource, namespace, name, body, request)
        if request.method == "DELETE" and resource.plural == "pods" and self.on_deleted:
            found = json.loads(response.body)  # type: ignore[arg-type]
            await self.on_deleted(found.get("metadata", {}).get("uid", ""))
        return response

    def _change(
        self,
        method: str,
        resource: Resource,
        namespace: str,
        name: str,
        body: bytes,
        request: web.Request,
    ) -> web.Response:
        if method == "POST":
            return self._create(resource, namespace, json.loads(body))
        if method == "GET":
            return self._one(resource, name, self.store.get(resource.plural, namespace, name))
        if method == "PATCH":
            return self._patch(resource, namespace, name, json.loads(body))
        if method == "DELETE":
            return self._delete(resource, namespace, name, json.loads(body or b"{}"))
        return status_response(405, "MethodNotAllowed", f"no {method} here")

    def _one(self, resource: Resource, name: str, found: Object | None) -> web.Response:
        if found is None:
            text = f'{resource.plural} "{name}" not found'
            return status_response(404, "NotFound", text, details={"name": name})
        return web.json_response(found)

    def _create(self, resource: Resource, namespace: str, body: Object) -> web.Response:
        name = body.get("metadata", {}).get("name", "")
        refusal = self._refusal(resource, body)
        if refusal is not None:
            return refusal
        if self.store.get(resource.plural, namespace, name) is not None:
            text = f'{resource.plural} "{name}" already exists'
            return status_response(409, "AlreadyExists", text, details={"name": name})
        if resource.plural == "pods":
            refusal = self._admission(namespace, body)
            if refusal is not None:
                return refusal
            body = {**body, "status": {"phase": "Pending", "qosClass": "Burstable"}}
        return web.json_response(self.store.create(resource.plural, namespace, body), status=201)

    def _refusal(self, resource: Resource, body: Object) -> web.Response | None:
        problems = rules.metadata(body)
        if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
            problems["apiVersion"] = f"must be {resource.api_version} {resource.kind}"
        else:
            problems |= resource.check(body)
        if not problems:
            return None
        causes = [{"field": path, "message": text} for path, text in problems.items()]
        text = "; ".join(f"{path}: {problem}" for path, problem in problems.items())
        name = body.get("metadata", {}).get("name", "")
        return status_response(
            422,
            "Invalid",
            f'{resource.kind} "{name}" is invalid: {text}',
            details={"name": name, "kind": resource.kind, "causes": causes},
        )

    def _admission(self, namespace: str, body: Object) -> web.Response | None:
        name = body["metadata"]["name"]
        count = len(self.store.all("pods", namespace))
        if count >= self.max_pods:
            text = (
                f'pods "{name}" is forbidden: exceeded quota: sandboxes, requested: pods=1, '
                f"used: pods={count}, limited: pods={self.max_pods}"
            )
            return status_response(403, "Forbidden", text)
        if self.pod_security == "restricted":
            found = rules.violations_of_restricted(body["spec"])
            if found:
                text = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": '
                return status_response(403, "Forbidden", text + ", ".join(found))
        return None

    def _patch(self, resource: Resource, namespace: str, name: str, patch: Object) -> web.Response:
        current = self.store.get(resource.plural, namespace, name)
        if current is None:
            return self._one(resource, name, None)
        merged = _merged(current, patch)
        refusal = self._refusal(resource, merged)
        if refusal is not None:
            return refusal
        if resource.plural == "pods" and merged["spec"] != current["spec"]:
            text = f'Pod "{name}" is invalid: spec: Forbidden: pod updates may not change fields'
            return status_response(422, "Invalid", text)
        if current.get("immutable") and merged.get("data") != current.get("data"):
            text = f'ConfigMap "{name}" is invalid: data: Forbidden: field is immutable'
            return status_response(422, "Invalid", text)
        version = patch.get("metadata", {}).get("resourceVersion", "")

        def change(found: Object) -> None:
            kept = found["metadata"]["resourceVersion"]
            found.clear()
            found.update(_merged(current, patch))
            found["metadata"]["resourceVersion"] = kept

        try:
            found = self.store.update(resource.plural, namespace, name, change, version)
        except Conflict:
            text = (
                f'Operation cannot be fulfilled on {resource.plural} "{name}": the object has been '
                "modified; please apply your changes to the latest version and try again"
            )
            return status_response(409, "Conflict", text)
        return self._one(resource, name, found)

    def _delete(
        self, resource: Resource, namespace: str, name: str, options: Object
    ) -> web.Response:
        problems = schemas.check("V1DeleteOptions", options)
        if problems:
            return status_response(400, "BadRequest", str(problems))
        found = self.store.get(resource.plural, namespace, name)
        wanted = (options.get("preconditions") or {}).get("uid")
        if found is not None and wanted and wanted != found["metadata"]["uid"]:
            return status_response(409, "Conflict", "the UID in the precondition does not match")
        return self._one(resource, name, self.store.delete(resource.plural, namespace, name))

    def _list(self, request: web.Request, resource: Resource, namespace: str) -> Object:
        labels = by_labels(request.query.get("labelSelector", ""))
        fields = by_fields(request.query.get("fieldSelector", ""))
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self.store.version)},
            "items": [
                found
                for found in self.store.all(resource.plural, namespace)
                if labels(found) and fields(found)
            ],
        }

    async def _watch(
        self, request: web.Request, resource: Resource, namespace: str
    ) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if version and version < self.store.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "status": "Failure"}
            text = f"too old resource version: {version} ({self.store.oldest})"
            event = {"type": "ERROR", "object": {**gone, "message": text}}
            await response.write(json.dumps(event).encode() + b"\n")
            return response
        labels = by_labels(request.query.get("labelSelector", ""))
        fields = by_fields(request.query.get("fieldSelector", ""))
        seconds = float(request.query.get("timeoutSeconds", "300"))
        try:
            async with asyncio.timeout(seconds):
                async for change in self._changes(version):
                    found = change.found
                    mine = change.plural == resource.plural and labels(found) and fields(found)
                    if mine and namespace in ("", found["metadata"]["namespace"]):
                        event = {"type": change.what, "object": found}
                        await response.write(json.dumps(event).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            return response
        return response

    async def _changes(self, version: int) -> AsyncIterator[Change]:
        queue = self.store.subscribe()
        try:
            last = version or self.store.version
            for change in self.store.since(last):
                last = change.version
                yield change
            while (change := await queue.get()) is not None:
                if change.version > last:
                    yield change
        finally:
            self.store.unsubscribe(queue)

    def _discovery(self, path: str) -> Object | None:
        if path == "/version":
            return {"major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        groups = {resource.group for resource in self._resources.values()} - {""}
        if path == "/apis":
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(group) for group in sorted(groups)],
            }
        for group in groups:
            if path == f"/apis/{group}":
                return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
            if path == f"/apis/{group}/{extensions.VERSION}":
                return self._resource_list(group, extensions.VERSION)
        return self._resource_list("", "v1") if path == "/api/v1" else None

    def _resource_list(self, group: str, version: str) -> Object:
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": [
                {
                    "name": resource.plural,
                    "singularName": resource.kind.lower(),
                    "namespaced": resource.plural != "namespaces",
                    "kind": resource.kind,
                    "verbs": _VERBS,
                    "shortNames": ["po"] if resource.plural == "pods" else [],
                }
                for resource in self._resources.values()
                if resource.group == group
            ],
        }


def _group(name: str) -> Object:
    version = {"groupVersion": f"{name}/{extensions.VERSION}", "version": extensions.VERSION}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _merged(current: Any, patch: Any) -> Any:
    """Merge as RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(current) if isinstance(current, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
