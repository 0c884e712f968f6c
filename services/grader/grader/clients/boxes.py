"""Grading boxes of the sandbox service; see `grader.instruments.boxes`.

Every call is about one rollout and carries a grader's token for it. A record without an origin (graded on request, or
stored) gets a rollout_id of its own, for which there is nothing of an agent's.
"""

import asyncio
import itertools
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Mapping,
)
from contextlib import asynccontextmanager

import grpc
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc

from grader.clients.box_calls import (
    CALL_SECONDS,
    FILE_NOT_FOUND,
    TRANSFER_SECONDS,
    Calls,
    SandboxBox,
    faults,
    gone,
    tidily,
)
from grader.clients.leases import MintToken
from grader.instruments.boxes import AgentFilesError, Box, BoxSpec, Origin, Room
from servicekit.errors import (
    FailedPrecondition,
    HoneError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from servicekit.identity import new_rollout_id
from trajectory.convert import duration_to_proto

IDEMPOTENT_METHODS = (
    "CreateSandbox",
    "CreateSnapshot",
    "DeleteSnapshot",
    "DestroySandbox",
    "Exec",
    "GetSandbox",
    "ReadFile",
    "StatFile",
    "WriteFile",
)
"""What a channel for this client may repeat when the transport fails."""
OWN_RUN_ID = "grading"
"""Run of boxes for records without an origin."""


class SandboxRooms:
    """Opens rooms over the sandbox service."""

    def __init__(
        self,
        connect: Callable[[], grpc.aio.Channel],
        mint: MintToken,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        wait_seconds: float = 120.0,
    ) -> None:
        """Connect on first use.

        Args:
            connect: makes the channel to the sandbox service, with IDEMPOTENT_METHODS.
            mint: makes the grader's tokens.
            clock: seconds since the epoch, for rollout_ids of records without an origin.
            rng: of rollout_ids, sequences and names of snapshots.
            wait_seconds: how long a box is waited for while there is no room.
        """
        self._connect = connect
        self._mint = mint
        self._clock = clock
        self._rng = rng
        self._wait_seconds = wait_seconds
        self._channel: grpc.aio.Channel | None = None

    @asynccontextmanager
    async def room(self, origin: Origin | None) -> AsyncIterator[Room]:
        """Open a room; at its end, however that comes, nothing is left of its boxes and snapshot."""
        calls = Calls(
            connected=self._stub,
            mint=self._mint,
            rollout_id=origin.rollout_id if origin else new_rollout_id(self._clock, self._rng),
            run_id=(origin.run_id if origin else "") or OWN_RUN_ID,
            epoch=origin.epoch if origin else 1,
        )
        room = SandboxRoom(
            calls,
            agent_sandbox_id=origin.sandbox_id if origin else "",
            rng=self._rng,
            wait_seconds=self._wait_seconds,
        )
        try:
            yield room
        finally:
            await asyncio.shield(room.close())

    def _stub(self) -> "sandbox_pb2_grpc.SandboxServiceAsyncStub":
        if self._channel is None:
            self._channel = self._connect()
        stub: sandbox_pb2_grpc.SandboxServiceAsyncStub = sandbox_pb2_grpc.SandboxServiceStub(
            self._channel
        )
        return stub

    async def close(self) -> None:
        """Close the channel, if one was opened."""
        if self._channel is not None:
            await self._channel.close()


class SandboxRoom:
    """The boxes of one record's grading."""

    def __init__(
        self,
        calls: Calls,
        *,
        agent_sandbox_id: str,
        rng: random.Random,
        wait_seconds: float,
    ) -> None:
        """Make nothing yet."""
        self._calls = calls
        self._agent_sandbox_id = agent_sandbox_id
        self._wait_seconds = wait_seconds
        # An earlier try of this grading may have boxes left; its sequences must not be met again.
        self._sequences = itertools.count(rng.randrange(1 << 30))
        self._snapshot_id = f"grade-{rng.getrandbits(64):016x}"
        self._snapshot: asyncio.Task[None] | None = None
        self._creating: set[asyncio.Task[pb.CreateSandboxResponse]] = set()
        self._alive: set[str] = set()

    @asynccontextmanager
    async def box(self, spec: BoxSpec) -> AsyncIterator[Box]:
        """Make a box that ends with the block.

        Raises:
            AgentFilesError: what the agent left keeps it from being made.
            GradingFaultError: it could not be made, kind sandbox.
        """
        with faults("a grading box could not be made"):
            try:
                box = await self._filled(spec)
            except HoneError as err:
                if err.attributable == "workload":
                    raise AgentFilesError(err.message) from err
                raise
        try:
            yield box
        finally:
            await self._destroy(box.sandbox_id)

    async def _filled(self, spec: BoxSpec) -> SandboxBox:
        sandbox_id = await self._create(spec)
        try:
            box = SandboxBox(self._calls, sandbox_id)
            for folder in spec.agent_folders:
                await self._carry(folder, sandbox_id)
            await box.write(spec.files)
        except BaseException:
            await self._destroy(sandbox_id)
            raise
        return box

    async def close(self) -> None:
        """End all boxes and the snapshot; what cannot be reached ends by its lease."""
        if self._snapshot is not None:
            self._snapshot.cancel()
            await asyncio.gather(self._snapshot, return_exceptions=True)
        # A create that was given up may still succeed.
        made = await asyncio.gather(*self._creating, return_exceptions=True)
        self._alive |= {
            reply.sandbox.sandbox_id
            for reply in made
            if isinstance(reply, pb.CreateSandboxResponse)
        }
        await asyncio.gather(*(self._destroy(sandbox_id) for sandbox_id in list(self._alive)))
        if self._snapshot is not None:
            request = pb.DeleteSnapshotRequest(
                rollout_id=self._calls.rollout_id, snapshot_id=self._snapshot_id
            )
            await tidily(
                self._calls.stub.DeleteSnapshot(
                    request, metadata=self._calls.metadata, timeout=CALL_SECONDS
                )
            )

    async def _create(self, spec: BoxSpec) -> str:
        """Make a box and wait while there is no room; its id is among the living from then on."""
        request = pb.CreateSandboxRequest(
            rollout_id=self._calls.rollout_id,
            run_id=self._calls.run_id,
            purpose=pb.SANDBOX_PURPOSE_GRADE,
            sequence=next(self._sequences),
            template=spec.template,
            lifetime=duration_to_proto(spec.lifetime_seconds),
            idle_timeout=duration_to_proto(spec.lifetime_seconds),
        )
        if spec.memory_bytes is not None:
            request.limits.memory_bytes = spec.memory_bytes
        if spec.from_agent or spec.agent_folders:
            template = await self._agents_template()
            request.template = template if spec.from_agent else spec.template or template
        if spec.from_agent:
            await self._freeze()
            request.snapshot_id = self._snapshot_id
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        while True:
            call = loop.create_task(self._ask_for(request))
            self._creating.add(call)
            try:
                made = await asyncio.shield(call)
            except ResourceExhausted as err:
                self._creating.discard(call)
                wait = err.retry_after_seconds or 1.0
                if loop.time() + wait > deadline:
                    raise
                await asyncio.sleep(wait)
                continue
            self._alive.add(made.sandbox.sandbox_id)
            self._creating.discard(call)
            return made.sandbox.sandbox_id

    async def _ask_for(self, request: pb.CreateSandboxRequest) -> pb.CreateSandboxResponse:
        return await self._calls.stub.CreateSandbox(
            request, metadata=self._calls.metadata, timeout=CALL_SECONDS
        )

    async def _agents_template(self) -> str:
        """Return the template that the agent's sandbox was made of."""
        calls = self._calls
        if not self._agent_sandbox_id:
            raise gone("this record comes without its sandbox")
        request = pb.GetSandboxRequest(
            sandbox_id=self._agent_sandbox_id, rollout_id=calls.rollout_id
        )
        try:
            found = await calls.stub.GetSandbox(
                request, metadata=calls.metadata, timeout=CALL_SECONDS
            )
        except NotFound as err:
            raise gone(err.message) from err
        return found.sandbox.template

    async def _freeze(self) -> None:
        """Save the agent's sandbox, once for the room."""
        if self._snapshot is None:
            self._snapshot = asyncio.get_running_loop().create_task(self._save())
        await asyncio.shield(self._snapshot)

    async def _save(self) -> None:
        calls = self._calls
        request = pb.CreateSnapshotRequest(
            sandbox_id=self._agent_sandbox_id,
            rollout_id=calls.rollout_id,
            snapshot_id=self._snapshot_id,
        )
        try:
            await calls.stub.CreateSnapshot(
                request, metadata=calls.metadata, timeout=TRANSFER_SECONDS
            )
        except NotFound as err:
            raise gone(err.message) from err
        except FailedPrecondition as err:
            if err.reason != "ROLLOUT_ENDED":
                raise
            raise gone(err.message) from err

    async def _carry(self, folder: str, sandbox_id: str) -> None:
        """Copy a folder of the agent's, if it has it, into a box."""
        calls = self._calls
        named = {
            "sandbox_id": self._agent_sandbox_id,
            "rollout_id": calls.rollout_id,
            "path": folder,
        }
        try:
            await calls.stub.StatFile(
                pb.StatFileRequest(**named), metadata=calls.metadata, timeout=CALL_SECONDS
            )
        except NotFound as err:
            if err.reason != FILE_NOT_FOUND:
                raise
            return
        except InvalidArgument:  # a part of the path is no folder
            return
        broken: list[HoneError] = []
        upload = calls.stub.UploadTar(
            self._pieces(named, sandbox_id, broken),
            metadata=calls.metadata,
            timeout=TRANSFER_SECONDS,
        )
        try:
            await upload
        except HoneError as err:
            broken.append(err)
        if broken:
            raise _of_tree(broken[0])

    async def _pieces(
        self, source: Mapping[str, str], sandbox_id: str, broken: list[HoneError]
    ) -> AsyncGenerator[pb.UploadTarRequest, None]:
        """Pass a download on; an error ends the archive and is kept, since it may not be raised inside an upload."""
        calls = self._calls
        target = pb.UploadTarTarget(
            sandbox_id=sandbox_id, rollout_id=calls.rollout_id, folder=source["path"]
        )
        yield pb.UploadTarRequest(target=target)
        download = calls.stub.DownloadTar(
            pb.DownloadTarRequest(**source), metadata=calls.metadata, timeout=TRANSFER_SECONDS
        )
        try:
            async for event in download:
                if event.WhichOneof("event") == "chunk":
                    yield pb.UploadTarRequest(chunk=event.chunk)
        except HoneError as err:
            broken.append(err)

    async def _destroy(self, sandbox_id: str) -> None:
        if sandbox_id not in self._alive:
            return
        self._alive.discard(sandbox_id)
        request = pb.DestroySandboxRequest(sandbox_id=sandbox_id, rollout_id=self._calls.rollout_id)
        await tidily(
            self._calls.stub.DestroySandbox(
                request, metadata=self._calls.metadata, timeout=CALL_SECONDS
            )
        )


def _of_tree(err: HoneError) -> HoneError:
    """Return a transfer's error, marked as the agent's doing where it speaks of the files and not of the service."""
    if isinstance(err, InvalidArgument | OutOfRange) or err.reason == FILE_NOT_FOUND:
        return InvalidArgument(err.message, attributable="workload")
    return err
