"""Rooms over a real sandbox service in a process of its own, and agents that leave files in it."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from service_process import Service

from eventbus.testing import start_nats
from grader.clients.boxes import IDEMPOTENT_METHODS, SandboxRooms
from grader.instruments.boxes import Origin
from servicekit.attributes import TOKEN_METADATA_KEY
from servicekit.channels import connect
from servicekit.identity import new_rollout_id
from servicekit.tokens import TokenMinter


class RealSuite:
    """A sandbox service, what a grader has of it, and what an agent can do in it."""

    def __init__(self, service: Service) -> None:
        self.address = f"127.0.0.1:{service.port}"
        self.minter = TokenMinter(service.key_file, time.time)
        self.channel = connect(self.address, idempotent_methods=IDEMPOTENT_METHODS)
        self.stub = sandbox_pb2_grpc.SandboxServiceStub(self.channel)
        self.rooms = SandboxRooms(
            lambda: self.channel,
            lambda rollout_id, epoch: self.minter.mint(rollout_id, epoch, "grader", 120),
            clock=time.time,
            rng=random.Random(),
            wait_seconds=20.0,
        )

    async def leave(self, files: Mapping[str, bytes], *commands: str) -> Origin:
        """Be an agent that writes files and runs shell commands; return the origin of its rollout."""
        rollout_id = new_rollout_id(time.time, random.Random())
        metadata = self.metadata(rollout_id, "agent")
        made = await self.stub.CreateSandbox(
            pb.CreateSandboxRequest(
                rollout_id=rollout_id, run_id="run-1", purpose=pb.SANDBOX_PURPOSE_AGENT
            ),
            metadata=metadata,
        )
        named = {"sandbox_id": made.sandbox.sandbox_id, "rollout_id": rollout_id}
        for path, content in files.items():
            file = pb.SandboxFile(path=path, content=content)
            await self.stub.WriteFile(pb.WriteFileRequest(file=file, **named), metadata=metadata)
        for number, command in enumerate(commands):
            spec = pb.ExecSpec(exec_id=str(number), argv=["sh", "-c", command], **named)
            reply = await self.stub.Exec(pb.ExecRequest(exec=spec), metadata=metadata)
            assert reply.result.exit_code == 0, reply.result
        return Origin(
            rollout_id=rollout_id, run_id="run-1", epoch=1, sandbox_id=made.sandbox.sandbox_id
        )

    async def destroy(self, sandbox_id: str, rollout_id: str, role: str) -> None:
        """End a sandbox behind everybody's back."""
        request = pb.DestroySandboxRequest(sandbox_id=sandbox_id, rollout_id=rollout_id)
        await self.stub.DestroySandbox(request, metadata=self.metadata(rollout_id, role))

    async def grading_boxes(self) -> list[pb.Sandbox]:
        """List the grading boxes that live."""
        token = self.minter.mint("", 0, "operator", 60)
        reply = await self.stub.ListSandboxes(
            pb.ListSandboxesRequest(page_size=1000), metadata=((TOKEN_METADATA_KEY, token),)
        )
        return [box for box in reply.sandboxes if box.purpose == pb.SANDBOX_PURPOSE_GRADE]

    def metadata(self, rollout_id: str, role: str) -> tuple[tuple[str, str]]:
        token = self.minter.mint(rollout_id, 1, role, 60)  # type: ignore[arg-type]
        return ((TOKEN_METADATA_KEY, token),)


@contextmanager
def running_service(folder: Path, **settings: object) -> Iterator[Service]:
    """Start a sandbox service; skip with its reason where this machine cannot isolate."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_nats(folder) as nats:
        service = Service(folder, nats.url, **settings)
        _run(service.start())
        try:
            yield service
        finally:
            _run(service.end(signal.SIGTERM))


def _run(work: Coroutine[Any, Any, object]) -> None:
    """Run work to its end, also under a loop that runs."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A sandbox service for the tests of one file."""
    with running_service(tmp_path_factory.mktemp("sandbox")) as made:
        yield made


@pytest.fixture
async def real(service: Service) -> AsyncIterator[RealSuite]:
    """What a grader and an agent have of it; at the end no grading box is left."""
    suite = RealSuite(service)
    yield suite
    assert await suite.grading_boxes() == []
    await suite.channel.close()
