"""Every way to be destroyed on the real service with a real nats-server: each leaves nothing on the host.

And the worst of them: manager and spawner killed at once with fifty sandboxes at work.
"""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from backends_under_test import children_of, descendants, group_folders, reap_orphans
from google.protobuf.duration_pb2 import Duration
from hone.common.v1 import outcome_pb2
from hone.events.v1 import events_pb2
from hone.sandbox.v1 import sandbox_pb2 as pb
from hone.sandbox.v1 import sandbox_pb2_grpc
from service_process import Service

from eventbus.envelope import new_envelope
from eventbus.nats_bus import NatsBus
from eventbus.testing import nats_server
from servicekit.channels import connect
from servicekit.errors import FailedPrecondition, HoneError, NotFound, Unavailable
from servicekit.tokens import TokenMinter

__all__ = ["nats_server"]

pytestmark = [pytest.mark.slow, pytest.mark.fault]

WAIT_SECONDS = 20.0
NUM_LIVE = 50
WORK = "setsid sleep 795 >/dev/null 2>&1 </dev/null & echo kept > /work/kept"


class Machine:
    """The running service, its log, and what exists of its sandboxes on this machine."""

    def __init__(self, service: Service, bus: NatsBus) -> None:
        self.service = service
        self.bus = bus
        self._minter = TokenMinter(service.key_file, time.time)

    @contextlib.asynccontextmanager
    async def calls(self, rollout_id: str, role: str = "agent"):
        token = self._minter.mint(rollout_id, 1, role, 120)  # type: ignore[arg-type]
        async with connect(f"127.0.0.1:{self.service.port}", token=lambda: token) as channel:
            yield sandbox_pb2_grpc.SandboxServiceStub(channel)

    async def tell(self, payload: object, rollout_id: str) -> None:
        await self.bus.publish(
            new_envelope(
                payload, source="test", run_id="run-1", rollout_id=rollout_id, clock=time.time
            )
        )

    async def cause_of(self, sandbox_id: str) -> str:
        """Wait until the end of a sandbox is told; return its cause."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                causes = [
                    one.envelope.sandbox_destroyed.cause
                    async for one in self.bus.read(["sandbox_destroyed"])
                    if one.envelope.sandbox_destroyed.sandbox_id == sandbox_id
                ]
                if causes:
                    assert len(causes) == 1
                    return causes[0]
                await asyncio.sleep(0.05)

    def spawner(self) -> int:
        """Find the spawner: the service's one child."""
        assert self.service.process is not None
        (spawner,) = children_of(self.service.process.pid)
        return spawner

    def left(self) -> list[str]:
        """List what exists of sandboxes: processes, control groups, mounts."""
        data = self.service.folder / "data"
        found = [f"group {folder}" for folder in group_folders(data)]
        assert self.service.process is not None
        if self.service.process.poll() is None:
            found += [f"process {pid}" for pid in descendants(self.spawner())]
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "cmdline").read_bytes() == b"sleep\x00795\x00":
                    found.append(f"process {path.name} sleep")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return found + [line for line in mounts if str(data) in line]

    async def must_be_clean(self) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while left := self.left():
            assert time.monotonic() < end, left
            await asyncio.sleep(0.02)


@pytest.fixture
async def machine(nats_server, tmp_path):
    service = Service(tmp_path, nats_server.url)
    await service.start()
    async with await NatsBus.connect(nats_server.url, name="test") as bus:
        yield Machine(service, bus)
    if service.process.poll() is None:
        await service.end(signal.SIGKILL)


async def make(machine: Machine, rollout: int = 1, **fields: object) -> dict[str, str]:
    """Make the sandbox of a rollout, in which a process and a file are left behind."""
    rollout_id = str(uuid.UUID(int=rollout))
    async with machine.calls(rollout_id) as stub:
        made = await stub.CreateSandbox(
            pb.CreateSandboxRequest(rollout_id=rollout_id, run_id="run-1", purpose=1, **fields)
        )
        target = {"rollout_id": rollout_id, "sandbox_id": made.sandbox.sandbox_id}
        spec = pb.ExecSpec(**target, exec_id="work", argv=["sh", "-c", WORK])
        done = await stub.Exec(pb.ExecRequest(exec=spec))
        assert done.result.exit_code == 0
    await _until(lambda: any("sleep" in one for one in machine.left()))
    return target


async def exec_in(machine: Machine, target: dict[str, str], *argv: str):
    async with machine.calls(target["rollout_id"]) as stub:
        spec = pb.ExecSpec(**target, exec_id="later", argv=argv or ("true",))
        return await stub.Exec(pb.ExecRequest(exec=spec))


async def must_have_ended(machine: Machine, target: dict[str, str], cause: str, kind) -> HoneError:
    assert await machine.cause_of(target["sandbox_id"]) == cause
    await machine.must_be_clean()
    with pytest.raises(kind) as caught:
        await exec_in(machine, target)
    async with machine.calls("", "operator") as stub:
        stats = await stub.GetStats(pb.GetStatsRequest())
    assert (stats.live_count, stats.expected_count) == (0, 0)
    return caught.value


async def test_1_the_outcome(machine):
    scored = await make(machine)
    await machine.tell(
        events_pb2.RewardAssigned(scored=outcome_pb2.Scored(), grader_version="g1"),
        scored["rollout_id"],
    )
    await must_have_ended(machine, scored, "outcome", NotFound)
    failed = await make(machine, 2)
    await machine.tell(
        events_pb2.RolloutFailed(failure=outcome_pb2.Failure()), failed["rollout_id"]
    )
    await must_have_ended(machine, failed, "outcome", NotFound)


async def test_2_a_cancel(machine):
    target = await make(machine)
    async with machine.calls("", "operator") as stub:
        reply = await stub.DestroyByRun(pb.DestroyByRunRequest(run_id="run-1"))
    assert reply.destroyed_count == 1
    await must_have_ended(machine, target, "cancelled", NotFound)


async def test_3_the_idle_lease(machine):
    target = await make(machine, idle_timeout=Duration(seconds=1))
    error = await must_have_ended(machine, target, "idle", NotFound)
    assert "idle" in error.message


async def test_4_the_lifetime_however_busy(machine):
    target = await make(machine, lifetime=Duration(seconds=2))
    with pytest.raises(FailedPrecondition) as caught:
        await exec_in(machine, target, "sleep", "50")
    assert caught.value.reason == "ROLLOUT_TIMEOUT"
    error = await must_have_ended(machine, target, "lifetime", FailedPrecondition)
    assert error.reason == "ROLLOUT_TIMEOUT"


async def test_5_the_death_of_the_manager(machine):
    target = await make(machine)
    orphans = descendants(machine.service.process.pid)
    assert await machine.service.end(signal.SIGKILL) == -signal.SIGKILL
    await asyncio.to_thread(reap_orphans, orphans)
    await machine.service.start()
    error = await must_have_ended(machine, target, "manager_lost", Unavailable)
    assert (error.reason, error.retryable) == ("SANDBOX_LOST", True)


async def test_fifty_at_work_when_manager_and_spawner_are_killed_at_once(machine):
    targets = await asyncio.gather(*(make(machine, number + 1) for number in range(NUM_LIVE)))
    at_work = [asyncio.ensure_future(exec_in(machine, one, "sleep", "795")) for one in targets]
    await _until(lambda: len([one for one in machine.left() if "sleep" in one]) == 2 * NUM_LIVE)
    spawner = machine.spawner()
    orphans = descendants(machine.service.process.pid)
    assert len(orphans) > 3 * NUM_LIVE
    os.kill(machine.service.process.pid, signal.SIGKILL)
    os.kill(spawner, signal.SIGKILL)
    answers = await asyncio.gather(*at_work, return_exceptions=True)
    assert {type(one) for one in answers} == {Unavailable}
    assert all(one.retryable for one in answers)
    await machine.service.end(signal.SIGKILL)
    await asyncio.to_thread(reap_orphans, orphans)
    await machine.service.start()
    await machine.must_be_clean()
    for target in targets:
        with pytest.raises(Unavailable) as caught:
            await exec_in(machine, target)
        assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
    causes = [await machine.cause_of(target["sandbox_id"]) for target in targets]
    assert causes == ["manager_lost"] * NUM_LIVE
    again = await make(machine, NUM_LIVE + 1)  # as a new attempt
    assert (await exec_in(machine, again, "cat", "/work/kept")).result.stdout == b"kept\n"
    assert await machine.service.end(signal.SIGTERM) == 0
    await machine.must_be_clean()


async def _until(condition) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)
