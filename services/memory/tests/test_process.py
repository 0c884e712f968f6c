"""The memory service as a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2
from hone.memory.v1 import memory_pb2 as pb
from hone.memory.v1 import memory_pb2_grpc

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import NatsServer, nats_server  # noqa: F401  # a fixture
from servicekit.channels import connect

ROLLOUT = "01890a5d-ac96-774b-bcce-b302099a8057"
NOWHERE = "nats://127.0.0.1:9"
SERVICE = "hone.memory.v1.MemoryService"


class Running:
    """The process, its channel and the lines that it has logged."""

    def __init__(self, process: asyncio.subprocess.Process, lines: list[dict[str, Any]]) -> None:
        self.process = process
        self.lines = lines
        self.channel: Any = None
        self.stub: Any = None

    async def logged(self, message: str) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                for line in self.lines:
                    if line["message"] == message:
                        return line
                await asyncio.sleep(0.01)

    async def utility(self) -> float:
        page = await self.stub.ListMemories(pb.ListMemoriesRequest(namespace="ns"))
        (memory,) = page.memories
        return float(memory.utility)

    async def utility_becomes(self, wanted: float) -> None:
        async with asyncio.timeout(30):
            while await self.utility() != pytest.approx(wanted):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def service(folder: Path, nats_url: str) -> AsyncIterator[Running]:
    settings = {"PORT": "0", "DATA_DIR": str(folder), "NATS_URL": nats_url}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "memory",
        env={**os.environ, **{f"HONE_MEMORY_{key}": value for key, value in settings.items()}},
        stderr=asyncio.subprocess.PIPE,
    )
    running = Running(process, [])

    async def read() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            running.lines.append(json.loads(line))

    reading = asyncio.create_task(read())
    try:
        port = (await running.logged("serving"))["port"]
        async with connect(f"127.0.0.1:{port}") as channel:
            running.channel = channel
            running.stub = memory_pb2_grpc.MemoryServiceStub(channel)
            yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def remember(running: Running) -> None:
    request = pb.RememberMemoryRequest(namespace="ns", intent="sum two numbers", experience="e")
    await running.stub.RememberMemory(request)


def judged(score: float, version: str) -> events_pb2.Envelope:
    return new_envelope(
        events_pb2.RewardAssigned(scored=outcome_pb2.Scored(score=score), grader_version=version),
        source="grader",
        run_id="run_x",
        rollout_id=ROLLOUT,
        clock=time.time,
    )


@pytest.mark.slow
async def test_it_starts_alone_says_that_it_waits_and_answers_meanwhile(tmp_path: Path) -> None:
    async with service(tmp_path, NOWHERE) as running:
        assert (await running.logged("waiting for NATS"))["nats_url"] == NOWHERE
        await remember(running)
        health = health_pb2_grpc.HealthStub(running.channel)
        for name in ("", "memory", SERVICE):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for listed in reflection.ServerReflectionInfo(iter([asked])):
            assert SERVICE in [s.name for s in listed.list_services_response.service]
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0


@pytest.mark.slow
async def test_a_second_process_on_the_same_file_is_refused_in_one_line(tmp_path: Path) -> None:
    async with service(tmp_path, NOWHERE) as first:
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "memory", "--port", "0", "--data-dir", str(tmp_path)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await second.communicate()
        assert second.returncode == 1
        (line,) = said.decode().splitlines()
        assert "another memory service works with this file" in json.loads(line)["message"]
        await remember(first)


@pytest.mark.slow
@pytest.mark.fault
async def test_rewards_of_the_log_are_learned_once_through_a_kill_and_a_new_log(
    tmp_path: Path,
    nats_server: NatsServer,  # noqa: F811  # the fixture
) -> None:
    async with await NatsBus.connect(nats_server.url, name="test") as bus:
        async with service(tmp_path, nats_server.url) as running:
            await running.logged("NATS connected")
            await remember(running)
            asked = pb.RecallMemoriesRequest(
                namespace="ns", query="sum two numbers", rollout_id=ROLLOUT
            )
            assert len((await running.stub.RecallMemories(asked)).memories) == 1
            await bus.publish(judged(1.0, "g1"))
            await running.utility_becomes(0.3)
            running.process.kill()
            await running.process.wait()
        async with service(tmp_path, nats_server.url) as running:
            assert await running.utility() == pytest.approx(0.3)
            # A log that was lost and told again delivers every event to a durable that knows none.
            nats_server.kill()
            nats_server.wipe()
            nats_server.start()
            await bus.publish(judged(1.0, "g1"))
            await bus.publish(judged(0.0, "g2"))
            await running.utility_becomes(0.21)
            page = await running.stub.ListMemories(pb.ListMemoriesRequest(namespace="ns"))
            assert page.memories[0].credit_count == 2
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0


@pytest.mark.slow
@pytest.mark.fault
async def test_what_was_answered_outlives_a_kill(tmp_path: Path) -> None:
    answered = []

    async def remember_on(running: Running, worker: int) -> None:
        for number in range(10_000):
            request = pb.RememberMemoryRequest(
                namespace="ns", intent=f"{worker}/{number}", experience="e"
            )
            answered.append((await running.stub.RememberMemory(request)).memory.memory_id)

    async with service(tmp_path, NOWHERE) as running:
        workers = [asyncio.create_task(remember_on(running, worker)) for worker in range(4)]
        async with asyncio.timeout(30):
            while len(answered) < 50:
                await asyncio.sleep(0.005)
        running.process.kill()
        await running.process.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    async with service(tmp_path, NOWHERE) as running:
        for memory_id in answered:
            await running.stub.GetMemory(pb.GetMemoryRequest(namespace="ns", memory_id=memory_id))


@pytest.mark.slow
def test_help_needs_no_embedding_model() -> None:
    code = "import sys, memory.__main__; print([m for m in ('wordllama', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
