"""One grading box of the sandbox service, and what all calls about a rollout's boxes have in common."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc

from grader.clients.leases import MintToken
from grader.instruments.boxes import FileTooLargeError, Ran
from grader.results import GradingFaultError
from servicekit.attributes import TOKEN_METADATA_KEY
from servicekit.errors import (
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unauthenticated,
    Unimplemented,
)
from trajectory.convert import duration_to_proto
from trajectory.types import GraderErrorKind

_LOG = logging.getLogger("hone.grader.boxes")
CALL_SECONDS = 30.0
"""Deadline of a call that moves little."""
TRANSFER_SECONDS = 600.0
"""Deadline of one that moves much."""
FILE_NOT_FOUND = "FILE_NOT_FOUND"
"""Reason of NotFound where the box is there and the file is not."""
_STOPPED_BY: Mapping[int, str] = {
    pb.TERMINATION_EXITED: "",
    pb.TERMINATION_SIGNALED: "signal",
    pb.TERMINATION_OOM_KILLED: "oom",
    pb.TERMINATION_TIMED_OUT: "timeout",
    pb.TERMINATION_OUTPUT_LIMIT: "output_limit",
    pb.TERMINATION_PIDS_LIMIT: "pids_limit",
    pb.TERMINATION_SANDBOX_BROKEN_BY_WORKLOAD: "broken",
    pb.TERMINATION_KILLED: "broken",
}


_FINAL = (
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    PermissionDenied,
    Unauthenticated,
    Unimplemented,
)
"""Another try meets these again; all else is worth one, with boxes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The service as one rollout's grader may call it."""

    connected: Callable[[], "sandbox_pb2_grpc.SandboxServiceAsyncStub"]
    """Connects on first use: most gradings need no box."""
    mint: MintToken
    rollout_id: str
    run_id: str
    epoch: int

    @property
    def stub(self) -> "sandbox_pb2_grpc.SandboxServiceAsyncStub":
        """The service.

        Raises:
            HoneError: nobody says where it is.
        """
        return self.connected()

    @property
    def metadata(self) -> tuple[tuple[str, str]]:
        """Of the next call: a new token."""
        return ((TOKEN_METADATA_KEY, self.mint(self.rollout_id, self.epoch)),)


class SandboxBox:
    """One grading box."""

    def __init__(self, calls: Calls, sandbox_id: str) -> None:
        """Drive a box that is ready."""
        self._calls = calls
        self.sandbox_id = sandbox_id
        self._named = {"sandbox_id": sandbox_id, "rollout_id": calls.rollout_id}
        self._exec_ids = itertools.count()

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        max_output_bytes: int = 1 << 20,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command to its end.

        Raises:
            GradingFaultError: the box could not run it, kind sandbox.
        """
        spec = pb.ExecSpec(
            **self._named,
            exec_id=f"grade-{next(self._exec_ids)}",
            argv=command,
            env=env,
            stdin=stdin,
            timeout=duration_to_proto(timeout_seconds),
            max_output_bytes=max_output_bytes,
            kill_survivors=True,
        )
        with faults(f"{command[0]} could not be run in the grading box"):
            reply = await self._calls.stub.Exec(
                pb.ExecRequest(exec=spec),
                metadata=self._calls.metadata,
                timeout=timeout_seconds + CALL_SECONDS,
            )
        result = reply.result
        stopped_by = _STOPPED_BY.get(result.termination, "broken")
        return Ran(
            exit_code=None if stopped_by else result.exit_code,
            stopped_by=stopped_by,
            stdout=result.stdout,
            stderr=result.stderr,
            seconds=result.duration.ToNanoseconds() / 1e9,
        )

    async def exists(self, path: str) -> bool:
        """Say whether anything is at a path: a file, a folder, a link.

        Raises:
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        request = pb.StatFileRequest(**self._named, path=path)
        with faults(f"{path} could not be looked at in the grading box"):
            try:
                await self._calls.stub.StatFile(
                    request, metadata=self._calls.metadata, timeout=CALL_SECONDS
                )
            except InvalidArgument:  # a part of the path is no folder
                return False
            except NotFound as err:
                if err.reason != FILE_NOT_FOUND:
                    raise  # the box itself is gone
                return False
        return True

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
        """Return a regular file's content; None if there is none.

        Args:
            path: absolute.
            max_bytes: at most 3 MiB.

        Raises:
            FileTooLargeError: the file is larger.
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        request = pb.ReadFileRequest(
            sandbox_id=self.sandbox_id,
            rollout_id=self._calls.rollout_id,
            path=path,
            max_bytes=max_bytes,
        )
        with faults(f"{path} could not be read in the grading box"):
            try:
                reply = await self._calls.stub.ReadFile(
                    request, metadata=self._calls.metadata, timeout=CALL_SECONDS
                )
            except InvalidArgument:  # a folder, link or device
                return None
            except NotFound as err:
                if err.reason != FILE_NOT_FOUND:
                    raise  # the box itself is gone
                return None
        if reply.size_bytes > max_bytes:
            raise FileTooLargeError(f"{path} has {reply.size_bytes} bytes, more than {max_bytes}")
        return reply.content

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by absolute path.

        Raises:
            GradingFaultError: the box could not be asked, kind sandbox.
        """
        for path, content in files.items():
            file = pb.SandboxFile(path=path, content=content)
            with faults(f"{path} could not be written in the grading box"):
                await self._calls.stub.WriteFile(
                    pb.WriteFileRequest(**self._named, file=file),
                    metadata=self._calls.metadata,
                    timeout=CALL_SECONDS,
                )


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Turn the service's errors into faults of grading."""
    try:
        yield
    except HoneError as err:
        raise GradingFaultError(
            f"{what}: {err.message}",
            kind=GraderErrorKind.SANDBOX,
            retryable=not isinstance(err, _FINAL),
            client=isinstance(err, InvalidArgument) or err.reason == "UNSUPPORTED",
        ) from err


def gone(why: str) -> GradingFaultError:
    """Return the fault of a grader that needs files of the agent's which are not to be had any more."""
    return GradingFaultError(
        f"the agent's files are gone: {why}; this grader reads them, so the task must be rolled out again",
        kind=GraderErrorKind.SANDBOX,
        retryable=False,
        client=False,
    )


async def tidily(call: Awaitable[object]) -> None:
    """Wait for a call that clears away; where it fails, the lease does it later."""
    try:
        await call
    except HoneError as err:
        _LOG.warning("a grading box could not be cleared away", extra={"error": err.message})
