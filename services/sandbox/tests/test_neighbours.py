"""Every hostile case beside twenty other sandboxes: their files, processes and results, and the host, stay whole."""

import asyncio
import os
import random
import statistics
import time
from pathlib import Path

import pytest
import pytest_asyncio
from backends_under_test import UNDER_TEST
from hostile_cases import CASES
from rig import Rig, running_rig

from sandbox.types import MIB, Termination

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NUM_NEIGHBOURS = 20
SLOWER_AT_MOST = 50.0
"""How many times longer a neighbour's command may take while a hostile one takes all it can get."""

COUNTER = """
import os, time
number = 0
with open("/work/count", "w") as log:
    while not os.path.exists("/work/stop"):
        number += 1
        print(number, file=log, flush=True)
        time.sleep(0.05)
print(number)
"""


class Neighbour:
    """A sandbox with a file of known content, a process of its own, and a job that counts."""

    def __init__(self, box, content: bytes) -> None:
        self.box = box
        self.content = content
        self.pid = ""
        self.counting: asyncio.Future

    async def settle(self) -> None:
        await self.box.write("/work/mine", self.content)
        started = await self.box.sh("sleep 900 >/dev/null 2>&1 </dev/null & echo $!")
        self.pid = started.stdout.decode().strip()
        self.counting = asyncio.ensure_future(self.box.python(COUNTER, timeout_seconds=900.0))
        await self.must_count_beyond(0)

    async def count(self) -> int:
        return len((await self.box.read("/work/count")).splitlines())

    async def must_count_beyond(self, number: int) -> None:
        end = time.monotonic() + 20.0
        while not await self._has_counted_beyond(number):
            assert time.monotonic() < end, "a neighbour's job stands still"
            assert not self.counting.done(), self.counting.result()
            await asyncio.sleep(0.01)

    async def _has_counted_beyond(self, number: int) -> bool:
        found = await self.box.sh("cat /work/count 2>/dev/null | wc -l")
        return int(found.stdout) > number

    async def must_be_untouched(self) -> None:
        assert await self.box.read("/work/mine") == self.content
        said = await self.box.sh(f"cat /proc/{self.pid}/cmdline | tr '\\0' ' '; ls -A /work")
        assert said.stdout.decode().split() == ["sleep", "900", "count", "mine"]
        await self.must_count_beyond(await self.count())

    async def must_end_well(self) -> None:
        await self.box.write("/work/stop", b"")
        outcome = await asyncio.wait_for(self.counting, 20)
        assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, 0)
        counted = [int(line) for line in (await self.box.read("/work/count")).splitlines()]
        assert counted == list(range(1, int(outcome.stdout) + 1))

    async def answer_seconds(self) -> float:
        begun = time.monotonic()
        assert (await self.box.sh("echo here", timeout_seconds=60.0)).stdout == b"here\n"
        return time.monotonic() - begun


class Victims:
    """The lab of a hostile case, among neighbours: only what the case made is destroyed after it."""

    def __init__(self, rig: Rig) -> None:
        self.sees_processes = rig.sees_processes
        self.scratch = rig.scratch
        self._rig = rig
        self._made: list = []

    async def make(self, **limits: float):
        box = await self._rig.make(**limits)
        self._made.append(box)
        return box

    async def end(self, box) -> None:
        await self._rig.end(box)

    async def end_all(self) -> None:
        for box in self._made:
            await self.end(box)
        for path in self.scratch.iterdir():
            path.unlink()


def _bytes_on_disk(folder: Path) -> int:
    """Measure what the manager's folder takes of the host's disk, which others write to as well."""
    device = folder.stat().st_dev
    taken = 0
    for top, names, files in os.walk(folder):
        names[:] = [name for name in names if os.lstat(f"{top}/{name}").st_dev == device]
        taken += sum(os.lstat(f"{top}/{name}").st_blocks * 512 for name in files)
    return taken


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def street(tmp_path_factory, suite_maker, use):
    """A manager with twenty neighbours, the same for all cases: damage that shows late shows too."""
    rng = random.Random(20)
    folder = tmp_path_factory.mktemp("neighbours")
    async with running_rig("local", UNDER_TEST["local"], folder, suite_maker, use) as rig:
        boxes = await asyncio.gather(*(rig.make() for _ in range(NUM_NEIGHBOURS)))
        neighbours = [Neighbour(box, rng.randbytes(10_000)) for box in boxes]
        await asyncio.gather(*(one.settle() for one in neighbours))
        yield rig, neighbours, folder
        await asyncio.gather(*(one.must_end_well() for one in neighbours))


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=f"{one.name}-{one.what}") for one in CASES.values()]
)
async def test_neighbours_and_host_stay_untouched(street, case):
    rig, neighbours, folder = street
    if rig.info.isolation != "ns-root":
        pytest.skip(f"test_rootless.py says what holds at {rig.info.isolation}")
    before = rig.census()
    on_disk = _bytes_on_disk(folder)
    counts = await asyncio.gather(*(one.count() for one in neighbours))
    victims = Victims(rig)
    try:
        if case.is_heavy:
            await _attempt_and_measure(case, victims, neighbours)
        else:
            await case.attempt(victims)
    finally:
        await victims.end_all()
    await asyncio.gather(*(one.must_be_untouched() for one in neighbours))
    for one, count in zip(neighbours, counts, strict=True):
        assert await one.count() > count
    await rig.assert_nothing_more_than(before)
    assert before <= rig.census()
    assert rig.backend.live_count() == NUM_NEIGHBOURS
    assert _bytes_on_disk(folder) - on_disk < 16 * MIB


async def _attempt_and_measure(case, victims, neighbours) -> None:
    """Make the attempt; neighbours are answered meanwhile about as quickly as before."""
    before = [await one.answer_seconds() for one in neighbours]
    attempt = asyncio.ensure_future(case.attempt(victims))
    meanwhile = []
    while not attempt.done():
        for one in neighbours:
            meanwhile.append(await one.answer_seconds())
            if attempt.done():
                break
    await attempt
    ratio = statistics.median(meanwhile) / statistics.median(before)
    assert ratio < SLOWER_AT_MOST, f"neighbours were answered {ratio:.0f} times more slowly"
