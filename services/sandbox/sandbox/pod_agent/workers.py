"""Runs a file operation in a forked child, as the user of the commands, with its body and answer on two pipes.

The agent itself never touches the pod's files: an operation that hangs, or works on more than memory holds, is the
child's affair, and a caller that goes away or a time-out ends the child.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NoReturn

from sandbox.pod_agent import archives, files, protocol
from sandbox.pod_agent.reaper import Reaper
from sandbox.pod_agent.supervise import Identity, become
from servicekit.errors import FailedPrecondition, HoneError, Internal, InvalidArgument, Unavailable

_PIPE_BYTES = 256 * 1024
_FIRST_FREE = 3
_MAX_DESCRIPTORS = min(65536, os.sysconf("SC_OPEN_MAX"))
"""Where there is no call to close a range (gVisor), each costs."""

Query = Mapping[str, str]
Send = Callable[[bytes], None]
Operation = Callable[[Query, BinaryIO, Send, tuple[str, ...]], dict[str, Any]]
"""Takes the query, the request's body, where data of the answer goes, and the writable folders; returns the end."""


def _read(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    content, size = files.read(query["path"], int(query["offset"]), int(query["max"]))
    send(content)
    return {"size_bytes": size}


def _write(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    files.write(query["path"], body.read(), int(query["mode"]))
    return {}


def _list(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    return {"entries": files.list_entries(query["path"])}


def _stat(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    return {"entry": files.stat_entry(query["path"])}


def _pack(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    return {"size_bytes": archives.pack(query["path"], int(query["max"]), send)}


def _unpack(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    return {"entry_count": archives.unpack(query["folder"], body)}


def _save(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    return {"size_bytes": archives.pack_folders(folders, send)}


def _restore(query: Query, body: BinaryIO, send: Send, folders: tuple[str, ...]) -> dict[str, Any]:
    only = tuple(folder.lstrip("/") for folder in folders)
    return {"entry_count": archives.unpack("/", body, only)}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/file"): _read,
    ("PUT", "/v1/file"): _write,
    ("GET", "/v1/list"): _list,
    ("GET", "/v1/stat"): _stat,
    ("GET", "/v1/tar"): _pack,
    ("PUT", "/v1/tar"): _unpack,
    ("GET", "/v1/snapshot"): _save,
    ("PUT", "/v1/snapshot"): _restore,
}


class Workers:
    """Starts workers and moves their bytes."""

    def __init__(self, identity: Identity, reaper: Reaper, folders: tuple[str, ...]) -> None:
        """Works on `folders` where an operation is about all that can be written."""
        self._identity = identity
        self._reaper = reaper
        self._folders = folders

    async def run(
        self,
        operation: Operation,
        query: Query,
        reader: asyncio.StreamReader,
        body_bytes: int,
        writer: asyncio.StreamWriter,
        timeout_seconds: float,
    ) -> None:
        """Run one operation from request to answer."""
        loop = asyncio.get_running_loop()
        body_reader, body_writer = os.pipe()
        answer_reader, answer_writer = os.pipe()
        try:
            pid = os.fork()
            if not pid:
                _work(operation, query, body_reader, answer_writer, self._identity, self._folders)
        except OSError as error:
            os.close(body_writer)
            os.close(answer_reader)
            writer.write(protocol.end_frame(error=_as_dict(_no_process(error))))
            return
        finally:
            os.close(body_reader)
            os.close(answer_writer)
        ended = self._reaper.forked(pid)

        def stop() -> None:
            if not ended.done():
                _kill(pid)

        deadline = loop.call_later(timeout_seconds, stop)
        feeding = loop.create_task(_feed(reader, body_bytes, body_writer, stop))
        try:
            await _forward(answer_reader, writer)
            status = await ended
            if status:
                is_late = loop.time() >= deadline.when()
                cause = _too_long(timeout_seconds) if is_late else _killed(status)
                writer.write(protocol.end_frame(error=_as_dict(cause)))
        finally:
            deadline.cancel()
            feeding.cancel()
            stop()


def _work(
    operation: Operation,
    query: Query,
    body: int,
    answer: int,
    identity: Identity,
    folders: tuple[str, ...],
) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(body, 0)
        os.dup2(answer, 1)
        os.closerange(_FIRST_FREE, _MAX_DESCRIPTORS)
        os.umask(0o022)
        become(identity)

        def send(data: bytes) -> None:
            for start in range(0, len(data), protocol.MAX_FRAME_BYTES):
                piece = data[start : start + protocol.MAX_FRAME_BYTES]
                files.write_all(1, protocol.frame(protocol.DATA, piece))

        with open(0, "rb", closefd=False) as source:
            end = _outcome(operation, query, source, send, folders)
        files.write_all(1, protocol.end_frame(**end))
        code = 0
    finally:
        os._exit(code)


def _outcome(
    operation: Operation, query: Query, source: BinaryIO, send: Send, folders: tuple[str, ...]
) -> dict[str, Any]:
    path = query.get("path") or query.get("folder") or "/"
    try:
        return operation(query, source, send, folders)
    except HoneError as error:
        return {"error": _as_dict(error)}
    except OSError as error:
        return {"error": _as_dict(files.typed(path, error))}
    except (KeyError, ValueError) as error:
        text = f"{error}; a parameter is missing, or the path holds a NUL"
        return {"error": _as_dict(InvalidArgument(text))}
    except MemoryError:
        return {"error": _as_dict(FailedPrecondition("out of memory", attributable="workload"))}
    except (
        Exception
    ) as error:  # a defect of ours must reach the manager, not vanish with the worker
        return {"error": _as_dict(Internal(f"{type(error).__name__}: {error}"))}


async def _feed(
    reader: asyncio.StreamReader, count: int, descriptor: int, stop: Callable[[], None]
) -> None:
    """Move the request's body into the worker; a caller that goes away before its end stops the worker."""
    loop = asyncio.get_running_loop()
    transport, protocol_ = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", buffering=0)
    )
    pipe = asyncio.StreamWriter(transport, protocol_, None, loop)
    try:
        while count:
            try:
                data = await reader.read(min(count, _PIPE_BYTES))
            except ConnectionError:
                data = b""
            if not data:
                stop()  # before the pipe ends: half a file must not be taken for a whole one
                return
            count -= len(data)
            pipe.write(data)
            await pipe.drain()
    except (BrokenPipeError, ConnectionResetError):
        return  # the worker has seen enough; its answer says why
    finally:
        pipe.close()


async def _forward(descriptor: int, writer: asyncio.StreamWriter) -> None:
    """Move the worker's answer to the caller, to its end."""
    loop = asyncio.get_running_loop()
    pipe = asyncio.StreamReader(limit=_PIPE_BYTES)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(pipe), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await pipe.read(_PIPE_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        transport.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _killed(status: int) -> HoneError:
    code = os.waitstatus_to_exitcode(status)
    return FailedPrecondition(
        f"the file operation was ended from inside the sandbox (exit code {code})",
        reason="FILE_OPERATION_KILLED",
        attributable="workload",
    )


def _no_process(error: OSError) -> HoneError:
    return FailedPrecondition(
        f"no process for a file operation: {error}; the sandbox has used up its processes",
        reason="PIDS_LIMIT",
        attributable="workload",
    )


def _too_long(seconds: float) -> HoneError:
    # Nothing says whose doing it is: a slow node, or what there is to pack.
    return Unavailable(
        f"the file operation took longer than {seconds:g} s", reason="FILE_OPERATION_TIMEOUT"
    )


def _as_dict(error: HoneError) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.message,
        "reason": error.reason,
        "retryable": error.retryable,
        "attributable": error.attributable,
    }
