"""The whole service as a process, with a real nats-server: SIGTERM drains, SIGKILL is recovered from, NATS may go."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from service_process import ROLLOUT, Service, control_groups

from eventbus.nats_bus import NatsBus
from eventbus.testing import nats_server
from servicekit.errors import Unavailable

__all__ = ["nats_server"]

pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture
async def service(nats_server, tmp_path):
    made = Service(tmp_path, nats_server.url)
    await made.start()
    yield made
    if made.process.poll() is None:
        await made.end(signal.SIGKILL)


async def _create(stub) -> dict[str, str]:
    made = await stub.CreateSandbox(
        pb.CreateSandboxRequest(rollout_id=ROLLOUT, run_id="run-1", purpose=1)
    )
    return {"rollout_id": ROLLOUT, "sandbox_id": made.sandbox.sandbox_id}


async def _told(nats_url: str) -> list[tuple[str, str]]:
    async with await NatsBus.connect(nats_url, name="test") as bus:
        events = [e.envelope async for e in bus.read(["sandbox_created", "sandbox_destroyed"])]
    return [(e.WhichOneof("payload"), e.sandbox_destroyed.cause) for e in events]


async def test_sigterm_lets_a_command_finish_and_leaves_nothing(service, nats_server):
    async with service.connect() as channel:
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        target = await _create(stub)
        argv = ["sh", "-c", "echo begun; sleep 0.5; echo finished"]
        spec = pb.ExecSpec(**target, exec_id="a", argv=argv)
        said = aiter(stub.StreamExec(pb.StreamExecRequest(exec=spec)))
        assert (await anext(said)).chunk.data == b"begun\n"
        code = await service.end(signal.SIGTERM)
        assert [event.chunk.data async for event in said] == [b"finished\n", b""]
    assert code == 0
    assert service.loud() == []
    assert await _told(nats_server.url) == [
        ("sandbox_created", ""),
        ("sandbox_destroyed", "manager_lost"),
    ]
    assert control_groups(service) == []


async def _exec(stub, spec):
    return await stub.Exec(pb.ExecRequest(exec=spec))


async def test_sigkill_then_restart_says_lost_and_pairs_the_events(service, nats_server):
    async with service.connect() as channel:
        target = await _create(sandbox_pb2_grpc.SandboxServiceStub(channel))
    assert await service.end(signal.SIGKILL) == -signal.SIGKILL
    await service.start()
    async with service.connect() as channel:
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        spec = pb.ExecSpec(**target, exec_id="a", argv=["true"])
        with pytest.raises(Unavailable) as caught:
            await _exec(stub, spec)
        assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
        stats = await stub.GetStats(pb.GetStatsRequest())
        assert (stats.live_count, stats.expected_count) == (0, 0)
    assert await _told(nats_server.url) == [
        ("sandbox_created", ""),
        ("sandbox_destroyed", "manager_lost"),
    ]
    assert await service.end(signal.SIGTERM) == 0
    assert control_groups(service) == []


async def test_a_create_waits_while_nats_is_away(service, nats_server):
    nats_server.kill()
    async with service.connect() as channel:
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        creating = asyncio.ensure_future(_create(stub))
        await asyncio.sleep(1.0)
        assert not creating.done()
        nats_server.start()
        target = await creating
        spec = pb.ExecSpec(**target, exec_id="a", argv=["echo", "alive"])
        assert (await _exec(stub, spec)).result.stdout == b"alive\n"
    assert await service.end(signal.SIGTERM) == 0


async def test_a_folder_has_one_manager(service, nats_server):
    second = subprocess.run(
        [sys.executable, "-m", "sandbox"],
        env={**os.environ, **service.settings},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert "another sandbox manager works with this folder" in second.stderr
    assert "Traceback" not in second.stderr
