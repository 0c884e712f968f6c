"""Leases over a real in-process sandbox service."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hone.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

from grader.clients.leases import SandboxLeases
from servicekit.channels import connect
from servicekit.errors import HoneError, NotFound, Unavailable
from servicekit.testing import running_server
from servicekit.tokens import current_token_text


class RecordingSandbox(sandbox_pb2_grpc.SandboxServiceServicer):
    def __init__(self) -> None:
        self.renewed: list[tuple[str, str, int, str]] = []
        self.third = asyncio.Event()
        self.away = False
        self.asked: list[tuple[str, str, str]] = []
        self.polluted = False
        self.error: HoneError | None = None

    async def ExtendLifetime(
        self, request: sandbox_pb2.ExtendLifetimeRequest, context: Any
    ) -> sandbox_pb2.ExtendLifetimeResponse:
        seen = (
            request.sandbox_id,
            request.rollout_id,
            request.idle_timeout.seconds,
            current_token_text(),
        )
        self.renewed.append(seen)
        if len(self.renewed) == 3:
            self.third.set()
        if self.away:
            raise Unavailable("away", reason="AWAY")
        return sandbox_pb2.ExtendLifetimeResponse()

    async def GetSandbox(
        self, request: sandbox_pb2.GetSandboxRequest, context: Any
    ) -> sandbox_pb2.GetSandboxResponse:
        self.asked.append((request.sandbox_id, request.rollout_id, current_token_text()))
        if self.error is not None:
            raise self.error
        return sandbox_pb2.GetSandboxResponse(sandbox=sandbox_pb2.Sandbox(polluted=self.polluted))


@pytest.fixture
async def sandbox() -> AsyncIterator[tuple[RecordingSandbox, str]]:
    servicer = RecordingSandbox()
    add = sandbox_pb2_grpc.add_SandboxServiceServicer_to_server
    async with running_server(lambda server: add(servicer, server)) as address:
        yield servicer, address


def _leases(address: str, renew_seconds: float) -> SandboxLeases:
    return SandboxLeases(
        lambda: connect(address),
        lambda rollout_id, epoch: f"token {rollout_id} {epoch}",
        renew_seconds=renew_seconds,
        lease_seconds=60,
    )


@pytest.mark.parametrize("away", [False, True])
async def test_lease_is_renewed_while_grading_lasts(
    sandbox: tuple[RecordingSandbox, str], away: bool
) -> None:
    servicer, address = sandbox
    servicer.away = away
    leases = _leases(address, 0.01)
    async with asyncio.timeout(5), leases.held("sbx_1", "r1", 7):
        await servicer.third.wait()
    await leases.close()
    assert servicer.renewed[0] == ("sbx_1", "r1", 60, "token r1 7")


async def test_quick_grading_renews_nothing(sandbox: tuple[RecordingSandbox, str]) -> None:
    servicer, address = sandbox
    leases = _leases(address, 60)
    async with leases.held("sbx_1", "r1", 7):
        pass
    await leases.close()
    assert servicer.renewed == []


async def test_a_wait_is_covered_by_one_renewal(
    sandbox: tuple[RecordingSandbox, str],
) -> None:
    servicer, address = sandbox
    leases = _leases(address, 60)
    await leases.keep("sbx_1", "r1", 7, 30.0)
    await leases.close()
    assert servicer.renewed == [("sbx_1", "r1", 90, "token r1 7")]


@pytest.mark.parametrize(("polluted", "said"), [(True, "polluted"), (False, "")])
async def test_a_shared_environment_is_asked_about(
    sandbox: tuple[RecordingSandbox, str], polluted: bool, said: str
) -> None:
    servicer, address = sandbox
    servicer.polluted = polluted
    leases = _leases(address, 60)
    assert await leases.pollution("sbx_1", "r1", 7) == said
    await leases.close()
    assert servicer.asked == [("sbx_1", "r1", "token r1 7")]


async def test_an_environment_that_is_gone_counts_as_polluted(
    sandbox: tuple[RecordingSandbox, str],
) -> None:
    servicer, address = sandbox
    servicer.error = NotFound("was destroyed, cause idle")
    leases = _leases(address, 60)
    said = await leases.pollution("sbx_1", "r1", 7)
    await leases.close()
    assert said.startswith("polluted: its environment was gone")
    assert "cause idle" in said


async def test_a_service_that_is_away_is_asked_again_later(
    sandbox: tuple[RecordingSandbox, str],
) -> None:
    servicer, address = sandbox
    servicer.error = Unavailable("away")
    leases = _leases(address, 60)
    with pytest.raises(Unavailable):
        await leases.pollution("sbx_1", "r1", 7)
    await leases.close()
