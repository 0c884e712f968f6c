"""A client of the sandbox service over a real gRPC server, with a token of choice."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from opentelemetry import trace

from sandbox.requests import Policy
from sandbox.servicer import SandboxServicer
from servicekit.channels import connect
from servicekit.errors import HoneError
from servicekit.testing import running_server
from servicekit.tokens import TokenMinter, TokenVerifier, generate_key_file


class Client:
    """Stubs that carry a token of choice."""

    def __init__(self, address: str, minter: TokenMinter) -> None:
        self.address = address
        self.minter = minter
        self.token = ""
        self.channel = connect(address, token=lambda: self.token)
        self.stub = sandbox_pb2_grpc.SandboxServiceStub(self.channel)

    def be(self, rollout_id: str, epoch: int = 1, role: str = "agent", ttl: float = 60.0) -> None:
        self.token = self.minter.mint(rollout_id, epoch, role, ttl)  # type: ignore[arg-type]


async def serve(suite, folder: Path) -> AsyncIterator[Client]:
    key_file = folder / "key.pem"
    generate_key_file(key_file)

    def add(server):
        servicer = SandboxServicer(
            suite.manager, suite.transfers, Policy(), trace.get_tracer("test")
        )
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(servicer, server)

    async with running_server(add, verifier=TokenVerifier(key_file, time.time)) as address:
        made = Client(address, TokenMinter(key_file, time.time))
        async with made.channel:
            yield made


def create_request(rollout_id: str, **fields) -> pb.CreateSandboxRequest:
    base = {"rollout_id": rollout_id, "run_id": "run-1", "purpose": pb.SANDBOX_PURPOSE_AGENT}
    return pb.CreateSandboxRequest(**(base | fields))


async def fails(call, kind: type[HoneError]) -> HoneError:
    with pytest.raises(kind) as caught:
        await call()
    return caught.value
