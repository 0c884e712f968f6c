"""gRPC in front of the manager: tokens and messages in, messages out."""

# grpc's classes are generic in their stubs only.
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from opentelemetry import propagate, trace

from eventbus.subjects import check_run_id
from sandbox import convert
from sandbox.manager import SandboxManager
from sandbox.requests import MAX_FILE_BYTES, Policy, check_command, check_create, check_file
from sandbox.storage.files import check_folder, check_path
from sandbox.storage.snapshots import check_snapshot_id
from sandbox.transfers import Transfers
from sandbox.types import Caller, Chunk, Command, ExecOutcome
from servicekit import attributes
from servicekit.calls import trimmed_timeout
from servicekit.errors import InvalidArgument, Unauthenticated
from servicekit.tokens import current_token

SERVICE_NAME = "hone.sandbox.v1.SandboxService"

_DEFAULT_PAGE = 100
_MAX_PAGE = 1000
_DEFAULT_FILES_PAGE = 1000
_MAX_FILES_PAGE = 10_000

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers the calls of sandbox.proto."""

    def __init__(
        self,
        manager: SandboxManager,
        transfers: Transfers,
        policy: Policy,
        tracer: trace.Tracer,
    ) -> None:
        """Hands everything to `manager`, archives and snapshots to `transfers`."""
        self._manager = manager
        self._transfers = transfers
        self._policy = policy
        self._tracer = tracer

    async def CreateSandbox(
        self, request: pb.CreateSandboxRequest, context: Context
    ) -> pb.CreateSandboxResponse:
        """Make a sandbox, or return the one that lives."""
        caller = _caller()
        with self._span(attributes.SPAN_SANDBOX_CREATE, request.rollout_id) as span:
            spec = convert.create_spec_from_proto(request, self._policy, _trace_parent())
            if spec.snapshot_id:
                check_snapshot_id(spec.snapshot_id)
            check_create(spec, request.template, self._policy)
            check_run_id(request.run_id)
            spec = replace(spec, wait_seconds=trimmed_timeout(None))
            created = await self._manager.create(caller, spec)
            span.set_attribute(attributes.SANDBOX_ID, created.info.sandbox_id)
        return pb.CreateSandboxResponse(
            sandbox=convert.sandbox_to_proto(created.info), created=created.created
        )

    async def StreamExec(
        self, request: pb.StreamExecRequest, context: Context
    ) -> AsyncIterator[pb.StreamExecResponse]:
        """Run a command, output as it comes."""
        caller, spec = _caller(), request.exec
        command = self._command(spec)
        with self._span(attributes.SPAN_SANDBOX_EXEC, spec.rollout_id, spec.sandbox_id) as span:
            events = self._manager.stream(caller, spec.rollout_id, spec.sandbox_id, command)
            async with aclosing(events):  # a call that is cancelled kills its command at once
                async for event in events:
                    if isinstance(event, Chunk):
                        yield pb.StreamExecResponse(chunk=convert.chunk_to_proto(event))
                    else:
                        _note_outcome(span, event)
                        result = convert.outcome_to_proto(event, with_output=False)
                        yield pb.StreamExecResponse(result=result)

    async def Exec(self, request: pb.ExecRequest, context: Context) -> pb.ExecResponse:
        """Run a command, output at the end."""
        caller, spec = _caller(), request.exec
        command = self._command(spec)
        with self._span(attributes.SPAN_SANDBOX_EXEC, spec.rollout_id, spec.sandbox_id) as span:
            outcome = await self._manager.run(caller, spec.rollout_id, spec.sandbox_id, command)
            _note_outcome(span, outcome)
        return pb.ExecResponse(result=convert.outcome_to_proto(outcome, with_output=True))

    async def KillExec(self, request: pb.KillExecRequest, context: Context) -> pb.KillExecResponse:
        """End a running command."""
        await self._manager.kill_exec(
            _caller(), request.rollout_id, request.sandbox_id, request.exec_id
        )
        return pb.KillExecResponse()

    async def WriteFile(
        self, request: pb.WriteFileRequest, context: Context
    ) -> pb.WriteFileResponse:
        """Write a file."""
        caller, file = _caller(), convert.file_from_proto(request.file)
        check_file(file)
        await self._manager.write_file(caller, request.rollout_id, request.sandbox_id, file)
        return pb.WriteFileResponse()

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> pb.ReadFileResponse:
        """Read a part of a file."""
        caller = _caller()
        check_path(request.path, "path")
        if request.offset_bytes < 0 or request.max_bytes < 0:
            raise InvalidArgument("offset_bytes and max_bytes: must not be negative")
        read = await self._manager.read_file(
            caller,
            request.rollout_id,
            request.sandbox_id,
            request.path,
            offset_bytes=request.offset_bytes,
            max_bytes=request.max_bytes,
        )
        return pb.ReadFileResponse(content=read.content, size_bytes=read.size_bytes)

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        """List a folder, in order of name."""
        caller = _caller()
        check_folder(request.path, "path")
        if not 0 <= request.page_size <= _MAX_FILES_PAGE:
            raise InvalidArgument(
                f"page_size: found {request.page_size}; at most {_MAX_FILES_PAGE}"
            )
        after = convert.name_from_token(request.page_token)
        found = await self._manager.list_files(
            caller, request.rollout_id, request.sandbox_id, request.path
        )
        return convert.file_page_to_proto(found, after, request.page_size or _DEFAULT_FILES_PAGE)

    async def StatFile(self, request: pb.StatFileRequest, context: Context) -> pb.StatFileResponse:
        """Say what a path is."""
        caller = _caller()
        check_folder(request.path, "path")
        entry = await self._manager.stat_file(
            caller, request.rollout_id, request.sandbox_id, request.path
        )
        return pb.StatFileResponse(entry=convert.file_entry_to_proto(entry))

    async def UploadTar(
        self, request_iterator: AsyncIterator[pb.UploadTarRequest], context: Context
    ) -> pb.UploadTarResponse:
        """Unpack an archive that comes in pieces."""
        caller = _caller()
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("part") != "target":
            raise InvalidArgument("part: the first message must have the target")
        target = first.target
        check_folder(target.folder, "target.folder")
        size = await self._transfers.upload_tar(
            caller, target.rollout_id, target.sandbox_id, target.folder, _pieces(request_iterator)
        )
        return pb.UploadTarResponse(size_bytes=size)

    async def DownloadTar(
        self, request: pb.DownloadTarRequest, context: Context
    ) -> AsyncIterator[pb.DownloadTarResponse]:
        """Pack a folder or file and send it in pieces."""
        caller = _caller()
        check_folder(request.path, "path")
        events = self._transfers.download_tar(
            caller, request.rollout_id, request.sandbox_id, request.path
        )
        async with aclosing(events):  # a call that is cancelled lets go of its archive at once
            async for event in events:
                yield convert.archive_event_to_proto(event)

    async def CreateSnapshot(
        self, request: pb.CreateSnapshotRequest, context: Context
    ) -> pb.CreateSnapshotResponse:
        """Save a sandbox's file system."""
        caller = _caller()
        check_snapshot_id(request.snapshot_id)
        saved = await self._transfers.create_snapshot(
            caller, request.rollout_id, request.sandbox_id, request.snapshot_id
        )
        return pb.CreateSnapshotResponse(size_bytes=saved.size_bytes, sha256=saved.sha256)

    async def DeleteSnapshot(
        self, request: pb.DeleteSnapshotRequest, context: Context
    ) -> pb.DeleteSnapshotResponse:
        """Remove a snapshot."""
        caller = _caller()
        check_snapshot_id(request.snapshot_id)
        self._transfers.delete_snapshot(caller, request.rollout_id, request.snapshot_id)
        return pb.DeleteSnapshotResponse()

    async def ExtendLifetime(
        self, request: pb.ExtendLifetimeRequest, context: Context
    ) -> pb.ExtendLifetimeResponse:
        """Move the end of the idle lease."""
        caller = _caller()
        seconds = request.idle_timeout.ToNanoseconds() / 1e9
        if not 0 <= seconds <= self._policy.max_lifetime_seconds:
            limit = self._policy.max_lifetime_seconds
            raise InvalidArgument(f"idle_timeout: found {seconds} s; at most {limit:g} s")
        info = self._manager.extend(caller, request.rollout_id, request.sandbox_id, seconds)
        return pb.ExtendLifetimeResponse(
            idle_deadline_time=convert.timestamp(info.idle_deadline_time)
        )

    async def GetSandbox(
        self, request: pb.GetSandboxRequest, context: Context
    ) -> pb.GetSandboxResponse:
        """Say what is known of a sandbox."""
        info = await self._manager.get(_caller(), request.rollout_id, request.sandbox_id)
        return pb.GetSandboxResponse(sandbox=convert.sandbox_to_proto(info))

    async def ListSandboxes(
        self, request: pb.ListSandboxesRequest, context: Context
    ) -> pb.ListSandboxesResponse:
        """List sandboxes, newest first."""
        if request.page_size < 0 or request.page_size > _MAX_PAGE:
            raise InvalidArgument(f"page_size: found {request.page_size}; at most {_MAX_PAGE}")
        found = self._manager.list(_caller(), request.run_id)
        if request.page_token:
            # The token is the last id of the page before; sandboxes made since then come before it.
            ids = [info.sandbox_id for info in found]
            if request.page_token not in ids:
                raise InvalidArgument("page_token: its sandbox is gone; list from the start again")
            found = found[ids.index(request.page_token) + 1 :]
        size = request.page_size or _DEFAULT_PAGE
        page = found[:size]
        return pb.ListSandboxesResponse(
            sandboxes=[convert.sandbox_to_proto(info) for info in page],
            next_page_token=page[-1].sandbox_id if len(found) > size else "",
        )

    async def DestroySandbox(
        self, request: pb.DestroySandboxRequest, context: Context
    ) -> pb.DestroySandboxResponse:
        """End a sandbox."""
        await self._manager.destroy(_caller(), request.rollout_id, request.sandbox_id)
        return pb.DestroySandboxResponse()

    async def DestroyByRun(
        self, request: pb.DestroyByRunRequest, context: Context
    ) -> pb.DestroyByRunResponse:
        """End all sandboxes of a run."""
        count = await self._manager.destroy_by_run(_caller(), request.run_id)
        return pb.DestroyByRunResponse(destroyed_count=count)

    async def GetStats(self, request: pb.GetStatsRequest, context: Context) -> pb.GetStatsResponse:
        """Count; needs no token."""
        return convert.stats_to_proto(self._manager.stats())

    def _command(self, spec: pb.ExecSpec) -> Command:
        command = convert.command_from_proto(spec, self._policy)
        check_command(command, self._policy)
        return command

    def _span(self, name: str, rollout_id: str, sandbox_id: str = "") -> Any:
        """Start a span inside the call's; a call outside any trace makes none, so none lacks its parent."""
        if not trace.get_current_span().get_span_context().is_valid:
            return trace.use_span(trace.INVALID_SPAN)
        named = {attributes.ROLLOUT_ID: rollout_id}
        if sandbox_id:
            named[attributes.SANDBOX_ID] = sandbox_id
        return self._tracer.start_as_current_span(name, attributes=named)


def _caller() -> Caller:
    token = current_token()
    if token is None:
        raise Unauthenticated(
            f"needs a rollout token in the metadata {attributes.TOKEN_METADATA_KEY}"
        )
    return convert.caller_from_token(token)


async def _pieces(messages: AsyncIterator[pb.UploadTarRequest]) -> AsyncIterator[bytes]:
    async for message in messages:
        if message.WhichOneof("part") != "chunk":
            raise InvalidArgument("part: all messages but the first must have a chunk")
        if len(message.chunk) > MAX_FILE_BYTES:
            raise InvalidArgument(
                f"chunk: has {len(message.chunk)} bytes; at most {MAX_FILE_BYTES} fit one message"
            )
        yield message.chunk


def _trace_parent() -> str:
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers.get("traceparent", "")


def _note_outcome(span: trace.Span, outcome: ExecOutcome) -> None:
    span.set_attribute("hone.exec.termination", str(outcome.termination))
    span.set_attribute("hone.exec.exit_code", outcome.exit_code)
