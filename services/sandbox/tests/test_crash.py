"""Vector 13: what holds the sandboxes is killed. They die with it, nothing stays, callers hear that they may retry."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.backends.local.backend import LocalBackend
from sandbox.types import Caller, Cause, Command, Role
from servicekit.errors import NotFound, Unavailable

NUM_SANDBOXES = 20

MANAGER = """
import asyncio, itertools, json, sys, time
from pathlib import Path
from sandbox.fleet.admission import Admission
from sandbox.backends.local.backend import LocalBackend
from sandbox.fleet.fleet import Fleet
from sandbox.figures.measures import Measures
from sandbox.fleet.plans import Plans
from sandbox.fleet.records import Records
from sandbox.fleet.turns import Turns
from sandbox.types import BoxKey, Command, CreateSpec, Limits, Purpose, Template
from servicekit.metrics import silent_meter

class Events:
    async def created(self, info): pass
    async def destroyed(self, record): pass

async def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    backend = LocalBackend(folder)
    numbers = itertools.count()
    fleet = Fleet(
        backend=backend, records=Records(folder / "records.jsonl"), events=Events(),
        admission=Admission(max_sandboxes=100, memory_budget_bytes=1 << 50, reserve_bytes=0,
            available_bytes=lambda: 1 << 40, clock=time.time),
        turns=Turns(8, 30.0, time.time), templates={"host": Template()},
        plans=Plans(default_template="host", most=0, seconds=1.0, clock=time.time),
        measures=Measures(time.time, silent_meter()),
        provision_seconds=30, clock=time.time, new_id=lambda: f"sbx_crash_{next(numbers):06d}",
        on_rollout_end=lambda _: None)
    await fleet.start()
    made = await asyncio.gather(*(
        fleet.obtain(CreateSpec(
            key=BoxKey(rollout_id=f"rollout-{i}", purpose=Purpose.AGENT, sequence=0),
            run_id="run-1", limits=Limits(), lifetime_seconds=600, idle_seconds=600), epoch=3)
        for i in range(count)))
    for one in made:
        entry = fleet.find(one.info.sandbox_id)
        command = Command(exec_id="x", argv=("sh", "-c", "sleep 783 >/dev/null 2>&1 &"))
        await entry.box.run(command, {"PATH": "/usr/bin:/bin"}, None)
    print(json.dumps({"spawner": backend.spawner_pid,
        "ids": {i.info.key.rollout_id: i.info.sandbox_id for i in made}}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
async def killed(real, tmp_path_factory):
    """The folder and sandboxes of a manager that was killed, together with its spawner, with 20 live."""
    folder = tmp_path_factory.mktemp("killed")
    with subprocess.Popen(
        [sys.executable, "-c", MANAGER, str(folder), str(NUM_SANDBOXES)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = json.loads(await asyncio.to_thread(process.stdout.readline))
        await _until_asleep(NUM_SANDBOXES)
        os.kill(process.pid, signal.SIGKILL)
        os.kill(said["spawner"], signal.SIGKILL)
    return folder, said["ids"]


@pytest.mark.slow
@pytest.mark.fault
async def test_sigkill_of_manager_and_spawner_leaves_nothing_after_a_restart(
    killed, suite_maker, starter
):
    folder, ids = killed
    suite = suite_maker(LocalBackend(folder), folder, time.time)
    await starter(suite)
    try:
        deadline = time.monotonic() + 5
        while _sleepers():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        stats = suite.manager.stats()
        assert (stats.live_count, stats.expected_count, stats.leaked_count) == (0, 0, 0)
        if not stats.isolation.endswith("-rlimits"):
            # Any manager of this host clears what dead ones left: another may have come first, or this one for another.
            while _groups(folder) != 1:  # the new manager's own generation
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()
        told = {(what, who, cause) for what, who, cause in suite.events.log}
        assert told == {("destroyed", who, "manager_lost") for who in ids.values()}
        await _callers_hear_that_it_was_lost(suite, ids)
    finally:
        await suite.manager.close()
    assert _groups(folder) == 0


async def _callers_hear_that_it_was_lost(suite, ids):
    for rollout_id, sandbox_id in ids.items():
        caller = Caller(rollout_id=rollout_id, epoch=3, role=Role.AGENT)
        with pytest.raises(Unavailable) as caught:
            await suite.manager.run(
                caller, rollout_id, sandbox_id, Command(exec_id="y", argv=("true",))
            )
        assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
        with pytest.raises(Unavailable, match="lost"):
            await suite.create(rollout_id, epoch=3)
    caller = Caller(rollout_id="rollout-new", epoch=1, role=Role.AGENT)
    with pytest.raises(NotFound):
        await suite.manager.run(
            caller, "rollout-new", "sbx_never_made", Command(exec_id="y", argv=("true",))
        )


@pytest.mark.fault
async def test_sigkill_of_the_spawner_loses_its_sandboxes_and_the_next_create_starts_another(
    real, use
):
    box = use(real, (await real.create(real.rollout_id())).info)
    running = asyncio.ensure_future(box.sh("sleep 784"))
    while not box.suite.fleet.find(box.info.sandbox_id).box.busy:
        await asyncio.sleep(0.01)
    os.kill(real.backend.spawner_pid, signal.SIGKILL)
    with pytest.raises(Unavailable) as caught:
        await running
    assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
    fresh = use(real, (await real.create(real.rollout_id())).info)
    assert (await fresh.sh("echo alive")).stdout == b"alive\n"
    with pytest.raises(Unavailable, match="lost"):
        await box.sh("echo gone")
    while not real.events.causes(box.info.sandbox_id):
        await asyncio.sleep(0.01)
    assert real.events.causes(box.info.sandbox_id) == [Cause.MANAGER_LOST]
    assert real.manager.stats().live_count == real.manager.stats().expected_count == 1


@pytest.mark.fault
async def test_sigkill_of_the_keeper_alone_takes_the_sandbox_with_it(real, use):
    box = use(real, (await real.create(real.rollout_id())).info)
    await box.sh("sleep 785 >/dev/null 2>&1 &")
    await _until_asleep(1, "785")
    os.kill(real.fleet.find(box.info.sandbox_id).box.keeper_pid, signal.SIGKILL)
    while real.manager.stats().expected_count:
        await asyncio.sleep(0.01)
    assert not _sleepers("785")
    assert real.manager.stats().live_count == 0
    with pytest.raises(Unavailable, match="lost"):
        await box.sh("echo gone")


async def _until_asleep(count: int, seconds: str = "783") -> None:
    """Wait until so many run the program: what a shell leaves in the background may not have become it yet."""
    async with asyncio.timeout(10):
        while len(_sleepers(seconds)) != count:
            await asyncio.sleep(0.01)


def _sleepers(seconds: str = "783") -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if Path(f"/proc/{name}/cmdline").read_bytes() == b"sleep\0%s\0" % seconds.encode():
                found.append(name)
        except OSError:
            continue
    return found


def _groups(folder: Path) -> int:
    """Count the generations of this folder's managers over all controllers, the most of any."""
    instance = (folder / "instance").read_text().strip()
    counts: dict[Path, int] = {}
    for top, names, _ in os.walk("/sys/fs/cgroup"):
        here = Path(top)
        if here.name == "hone-sandbox":
            counts[here] = sum(name.startswith(instance) for name in names)
            names.clear()
    return max(counts.values(), default=0)
