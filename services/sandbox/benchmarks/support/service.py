"""The real service as a process, over a real nats-server, and calls to it as the suite makes them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc

from eventbus.testing import start_nats
from servicekit import attributes
from servicekit.channels import connect
from servicekit.tokens import TokenMinter, generate_key_file

MEMORY_BYTES = 128 * 2**20
DISK_BYTES = 32 * 2**20
"""Limits of the sandboxes that are measured: 500 of them are admitted on a small machine."""

CALL_SECONDS = 120.0
_TOKEN_SECONDS = 3600.0
_IDLE_SECONDS = 1800


class Service:
    """A running service, and a client of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
        """Connects."""
        self.process = process
        self.folder = folder
        self._minter = TokenMinter(folder / "key.pem", time.time)
        self._channel = connect(f"127.0.0.1:{port}", default_timeout_seconds=CALL_SECONDS)
        self.stub = sandbox_pb2_grpc.SandboxServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def create(self) -> "Remote":
        """Make a sandbox for a rollout of its own."""
        rollout_id = str(uuid.uuid4())
        token = self._minter.mint(rollout_id, 1, "agent", _TOKEN_SECONDS)
        metadata = ((attributes.TOKEN_METADATA_KEY, token),)
        made = await self.stub.CreateSandbox(
            pb.CreateSandboxRequest(
                rollout_id=rollout_id,
                run_id="bench",
                purpose=pb.SANDBOX_PURPOSE_AGENT,
                idle_timeout=Duration(seconds=_IDLE_SECONDS),
            ),
            metadata=metadata,
        )
        return Remote(self.stub, metadata, rollout_id, made.sandbox)

    async def stats(self) -> pb.GetStatsResponse:
        """Ask for the service's own counts."""
        return await self.stub.GetStats(pb.GetStatsRequest())

    async def wait_until_warm(self, count: int, seconds: float = 120.0) -> None:
        """Wait until the warm pool holds this many."""
        end = time.monotonic() + seconds
        while (found := (await self.stats()).warm_count) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"the warm pool holds {found} of {count} after {seconds:g} s")
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Disconnect and end the service."""
        await self._channel.close()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait)


class Remote:
    """One sandbox of the service."""

    def __init__(
        self,
        stub: "sandbox_pb2_grpc.SandboxServiceStub",
        metadata: tuple[tuple[str, str], ...],
        rollout_id: str,
        sandbox: pb.Sandbox,
    ) -> None:
        """Names it."""
        self._stub = stub
        self._metadata = metadata
        self._target = {"rollout_id": rollout_id, "sandbox_id": sandbox.sandbox_id}
        self._count = 0
        self.warm = sandbox.warm

    async def true(self) -> None:
        """Run the command `true`."""
        self._count += 1
        spec = pb.ExecSpec(**self._target, exec_id=f"e{self._count}", argv=["true"])
        done = await self._stub.Exec(pb.ExecRequest(exec=spec), metadata=self._metadata)
        if done.result.exit_code or done.result.termination != pb.TERMINATION_EXITED:
            raise RuntimeError(f"true ended with {done.result}")

    async def destroy(self) -> None:
        """Destroy it."""
        await self._stub.DestroySandbox(
            pb.DestroySandboxRequest(**self._target), metadata=self._metadata
        )


@asynccontextmanager
async def running_service(warm: int = 0, **settings: object) -> AsyncIterator[Service]:
    """Run a service with so many sandboxes kept ready; other settings by name."""
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as name:
        folder = Path(name)
        generate_key_file(folder / "key.pem")
        limits = {"memory_bytes": MEMORY_BYTES, "disk_bytes": DISK_BYTES}
        templates = folder / "templates.yaml"
        templates.write_text(json.dumps({"host": {"limits": limits, "warm": warm}}))
        with start_nats(folder) as nats:
            given = {
                "PORT": 0,
                "DATA_DIR": folder / "data",
                "NATS_URL": nats.url,
                "TOKEN_KEY_FILE": folder / "key.pem",
                "TEMPLATES_FILE": templates,
                "MAX_SANDBOXES": 2000,
            } | {key.upper(): value for key, value in settings.items()}
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "sandbox"],
                    env=os.environ | {f"HONE_SANDBOX_{k}": str(v) for k, v in given.items()},
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd="/",
                )
            service = Service(process, await _port(process, folder / "log"), folder)
            try:
                yield service
            finally:
                await service.close()


async def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            said = json.loads(line)
            if said["message"] == "serving":
                return int(said["port"])
        await asyncio.sleep(0.05)
    process.kill()
    raise RuntimeError(f"the service does not serve:\n{log.read_text()[-4000:]}")
