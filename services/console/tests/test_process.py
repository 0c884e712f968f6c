"""The console as a process of its own, on a real event stream."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hone.console.v1 import console_pb2, console_pb2_grpc

from eventbus.nats_bus import NatsBus
from eventbus.testing import NatsServer, nats_server  # noqa: F401  (a fixture)
from servicekit.channels import connect


@dataclass
class Console:
    process: asyncio.subprocess.Process
    port: int
    http_port: int

    async def get(self, path: str) -> str:
        def fetch() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as r:
                return str(r.read().decode())

        return await asyncio.to_thread(fetch)

    async def num_events(self, run_id: str) -> int:
        async with connect(f"127.0.0.1:{self.port}") as channel:
            stub: Any = console_pb2_grpc.ConsoleServiceStub(channel)
            request = console_pb2.ListEventsRequest(run_id=run_id)
            return len((await stub.ListEvents(request)).events)

    async def reach(self, run_id: str, count: int) -> None:
        while await self.num_events(run_id) < count:
            # The call itself is the wait between two looks.
            continue


@asynccontextmanager
async def console(nats_url: str, folder: Path) -> AsyncIterator[Console]:
    settings = {
        "HONE_CONSOLE_PORT": "0",
        "HONE_CONSOLE_HTTP_PORT": "0",
        "HONE_CONSOLE_OTLP_PORT": "0",
        "HONE_CONSOLE_NATS_URL": nats_url,
        "HONE_CONSOLE_DATA_DIR": str(folder),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "console",
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        ports: dict[str, int] = {}
        while "port" not in ports:
            line = json.loads(await process.stdout.readline())
            ports.update({key: value for key, value in line.items() if key.endswith("port")})
        yield Console(process, ports["port"], ports["http_port"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_killed_and_started_again_it_has_every_event_once(
    nats_server: NatsServer,  # noqa: F811
    tmp_path: Path,
    demo: Any,
) -> None:
    async with asyncio.timeout(30), await NatsBus.connect(nats_server.url, name="test") as bus:
        for envelope in demo.envelopes[:6]:
            await bus.publish(envelope)
        async with console(nats_server.url, tmp_path / "data") as first:
            await first.reach("run-1", 6)
            first.process.send_signal(signal.SIGKILL)
            await first.process.wait()
        for envelope in demo.envelopes[6:]:
            await bus.publish(envelope)
        async with console(nats_server.url, tmp_path / "data") as second:
            await second.reach("run-1", len(demo.envelopes))
            nats_server.restart()
            demo.writer.train(1)
            await bus.publish(demo.envelopes[-1])
            await second.reach("run-1", len(demo.envelopes))
            assert "run-1" in await second.get("/")
            assert "Turn by turn" in await second.get(f"/trace/{demo.scored_id}")
            second.process.send_signal(signal.SIGTERM)
            assert await second.process.wait() == 0
