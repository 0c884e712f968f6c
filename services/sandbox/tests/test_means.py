"""A manager without descriptors to spare: its faults are told as its own, nothing is lost, and all goes on later."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from sandbox.fleet.reaper import tend
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import Command
from servicekit.errors import Unavailable


@contextlib.contextmanager
def _room_for(num_descriptors: int) -> Iterator[None]:
    """Let this process open so many descriptors and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free: list[int] = []
    while len(free) <= num_descriptors:
        free.append(os.dup(0))
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("room", [0, 2, 4, 5])
async def test_a_command_that_cannot_be_started_is_our_fault_and_the_next_runs(real, box, room):
    raw = real.fleet.find(box.info.sandbox_id).box
    before = _open_descriptors()
    # Five for its pipes; what is too long for a packet takes one more.
    argv = ("sh", "-c", f"echo on # {'x' * 40_000}")
    with _room_for(room), pytest.raises(Unavailable) as caught:
        await raw.run(Command(exec_id=f"room-{room}", argv=argv), DEFAULT_ENV, None)
    assert caught.value.reason == "NO_MEANS"
    assert _open_descriptors() == before
    assert (await box.sh("echo on")).stdout == b"on\n"


async def test_a_sandbox_is_destroyed_all_the_same(real, box):
    with _room_for(0):
        await real.manager.destroy(box.caller, box.info.key.rollout_id, box.info.sandbox_id)
    assert real.manager.stats().live_count == 0
    assert real.events.causes(box.info.sandbox_id) == ["requested"]


async def test_a_create_is_our_fault_and_the_reaper_goes_on(real, caplog):
    stop = asyncio.Event()
    tending = asyncio.ensure_future(tend(real.fleet, stop, sweep_seconds=0.01, reap_seconds=0.01))
    with _room_for(0):
        with pytest.raises(Unavailable) as caught:
            await real.create(real.rollout_id())
        async with asyncio.timeout(5):
            while sum("lacks the means" in record.message for record in caplog.records) < 2:
                await asyncio.sleep(0.01)
    assert caught.value.reason == "NO_MEANS"
    assert (await real.create(real.rollout_id())).created
    stop.set()
    await tending
    assert real.manager.stats().leaked_count == 0
