"""The test vectors of the design: the hostile cases on every backend that is put through them, and bursts.

Vector 13 is in `test_crash.py`. The cases themselves are in `hostile_cases.py`; beside other sandboxes they run in
`test_neighbours.py`, as an ordinary user in `test_rootless.py`.
"""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import hostile_cases
import pytest
import pytest_asyncio
from backends_under_test import UNDER_TEST
from hostile_cases import CASES, DoesNotHold
from rig import running_rig

from sandbox.backends.local.backend import LocalBackend
from sandbox.types import Cause, Termination
from servicekit.errors import DeadlineExceeded, HoneError, ResourceExhausted

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAIRS = [
    pytest.param(
        name,
        case,
        id=f"{name}-{case.name}-{case.what}",
        marks=pytest.mark.slow if case.is_slow or name != "local" else (),
    )
    for name, subject in UNDER_TEST.items()
    for case in CASES.values()
    if case.name in subject.vectors
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(request, tmp_path_factory, suite_maker, use):
    """One manager over each backend for all cases: starting one costs more than most of them."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    async with running_rig(name, UNDER_TEST[name], folder, suite_maker, use) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(running):
    """The manager, without sandboxes before and after."""
    yield running
    await running.clear()


@pytest.mark.parametrize(("running", "case"), _PAIRS, indirect=["running"])
async def test_hostile_case(rig, case, record_property):
    record_property("level", rig.info.isolation)
    record_property("case", case.name)
    by_design = hostile_cases.expected_to_fail(rig.info.isolation, case.name)
    if by_design is None:
        await case.attempt(rig)
        record_property("held", "yes")
        return
    with pytest.raises(DoesNotHold, match=by_design):
        await case.attempt(rig)
    record_property("held", "no")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager_over_local(tmp_path_factory, suite_maker, starter):
    """One manager over the embedded backend."""
    folder = tmp_path_factory.mktemp("vectors")
    made = suite_maker(LocalBackend(folder), folder, time.time)
    await starter(made)
    yield made
    await made.manager.close()


@pytest_asyncio.fixture(loop_scope="module")
async def real(manager_over_local):
    """The manager, without sandboxes before and after."""
    yield manager_over_local
    await manager_over_local.fleet.destroy_all(Cause.CANCELLED)


@pytest_asyncio.fixture(loop_scope="module")
async def box(real, use):
    """One real sandbox."""
    return use(real, (await real.create(real.rollout_id())).info)


async def test_15_creation_from_a_thread_that_ends_does_not_end_the_sandbox(real, use):
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    made = []

    def from_a_thread() -> None:
        future = asyncio.run_coroutine_threadsafe(real.create(real.rollout_id()), loop)
        made.append(future.result())
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=from_a_thread).start()
    await done.wait()
    box = use(real, made[0].info)
    assert (await box.sh("echo alive")).stdout == b"alive\n"


async def test_15b_a_create_whose_caller_gives_up_leaks_nothing(real):
    rollout_id = real.rollout_id()
    call = asyncio.ensure_future(real.create(rollout_id))
    await asyncio.sleep(0)
    call.cancel()
    again = await real.create(rollout_id)
    assert again.created is False
    await real.fleet.end_rollout(rollout_id)
    stats = real.manager.stats()
    assert (stats.live_count, stats.expected_count) == (0, 0)


async def test_python_and_sh_are_there_and_the_start_is_clean(box):
    outcome = await box.sh(
        "/usr/bin/env python3 -c 'print(6*7)'; pwd; ls -A; id -u; hostname; umask"
    )
    assert outcome.stdout.decode().split() == ["42", "/work", "0", "sandbox", "0022"]
    assert (await box.sh("echo out > /dev/stdout; echo err > /dev/stderr")).stderr == b"err\n"


async def test_killing_one_command_does_not_keep_another_from_starting(box):
    if box.info.isolation.endswith("-rlimits"):
        pytest.skip(f"forks are never refused at {box.info.isolation}")
    chain = "import os, time\nwhile os.fork() == 0: time.sleep(0.0005)\ntime.sleep(0.002)"
    for _ in range(5):
        bomb = asyncio.ensure_future(box.python(chain, timeout_seconds=0.1))
        while not bomb.done():
            assert (await box.sh("echo ready", timeout_seconds=5.0)).stdout == b"ready\n"
        assert (await bomb).termination in (Termination.EXITED, Termination.TIMED_OUT)


async def test_an_exec_id_runs_once(box):
    first, second = await asyncio.gather(
        box.sh("echo $$ >> /work/runs; cat /work/runs", exec_id="same"),
        box.sh("echo $$ >> /work/runs; cat /work/runs", exec_id="same"),
    )
    third = await box.sh("echo other", exec_id="same")
    assert first == second == third
    assert len((await box.read("/work/runs")).splitlines()) == 1


@pytest.mark.slow
async def test_14_a_hundred_creates_at_once(real):
    made = await asyncio.gather(*(real.create(real.rollout_id()) for _ in range(100)))
    assert len({one.info.sandbox_id for one in made}) == 100
    stats = real.manager.stats()
    assert stats.live_count == stats.expected_count == 100
    await real.fleet.destroy_all(Cause.CANCELLED)
    assert real.manager.stats().live_count == 0
    assert "/vectors0/" not in Path("/proc/self/mountinfo").read_text()


class Flaky:
    """Wraps a backend; of its creations some are refused, some hang, in an order that is always the same."""

    def __init__(self, backend) -> None:
        self._backend = backend
        self._number = 0

    def __getattr__(self, name):
        return getattr(self._backend, name)

    async def create(self, spec, on_lost):
        self._number += 1
        turn = self._number % 4
        if turn == 1:
            raise ResourceExhausted("429 from below", retry_after_seconds=0.01)
        if turn == 2:
            raise ResourceExhausted("exceeded quota", reason="QUOTA", retry_after_seconds=0.01)
        if turn == 3:
            await asyncio.Event().wait()
        return await self._backend.create(spec, on_lost)


async def test_14b_refusals_and_hangs_from_below_lose_nothing(backend, tmp_path, suite_maker):
    suite = suite_maker(
        Flaky(backend), tmp_path, time.time, provision_seconds=0.05, parallel_creates=25
    )
    await suite.manager.start()
    refusals = []

    async def persistent(rollout_id: str):
        while True:
            try:
                return await suite.create(rollout_id)
            except HoneError as error:
                refusals.append(error)
                assert error.retryable, error
                assert error.attributable == "infra"
                assert suite.fleet.stats().expected_count >= suite.fleet.stats().live_count

    made = await asyncio.gather(*(persistent(suite.rollout_id()) for _ in range(100)))
    ids = {one.info.sandbox_id for one in made}
    assert len(ids) == 100
    assert {type(error) for error in refusals} == {ResourceExhausted, DeadlineExceeded}
    assert backend.live_count() == suite.fleet.stats().expected_count == 100
    await suite.fleet.destroy_all(Cause.CANCELLED)
    assert backend.live_count() == suite.fleet.stats().expected_count == 0
    told = [(what, who) for what, who, _ in suite.events.log]
    assert sorted(told) == sorted((what, who) for who in ids for what in ("created", "destroyed"))
    await suite.manager.close()


async def test_the_spawner_imports_nothing_but_the_standard_library():
    code = (
        "import sys; sys.path.append(sys.argv[1]); import sandbox.spawner.main; "
        "print([m for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')])"
    )
    folder = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, check=True
    )
    assert done.stdout == b"[]\n"
