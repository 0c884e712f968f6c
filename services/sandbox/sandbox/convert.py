"""Between protobuf messages and domain types; pure."""

import binascii
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hone.sandbox.v1 import sandbox_pb2 as pb

from sandbox.requests import Policy, fill_limits
from sandbox.rootfs import WORKING_DIR
from sandbox.types import (
    MIB,
    ArchiveEnd,
    BoxFile,
    BoxKey,
    Caller,
    Chunk,
    Command,
    CreateSpec,
    ExecOutcome,
    FileEntry,
    FileKind,
    Limits,
    Purpose,
    Role,
    SandboxInfo,
    Stats,
    Stream,
    Template,
    Termination,
)
from servicekit.errors import InvalidArgument
from servicekit.tokens import RolloutToken

_PURPOSES: Mapping["pb.SandboxPurpose.ValueType", Purpose] = {
    pb.SANDBOX_PURPOSE_AGENT: Purpose.AGENT,
    pb.SANDBOX_PURPOSE_GRADE: Purpose.GRADE,
}
_PURPOSES_OUT = {purpose: number for number, purpose in _PURPOSES.items()}
_STREAMS: Mapping[Stream, "pb.OutputStream.ValueType"] = {
    Stream.STDOUT: pb.OUTPUT_STREAM_STDOUT,
    Stream.STDERR: pb.OUTPUT_STREAM_STDERR,
}
_TERMINATIONS: Mapping[Termination, "pb.Termination.ValueType"] = {
    Termination.EXITED: pb.TERMINATION_EXITED,
    Termination.SIGNALED: pb.TERMINATION_SIGNALED,
    Termination.OOM_KILLED: pb.TERMINATION_OOM_KILLED,
    Termination.TIMED_OUT: pb.TERMINATION_TIMED_OUT,
    Termination.OUTPUT_LIMIT: pb.TERMINATION_OUTPUT_LIMIT,
    Termination.PIDS_LIMIT: pb.TERMINATION_PIDS_LIMIT,
    Termination.SANDBOX_BROKEN_BY_WORKLOAD: pb.TERMINATION_SANDBOX_BROKEN_BY_WORKLOAD,
    Termination.KILLED: pb.TERMINATION_KILLED,
}
_FILE_KINDS: Mapping[FileKind, "pb.FileKind.ValueType"] = {
    FileKind.FILE: pb.FILE_KIND_FILE,
    FileKind.FOLDER: pb.FILE_KIND_FOLDER,
    FileKind.LINK: pb.FILE_KIND_LINK,
    FileKind.OTHER: pb.FILE_KIND_OTHER,
}
_DEFAULT_MODE = 0o644
_FIRST_TIME, _LAST_TIME = -62_135_596_800.0, 253_402_300_799.0
"""What a Timestamp can say; a workload can give its files any time."""
_MAX_PAGE_BYTES = 2 * MIB
"""A page of files ends early rather than be more than a gRPC message may."""


def caller_from_token(token: RolloutToken) -> Caller:
    """Return what a verified token says, as the domain knows it."""
    return Caller(rollout_id=token.rollout_id, epoch=token.epoch, role=Role(token.role))


def create_spec_from_proto(
    request: pb.CreateSandboxRequest, policy: Policy, trace_parent: str
) -> CreateSpec:
    """Return the sandbox that is asked for, defaults filled in; `check_create` refuses an unknown template.

    Raises:
        InvalidArgument: the purpose is not said.
    """
    purpose = _PURPOSES.get(request.purpose)
    if purpose is None:
        text = f"found {request.purpose}; must be SANDBOX_PURPOSE_AGENT or SANDBOX_PURPOSE_GRADE"
        raise InvalidArgument(f"purpose: {text}", violations={"purpose": text})
    template = policy.template(request.template) or Template()
    return CreateSpec(
        key=BoxKey(rollout_id=request.rollout_id, purpose=purpose, sequence=request.sequence),
        run_id=request.run_id,
        template=template,
        limits=limits_from_proto(request.limits, template.limits),
        network_profile=request.network_profile or template.network_profile,
        lifetime_seconds=_seconds(request, "lifetime", policy.default_lifetime_seconds),
        idle_seconds=_seconds(request, "idle_timeout", policy.default_idle_seconds),
        env=dict(request.env),
        files=tuple(file_from_proto(file) for file in request.files),
        trace_parent=trace_parent,
        snapshot_id=request.snapshot_id,
    )


def limits_from_proto(message: pb.SandboxLimits, base: Limits) -> Limits:
    """Return the limits, those of the template for each 0."""
    return fill_limits(
        memory_bytes=message.memory_bytes,
        max_processes=message.max_processes,
        cpus=message.cpus,
        disk_bytes=message.disk_bytes,
        max_inodes=message.max_inodes,
        base=base,
    )


def file_from_proto(message: pb.SandboxFile) -> BoxFile:
    """Return the file."""
    return BoxFile(path=message.path, content=message.content, mode=message.mode or _DEFAULT_MODE)


def command_from_proto(message: pb.ExecSpec, policy: Policy) -> Command:
    """Return the command, defaults filled in."""
    return Command(
        exec_id=message.exec_id,
        argv=tuple(message.argv),
        working_dir=message.working_dir or WORKING_DIR,
        env=dict(message.env),
        stdin=message.stdin,
        timeout_seconds=_seconds(message, "timeout", policy.default_exec_seconds),
        max_output_bytes=message.max_output_bytes or MIB,
        kill_survivors=message.kill_survivors,
    )


def sandbox_to_proto(info: SandboxInfo) -> pb.Sandbox:
    """Return the message of a sandbox."""
    return pb.Sandbox(
        sandbox_id=info.sandbox_id,
        rollout_id=info.key.rollout_id,
        run_id=info.run_id,
        purpose=_PURPOSES_OUT[info.key.purpose],
        backend=info.backend,
        isolation=info.isolation,
        rootfs_digest=info.rootfs_digest,
        create_time=timestamp(info.create_time),
        deadline_time=timestamp(info.deadline_time),
        idle_deadline_time=timestamp(info.idle_deadline_time),
        provision_duration=duration(info.provision_seconds),
        template=info.template,
        warm=info.warm,
        polluted=info.polluted,
    )


def file_entry_to_proto(entry: FileEntry) -> pb.FileEntry:
    """Return the message of what is at a path."""
    return pb.FileEntry(
        name=_shown_name(entry.name),
        kind=_FILE_KINDS[entry.kind],
        size_bytes=entry.size_bytes,
        mode=entry.mode,
        modify_time=timestamp(min(max(entry.modify_time, _FIRST_TIME), _LAST_TIME)),
        link_target=_shown_name(entry.link_target),
    )


def file_page_to_proto(
    entries: Sequence[FileEntry], after: bytes, page_size: int
) -> pb.ListFilesResponse:
    """Return the page of a folder (sorted by the names' bytes) that begins behind a name."""
    names = [os.fsencode(entry.name) for entry in entries]
    begin = bisect_right(names, after) if after else 0
    page, size = pb.ListFilesResponse(), 0
    for position in range(begin, len(entries)):
        message = file_entry_to_proto(entries[position])
        size += message.ByteSize() + 8  # and its frame
        if len(page.entries) == page_size or size > _MAX_PAGE_BYTES:
            page.next_page_token = names[position - 1].hex()
            break
        page.entries.append(message)
    return page


def name_from_token(token: str) -> bytes:
    """Return the last name of the page before.

    Raises:
        InvalidArgument: it is no token of ours.
    """
    try:
        return binascii.unhexlify(token)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            "page_token: not one that ListFiles returned", violations={"page_token": "is unknown"}
        ) from error


def archive_event_to_proto(event: bytes | ArchiveEnd) -> pb.DownloadTarResponse:
    """Return the message of a piece of an archive, or of its end."""
    if isinstance(event, bytes):
        return pb.DownloadTarResponse(chunk=event)
    return pb.DownloadTarResponse(
        end=pb.DownloadTarEnd(size_bytes=event.size_bytes, sha256=event.sha256)
    )


def chunk_to_proto(chunk: Chunk) -> pb.OutputChunk:
    """Return the message of a piece of output."""
    return pb.OutputChunk(stream=_STREAMS[chunk.stream], data=chunk.data)


def outcome_to_proto(outcome: ExecOutcome, *, with_output: bool) -> pb.ExecResult:
    """Return the message of how a command ended; a stream has sent the output before."""
    return pb.ExecResult(
        termination=_TERMINATIONS[outcome.termination],
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        stdout=outcome.stdout if with_output else b"",
        stderr=outcome.stderr if with_output else b"",
        stdout_truncated=outcome.stdout_truncated,
        stderr_truncated=outcome.stderr_truncated,
        output_incomplete=outcome.output_incomplete,
        duration=duration(outcome.duration_seconds),
    )


def stats_to_proto(stats: Stats) -> pb.GetStatsResponse:
    """Return the message of the counts."""
    return pb.GetStatsResponse(
        live_count=stats.live_count,
        expected_count=stats.expected_count,
        created_count=stats.created_count,
        destroyed_count=stats.destroyed_count,
        orphans_reaped_count=stats.orphans_reaped_count,
        backend=stats.backend,
        isolation=stats.isolation,
        create_p50_seconds=stats.create_p50_seconds,
        create_p95_seconds=stats.create_p95_seconds,
        warm_count=stats.warm_count,
        queued_count=stats.queued_count,
        warm_hit_count=stats.warm_hit_count,
        infra_error_rate=stats.infra_error_rate,
        rollout_timeout_rate=stats.rollout_timeout_rate,
        leaked_count=stats.leaked_count,
        polluted_count=stats.polluted_count,
    )


def timestamp(seconds: float) -> Timestamp:
    """Return the message of a time."""
    message = Timestamp()
    message.FromNanoseconds(int(seconds * 1e9))
    return message


def duration(seconds: float) -> Duration:
    """Return the message of a time span."""
    message = Duration()
    message.FromNanoseconds(int(seconds * 1e9))
    return message


def _seconds(message: pb.CreateSandboxRequest | pb.ExecSpec, name: str, default: float) -> float:
    value: Duration = getattr(message, name)
    return value.ToNanoseconds() / 1e9 if message.HasField(name) else default  # type: ignore[arg-type]  # names are literals in the stubs


def _shown_name(name: str) -> str:
    """Return a name as protobuf can carry it: bytes that are no UTF-8 become backslash escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
