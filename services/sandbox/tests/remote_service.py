"""A micro-VM service with the E2B API, over real HTTP on this machine, for tests.

Each of its sandboxes is one of the embedded backend, so commands really run and snapshots really hold files. A `hollow`
service makes sandboxes in which every program ends at once with 0, for bursts. It is strict about keys, tags and
bodies, and a test may have it misbehave: see `Fault`.
"""

import asyncio
import base64
import itertools
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.box import LocalBox
from sandbox.backends.protocol import BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import MIB, BoxFile, BoxSpec, Command, Limits
from servicekit.errors import HoneError

API_KEY = "e2b_0123456789abcdef"
TEMPLATES = ("base", "python")
DOMAIN = "sandboxes.test"

_HEAD = struct.Struct(">BI")
_NEW_FIELDS: dict[str, type] = {
    "templateID": str,
    "timeout": int,
    "metadata": dict,
    "allow_internet_access": bool,
    "autoPause": bool,
}
_RUNNER = """
import base64, json, subprocess, sys, threading
spec = json.load(sys.stdin)
lock = threading.Lock()
def say(**event):
    with lock:
        sys.stdout.write(json.dumps(event) + "\\n")
        sys.stdout.flush()
def copy(pipe, name):
    while data := pipe.read1(65536):
        say(**{name: base64.b64encode(data).decode()})
try:
    process = subprocess.Popen([spec["cmd"], *spec["args"]], env=spec["envs"], cwd="/",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
except OSError as error:
    say(refused=str(error))
    sys.exit()
say(pid=process.pid)
threads = [threading.Thread(target=copy, args=(process.stdout, "stdout")),
           threading.Thread(target=copy, args=(process.stderr, "stderr"))]
for thread in threads: thread.start()
for thread in threads: thread.join()   # the real daemon too waits for the pipes first
say(end=process.wait())
"""
"""Runs inside a sandbox as the real daemon does: first the pipes, then the process."""

_SIGNAL_NAMES = {9: "killed", 11: "segmentation fault", 15: "terminated", 6: "aborted"}


class Fault(Enum):
    """What becomes of one request."""

    RATE_LIMIT = auto()
    """429, with Retry-After: 3."""
    QUOTA = auto()
    """403, and the words say that a quota is used up."""
    REFUSED = auto()
    """401: the key does not hold, or not at present."""
    ERROR = auto()
    """500, nothing done."""
    ERROR_AFTER = auto()
    """Done, and then 500."""
    DROP_AFTER = auto()
    """Done, and then the connection is cut."""
    HANG = auto()
    """Nothing done and no answer, until `release`."""
    LATE = auto()
    """No answer until `release`, then done and answered."""
    NONSENSE = auto()
    """Done, and answered with what is no JSON."""


@dataclass
class FakeVm:
    """A sandbox of the service."""

    vm_id: str
    template: str
    metadata: dict[str, str]
    token: str
    timeout: int
    box: LocalBox | None
    streams: set["asyncio.Task[None]"] = field(default_factory=set)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)


class FakeService:
    """The service's state and its misbehaviour."""

    def __init__(self, local: LocalBackend | None, folder: Path) -> None:
        self.url = ""
        self.vms: dict[str, FakeVm] = {}
        self.snapshots: dict[str, Path] = {}
        self.made_count = 0
        self.requests: list[tuple[str, str]] = []
        self.faults: dict[str, deque[Fault]] = {}
        self.create_times: list[float] = []
        self.page_size = 3
        self.complaints: list[str] = []
        """What a caller did wrong in form; a test ends with none."""
        self.released = asyncio.Event()
        self._local = local
        self._folder = folder
        self._ids = itertools.count(1)

    def misbehave(self, operation: str, *faults: Fault) -> None:
        """Let the next requests of an operation (create, list, delete, extend, get, snapshot) go wrong so."""
        self.faults.setdefault(operation, deque()).extend(faults)

    async def vanish(self, vm_id: str) -> None:
        """End a sandbox as a failing machine does: its streams break, and the service knows it no more."""
        vm = self.vms.pop(vm_id)
        for stream in list(vm.streams):
            stream.cancel()
        if vm.box is not None:
            await vm.box.destroy()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 31)
        app.add_routes(
            [
                web.post("/sandboxes", self._control("create", self._create)),
                web.get("/v2/sandboxes", self._control("list", self._list)),
                web.get("/sandboxes/{vm}", self._control("get", self._get)),
                web.delete("/sandboxes/{vm}", self._control("delete", self._delete)),
                web.post("/sandboxes/{vm}/timeout", self._control("extend", self._extend)),
                web.post("/sandboxes/{vm}/snapshots", self._control("snapshot", self._snapshot)),
                web.delete("/templates/{name}", self._control("forget", self._forget)),
                web.post("/vm/{vm}/process.Process/Start", self._start),
                web.post("/vm/{vm}/files", self._files),
            ]
        )
        return app

    async def close(self) -> None:
        self.released.set()
        for vm_id in list(self.vms):
            await self.vanish(vm_id)

    def _control(
        self, operation: str, act: Callable[[web.Request], Any]
    ) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.requests.append((operation, request.match_info.get("vm", "")))
            if request.headers.get("X-API-Key") != API_KEY:
                return _problem(401, "invalid API key")
            waiting = self.faults.get(operation)
            fault = waiting.popleft() if waiting else None
            if fault is Fault.RATE_LIMIT:
                return _problem(429, "too many requests", {"Retry-After": "3"})
            if fault is Fault.QUOTA:
                return _problem(403, "you have reached the maximum number of concurrent sandboxes")
            if fault is Fault.REFUSED:
                return _problem(401, "invalid API key")
            if fault is Fault.ERROR:
                return _problem(500, "internal error")
            if fault in (Fault.HANG, Fault.LATE):
                # The caller hanging up does not stop the service.
                return await asyncio.shield(asyncio.ensure_future(self._late(fault, act, request)))
            response = await act(request)
            if fault is Fault.ERROR_AFTER:
                return _problem(500, "internal error")
            if fault is Fault.NONSENSE:
                return web.Response(status=201, text="<html>")
            if fault is Fault.DROP_AFTER:
                assert request.transport is not None
                request.transport.abort()
            return response  # type: ignore[no-any-return]

        return handle

    async def _late(
        self, fault: Fault, act: Callable[[web.Request], Any], request: web.Request
    ) -> web.StreamResponse:
        body = await request.read()
        await self.released.wait()
        if fault is Fault.HANG:
            return _problem(504, "gateway timeout")
        request._read_bytes = body  # what was sent is there although the caller may be gone
        return await act(request)  # type: ignore[no-any-return]

    async def _create(self, request: web.Request) -> web.StreamResponse:
        self.create_times.append(asyncio.get_running_loop().time())
        body = await self._body(request, _NEW_FIELDS)
        if body is None:
            return _problem(400, "bad request")
        source = self.snapshots.get(body["templateID"])
        if body["templateID"] not in TEMPLATES and source is None:
            return _problem(404, f"template '{body['templateID']}' not found")
        vm_id = f"i{next(self._ids):019d}"
        box = None
        if self._local is not None:
            spec = BoxSpec(
                sandbox_id=vm_id,
                limits=Limits(memory_bytes=384 * MIB, disk_bytes=96 * MIB, shm_bytes=16 * MIB),
                snapshot=source,
            )
            box = await self._local.create(spec, lambda _: None)
        vm = FakeVm(
            vm_id, body["templateID"], body["metadata"], f"tok-{vm_id}", body["timeout"], box
        )
        self.vms[vm_id] = vm
        self.made_count += 1
        reply = {
            "sandboxID": vm_id,
            "templateID": vm.template,
            "clientID": "c",
            "envdVersion": "0.5.4",
            "envdAccessToken": vm.token,
            "domain": DOMAIN,
        }
        return web.json_response(reply, status=201)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        wanted = dict(parse_qsl(request.query.get("metadata", ""), keep_blank_values=True))
        found = [vm for vm in self.vms.values() if wanted.items() <= vm.metadata.items()]
        start = int(request.query.get("nextToken", "0"))
        end = start + min(self.page_size, int(request.query["limit"]))
        items = [
            {"sandboxID": vm.vm_id, "templateID": vm.template, "metadata": vm.metadata}
            for vm in found[start:end]
        ]
        headers = {"x-next-token": str(end)} if end < len(found) else {}
        return web.json_response(items, headers=headers)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        vm = self.vms.get(request.match_info["vm"])
        return _problem(404, "not found") if vm is None else web.json_response({"state": "running"})

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["vm"] not in self.vms:
            return _problem(404, "not found")
        await self.vanish(request.match_info["vm"])
        return web.Response(status=204)

    async def _extend(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, {"timeout": int})
        vm = self.vms.get(request.match_info["vm"])
        if vm is None or body is None:
            return _problem(404, "not found")
        vm.timeout = body["timeout"]
        return web.Response(status=204)

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, {"name": str, "memory": bool})
        vm = self.vms.get(request.match_info["vm"])
        if vm is None or body is None or vm.box is None:
            return _problem(404, "not found")
        path = self._folder / f"{body['name']}.snapshot"
        await vm.box.snapshot(path)
        self.snapshots[body["name"]] = path
        return web.json_response({"snapshotID": body["name"], "names": [body["name"]]}, status=201)

    async def _forget(self, request: web.Request) -> web.StreamResponse:
        path = self.snapshots.pop(request.match_info["name"], None)
        if path is None:
            return _problem(404, "not found")
        path.unlink()
        return web.Response(status=204)

    async def _body(self, request: web.Request, fields: dict[str, type]) -> dict[str, Any] | None:
        """Return the body if it has exactly these fields."""
        body = json.loads(await request.read())
        wrong = {
            name
            for name in body.keys() | fields.keys()
            if type(body.get(name)) is not fields.get(name)
        }
        tags = body.get("metadata", {})
        if not all(isinstance(key, str) and isinstance(tags[key], str) for key in tags):
            wrong.add("metadata")
        if "timeout" in body and not 1 <= body["timeout"] <= 86_400:
            wrong.add("timeout")
        if wrong or request.content_type != "application/json":
            self.complaints.append(f"{request.method} {request.path}: {sorted(wrong)}")
            return None
        return body  # type: ignore[no-any-return]

    def _vm(self, request: web.Request) -> FakeVm | web.Response:
        vm = self.vms.get(request.match_info["vm"])
        if vm is None:
            return _problem(502, "The sandbox was not found")
        headers = request.headers
        right = (
            headers.get("X-Access-Token") == vm.token
            and headers.get("E2b-Sandbox-Id") == vm.vm_id
            and headers.get("Authorization") == "Basic " + base64.b64encode(b"root:").decode()
        )
        if not right or "X-API-Key" in headers:
            self.complaints.append(f"{request.path}: wrong headers")
            return _problem(401, "unauthorized")
        return vm

    async def _files(self, request: web.Request) -> web.StreamResponse:
        vm = self._vm(request)
        if isinstance(vm, web.Response):
            return vm
        if request.query.get("username") != "root" or not request.query.get("path"):
            self.complaints.append(f"{request.path}: {dict(request.query)}")
            return _problem(400, "bad request")
        part = await (await request.multipart()).next()
        assert part is not None
        if part.name != "file":  # type: ignore[union-attr]
            return _problem(400, "no part called file")
        content = bytes(await part.read())  # type: ignore[union-attr]
        if vm.box is not None:
            try:
                await vm.box.write_file(BoxFile(path=request.query["path"], content=content))
            except HoneError as error:
                status = 507 if error.reason == "DISK_FULL" else 400
                return _problem(status, error.message)
        return web.json_response([{"path": request.query["path"], "type": "file"}])

    async def _start(self, request: web.Request) -> web.StreamResponse:
        vm = self._vm(request)
        if isinstance(vm, web.Response):
            return vm
        data = await request.read()
        flags, length = _HEAD.unpack(data[:5])
        if (
            flags
            or length != len(data) - 5
            or request.content_type != "application/connect+json"
            or request.headers.get("Connect-Protocol-Version") != "1"
        ):
            self.complaints.append(f"{request.path}: not Connect")
            return _problem(415, "unsupported media type")
        message = json.loads(data[5:])
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        working = asyncio.ensure_future(self._run(vm, message["process"], response))
        vm.streams.add(working)
        try:
            await asyncio.wait([working])  # a caller that goes away does not stop the program
        finally:
            vm.streams.discard(working)
        if working.cancelled() or working.exception():
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _run(self, vm: FakeVm, process: dict[str, Any], response: web.StreamResponse) -> None:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        if vm.box is None:
            queue.put_nowait({"pid": 1})
            queue.put_nowait({"end": 0})
            queue.put_nowait(None)
        else:
            running = asyncio.ensure_future(self._run_inside(vm, vm.box, process, queue))
            running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                await self._say(response, event)
        except ConnectionError:
            return

    async def _run_inside(
        self,
        vm: FakeVm,
        box: LocalBox,
        process: dict[str, Any],
        queue: "asyncio.Queue[dict[str, Any] | None]",
    ) -> None:
        rest = b""

        def take(chunk: Any) -> None:
            nonlocal rest
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                queue.put_nowait(json.loads(line))

        command = Command(
            exec_id=f"p{next(vm.numbers)}",
            argv=("/usr/bin/python3", "-IS", "-c", _RUNNER),
            working_dir="/",
            stdin=json.dumps(process).encode(),
            timeout_seconds=600,
            max_output_bytes=1 << 30,
        )
        try:
            outcome = await box.run(command, DEFAULT_ENV, take)
        except BoxLost:
            return
        if outcome.exit_code:
            queue.put_nowait({"refused": outcome.stderr.decode() or str(outcome.termination)})

    async def _say(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        if "refused" in event:
            error = {"error": {"code": "unknown", "message": event["refused"]}}
            await self._send(response, 2, error)
            return
        if "pid" in event:
            await self._send(response, 0, {"event": {"keepalive": {}}})
            told: dict[str, Any] = {"start": {"pid": event["pid"]}}
        elif "end" in event:
            code = event["end"]
            if code < 0:
                name = _SIGNAL_NAMES.get(-code, f"signal {-code}")
                told = {"end": {"exitCode": -1, "status": f"signal: {name}"}}
            else:
                told = {"end": {"exited": True, "status": f"exit status {code}"}}
                if code:
                    told["end"]["exitCode"] = code  # JSON of Connect leaves zeros out
        else:
            told = {"data": event}
        await self._send(response, 0, {"event": told})
        if "end" in event:
            await self._send(response, 2, {})

    @staticmethod
    async def _send(response: web.StreamResponse, flags: int, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        # In two pieces, as a network may deliver it.
        await response.write(_HEAD.pack(flags, len(data))[:3])
        await response.write(_HEAD.pack(flags, len(data))[3:] + data)


@asynccontextmanager
async def running_service(folder: Path, *, hollow: bool = False) -> AsyncIterator[FakeService]:
    """Give a service that listens on 127.0.0.1.

    Raises:
        FailedPrecondition: this machine cannot make the sandboxes behind it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    local = None if hollow else LocalBackend(folder / "local")
    if local is not None:
        await local.start()
    service = FakeService(local, folder)
    runner = web.AppRunner(service.app(), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    service.url = f"http://{address[0]}:{address[1]}"
    try:
        yield service
    finally:
        await service.close()
        await runner.cleanup()
        if local is not None:
            await local.close()


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"code": status, "message": message}, status=status, headers=headers)
