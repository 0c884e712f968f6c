"""What every backend has to keep: birth, death, loss and counting, commands, files, archives, snapshots.

Runs whole over each row of `backends_under_test.py` that this machine can run, and over the scripted backend of the
other tests as far as it runs no programs, so that the fake keeps what the real ones keep.
"""

import asyncio
import contextlib
import itertools
import re
import time

import pytest
import pytest_asyncio
from backends_under_test import UNDER_TEST, Subject, rows
from rig import Rig, running_rig

from sandbox.backends.protocol import BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import (
    Command,
    Feature,
    Owner,
    Purpose,
    Stream,
    Termination,
)
from servicekit.errors import InvalidArgument, Unavailable

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPTED = "scripted"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[*rows(), SCRIPTED])
async def running(request, tmp_path_factory, suite_maker, use, scripted_type):
    """One manager over each backend for the whole suite."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    subject = UNDER_TEST[name] if name != SCRIPTED else _scripted(scripted_type)
    async with running_rig(name, subject, folder, suite_maker, use) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(running):
    """The manager, without sandboxes before and after."""
    yield running
    await running.clear()


def _scripted(scripted_type) -> Subject:
    @contextlib.asynccontextmanager
    async def opened(folder):
        yield scripted_type()

    async def lose(backend, box):
        box.destroyed = True  # the outside world ended it
        box.on_lost(box.sandbox_id)

    return Subject(open=opened, runs_programs=False, lose=lose)


_numbers = itertools.count()


def command(*argv: str, **changes: object) -> Command:
    base = {"exec_id": f"c{next(_numbers)}", "argv": argv, "timeout_seconds": 20.0}
    return Command(**(base | changes))


async def run(box, *argv: str, **changes: object):
    return await box.run(command(*argv, **changes), DEFAULT_ENV, None)


async def until(condition, what: str) -> None:
    end = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)


# Birth, death and counting.


async def test_it_offers_what_its_row_says(rig: Rig):
    assert rig.info.features == rig.subject.features
    assert rig.info.backend
    assert rig.info.isolation


async def test_what_is_made_counts_until_it_is_destroyed(rig: Rig):
    before = rig.census()
    boxes = [await rig.create() for _ in range(3)]
    assert rig.backend.live_count() == 3
    assert rig.subject.census is None or len(rig.census() - before) >= 3
    await boxes[0].destroy()
    assert rig.backend.live_count() == 2
    await asyncio.gather(*(box.destroy() for box in (*boxes, *boxes)))
    assert rig.backend.live_count() == 0
    await boxes[1].destroy()
    await rig.assert_nothing_more_than(before)
    assert rig.lost == []  # what was asked for is no loss


async def test_a_manager_makes_one_of_a_key_and_destroys_it_once(rig: Rig):
    rollout_id = rig.suite.rollout_id()
    made = await asyncio.gather(*(rig.suite.create(rollout_id) for _ in range(5)))
    assert len({one.info.sandbox_id for one in made}) == 1
    assert sum(one.created for one in made) == 1
    assert rig.backend.live_count() == 1
    await asyncio.gather(*(rig.suite.fleet.end_rollout(rollout_id) for _ in range(3)))
    assert rig.backend.live_count() == 0
    assert rig.suite.events.causes(made[0].info.sandbox_id) == ["outcome"]


async def test_all_of_one_template_start_from_the_same(rig: Rig):
    first, second = await rig.create(), await rig.create()
    assert first.rootfs_digest == second.rootfs_digest
    assert re.fullmatch(r"sha256:[0-9a-f]+", first.rootfs_digest)


async def test_twenty_at_once_are_twenty(rig: Rig):
    before = rig.census()
    boxes = await asyncio.gather(*(rig.create() for _ in range(20)))
    assert rig.backend.live_count() == 20
    if rig.subject.runs_programs:
        outcomes = await asyncio.gather(
            *(run(box, "sh", "-c", f"echo {n} > /tmp/n; cat /tmp/n") for n, box in enumerate(boxes))
        )
        assert [int(outcome.stdout) for outcome in outcomes] == list(range(20))
    await asyncio.gather(*(box.destroy() for box in boxes))
    assert rig.backend.live_count() == 0
    await rig.assert_nothing_more_than(before)


async def test_a_create_that_is_cancelled_half_way_leaves_nothing(rig: Rig):
    begun = time.monotonic()
    await (await rig.create()).destroy()
    whole = time.monotonic() - begun
    before = rig.census()
    for part in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
        creating = asyncio.ensure_future(rig.backend.create(rig.box_spec(), rig.lost.append))
        await asyncio.wait([creating], timeout=part * whole)
        creating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await creating).destroy()  # it was quicker; then it is ours to destroy
        assert rig.backend.live_count() == 0, f"cancelled after {part} of a creation"
    await rig.assert_nothing_more_than(before)
    assert rig.lost == []


BESIDE_OTHERS = ("local", "optimistic", "runsc")
"""Work in the same control group as every manager of this machine: they also count what one killed there left."""


async def test_reaping_takes_nothing_that_is_known(rig: Rig):
    specs = [rig.box_spec(), rig.box_spec()]
    boxes = [await rig.backend.create(spec, rig.lost.append) for spec in specs]
    reaped = await rig.backend.reap(frozenset(spec.sandbox_id for spec in specs))
    assert reaped == 0 or rig.name in BESIDE_OTHERS
    assert rig.backend.live_count() == 2
    for box in boxes:
        await box.destroy()
    assert await rig.backend.reap(frozenset()) == 0 or rig.name in BESIDE_OTHERS
    assert rig.backend.live_count() == 0


async def test_a_box_that_was_made_ahead_is_handed_over(rig: Rig):
    if Feature.WARM_POOL not in rig.info.features:
        pytest.skip(f"{rig.name} does not offer warm_pool")
    box = await rig.create(owner=None)
    await box.claim(Owner(rollout_id=rig.suite.rollout_id(), run_id="r", purpose=Purpose.AGENT))
    assert rig.backend.live_count() == 1
    if rig.subject.runs_programs:
        assert (await run(box, "echo", "mine")).stdout == b"mine\n"


# Loss.


async def test_a_box_that_dies_unasked_is_said_to_be_lost(rig: Rig):
    if rig.subject.lose is None:
        pytest.skip(f"{rig.name}: no way to make one die from outside")
    before = rig.census()
    spec = rig.box_spec()
    box = await rig.backend.create(spec, rig.lost.append)
    other = await rig.create()
    await rig.subject.lose(rig.backend, box)
    await until(lambda: rig.lost, "nobody was told")
    with pytest.raises(BoxLost):
        await run(box, "true")
    assert rig.lost == [spec.sandbox_id]
    await box.destroy()
    await box.destroy()
    assert rig.backend.live_count() == 1
    await other.destroy()
    await rig.assert_nothing_more_than(before)


async def test_a_command_under_way_hears_of_the_loss(rig: Rig):
    if rig.subject.lose is None:
        pytest.skip(f"{rig.name}: no way to make one die from outside")
    rig.need_programs()
    box = await rig.create()
    said = asyncio.Event()
    running = asyncio.ensure_future(
        box.run(command("sh", "-c", "echo up; sleep 50"), DEFAULT_ENV, lambda _: said.set())
    )
    await asyncio.wait_for(said.wait(), 10)
    await rig.subject.lose(rig.backend, box)
    with pytest.raises(BoxLost):
        await asyncio.wait_for(running, 20)


async def test_callers_of_the_manager_hear_a_retryable_error(rig: Rig):
    if rig.subject.lose is None:
        pytest.skip(f"{rig.name}: no way to make one die from outside")
    box = await rig.make()
    await rig.subject.lose(rig.backend, rig.raw(box))
    await until(lambda: not rig.suite.fleet.entries(), "it stays in the table")
    with pytest.raises(Unavailable) as caught:
        await box.run("true")
    assert (caught.value.reason, caught.value.retryable) == ("SANDBOX_LOST", True)
    with pytest.raises(Unavailable, match="lost"):
        await rig.suite.create(box.info.key.rollout_id)
    await until(lambda: rig.suite.events.causes(box.info.sandbox_id), "the log was not told")
    assert rig.suite.events.causes(box.info.sandbox_id) == ["manager_lost"]


async def test_a_destroyed_box_takes_no_command_and_ends_the_one_under_way(rig: Rig):
    box = await rig.create()
    if rig.subject.runs_programs:
        said = asyncio.Event()
        running = asyncio.ensure_future(
            box.run(command("sh", "-c", "echo up; sleep 50"), DEFAULT_ENV, lambda _: said.set())
        )
        await asyncio.wait_for(said.wait(), 10)
        await box.destroy()
        with pytest.raises(BoxLost):
            await asyncio.wait_for(running, 20)
    else:
        await box.destroy()
    with pytest.raises(BoxLost):
        await run(box, "true")
    assert rig.lost == []


async def test_what_a_dead_manager_left_is_cleared_at_start(rig: Rig, tmp_path, suite_maker, use):
    subject = rig.subject
    if subject.leave_remains is None:
        pytest.skip(f"{rig.name} has no row for it")
    async with subject.open(tmp_path) as backend:
        await subject.leave_remains(backend, tmp_path, 3)
        await backend.start()
        await backend.reap(frozenset())
        assert backend.live_count() == 0
        if subject.census is not None:
            left = subject.census
            await until(lambda: not left(backend, tmp_path), "remains of the dead manager")
        box = await backend.create(rig.box_spec(), rig.lost.append)
        await box.destroy()
        await backend.close()


# Commands.


@pytest_asyncio.fixture(loop_scope="module")
async def box(rig: Rig):
    """One sandbox that runs programs."""
    rig.need_programs()
    return await rig.create()


async def test_arguments_arrive_as_they_were_given(box):
    words = ("a b", "", "'quoted\"", "$HOME", "line\nbreak", "ünïcode", "-n", "x" * 100_000)
    script = "import sys, json; print(json.dumps(sys.argv[1:]))"
    outcome = await run(box, "python3", "-c", script, *words)
    import json

    assert json.loads(outcome.stdout) == list(words)


async def test_environment_folder_and_input_reach_the_command(box):
    data = bytes(range(256)) * 1000
    spec = command("sh", "-c", "cat; pwd; echo $WORD", stdin=data, working_dir="/tmp")
    outcome = await box.run(spec, {**DEFAULT_ENV, "WORD": "two words"}, None)
    assert outcome.stdout == data + b"/tmp\ntwo words\n"
    closed = await run(box, "cat")
    assert (closed.exit_code, closed.stdout) == (0, b"")


async def test_nothing_of_the_manager_s_environment_is_there(box, monkeypatch):
    monkeypatch.setenv("HONE_SECRET", "secret")
    outcome = await box.run(command("env"), {**DEFAULT_ENV, "ONLY": "this"}, None)
    assert b"ONLY=this" in outcome.stdout
    assert b"HONE" not in outcome.stdout


@pytest.mark.parametrize("code", [0, 1, 7, 255])
async def test_exit_codes_are_data(box, code):
    outcome = await run(box, "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, code)
    assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")
    assert not (outcome.stdout_truncated or outcome.stderr_truncated or outcome.output_incomplete)


async def test_a_signal_is_data(box):
    outcome = await run(box, "sh", "-c", "echo before; kill -TERM $$; echo after")
    assert (outcome.termination, outcome.signal) == (Termination.SIGNALED, 15)
    assert outcome.stdout == b"before\n"


async def test_a_program_that_cannot_start_is_what_a_shell_would_say(box):
    missing = await run(box, "no-such-program", "x")
    assert (missing.termination, missing.exit_code) == (Termination.EXITED, 127)
    assert b"no-such-program" in missing.stderr
    refused = await run(box, "/etc/passwd")
    assert (refused.termination, refused.exit_code) == (Termination.EXITED, 126)
    nowhere = await run(box, "true", working_dir="/nowhere")
    assert nowhere.termination is Termination.EXITED
    assert nowhere.exit_code != 0


async def test_output_comes_while_the_command_runs(box):
    first = asyncio.Event()
    chunks = []

    def take(chunk):
        chunks.append(chunk)
        first.set()

    script = "echo one; until [ -e /tmp/go ]; do sleep 0.02; done; echo two >&2"
    running = asyncio.ensure_future(box.run(command("sh", "-c", script), DEFAULT_ENV, take))
    await asyncio.wait_for(first.wait(), 10)
    assert not running.done()
    await run(box, "touch", "/tmp/go")
    outcome = await running
    by_stream = {
        stream: b"".join(chunk.data for chunk in chunks if chunk.stream is stream)
        for stream in Stream
    }
    assert by_stream == {Stream.STDOUT: b"one\n", Stream.STDERR: b"two\n"}
    assert outcome.termination is Termination.EXITED


async def test_output_is_capped_and_its_ends_are_kept(box):
    script = "import sys; sys.stdout.write('a' * 5000 + 'b' * 5000); sys.stderr.write('c' * 100)"
    outcome = await run(box, "python3", "-c", script, max_output_bytes=1000)
    assert outcome.stdout_truncated
    assert not outcome.stderr_truncated
    assert len(outcome.stdout) == 1000
    assert (outcome.stdout[:1], outcome.stdout[-1:]) == (b"a", b"b")
    assert outcome.stderr == b"c" * 100


async def test_a_timeout_kills_and_keeps_what_was_said(box):
    script = "echo begun; sleep 786 & sleep 786"
    outcome = await run(box, "sh", "-c", script, timeout_seconds=0.4)
    assert outcome.termination is Termination.TIMED_OUT
    assert outcome.stdout == b"begun\n"
    assert await _inside(box, "sleep 786") == 0


async def test_kill_ends_a_command_with_all_it_started(box):
    said = asyncio.Event()
    spec = command("sh", "-c", "sleep 787 & echo up; sleep 787", exec_id="victim")
    running = asyncio.ensure_future(box.run(spec, DEFAULT_ENV, lambda _: said.set()))
    beside = asyncio.ensure_future(run(box, "sh", "-c", "sleep 0.3; echo untouched"))
    await asyncio.wait_for(said.wait(), 10)
    await box.kill("victim")
    assert (await asyncio.wait_for(running, 10)).termination is Termination.KILLED
    assert await _inside(box, "sleep 787") == 0
    assert (await beside).stdout == b"untouched\n"
    await box.kill("victim")
    await box.kill("never-was")


async def test_a_caller_that_goes_away_takes_its_command_with_it(box):
    said = asyncio.Event()
    spec = command("sh", "-c", "echo up; sleep 788")
    running = asyncio.ensure_future(box.run(spec, DEFAULT_ENV, lambda _: said.set()))
    await asyncio.wait_for(said.wait(), 10)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    end = time.monotonic() + 10
    while await _inside(box, "sleep 788"):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_survivors_live_on_unless_they_are_to_die(rig, box):
    if not rig.subject.survivors:
        pytest.skip(f"{rig.name} lets nothing outlive its command")
    script = "setsid sleep 789 >/dev/null 2>&1 & echo done"
    outcome = await run(box, "sh", "-c", script, kill_survivors=True)
    assert (outcome.termination, outcome.stdout) == (Termination.EXITED, b"done\n")
    assert await _inside(box, "sleep 789") == 0
    await run(box, "sh", "-c", script)
    async with asyncio.timeout(10):  # it may not have become this program yet
        while await _inside(box, "sleep 789") != 1:
            pass


async def test_a_pipe_that_is_still_held_is_said(rig, box):
    if not rig.subject.survivors:
        pytest.skip(f"{rig.name} lets nothing outlive its command")
    outcome = await run(box, "sh", "-c", "sleep 790 & echo started")
    assert (outcome.exit_code, outcome.stdout) == (0, b"started\n")
    assert outcome.output_incomplete
    ended = await run(box, "sh", "-c", "sleep 791 & echo started", kill_survivors=True)
    assert ended.stdout == b"started\n"
    assert await _inside(box, "sleep 791") == 0


async def test_commands_run_side_by_side(box):
    scripts = [
        f"echo {n} > /tmp/m{n}; until [ -e /tmp/m{9 - n} ]; do sleep 0.02; done; echo {n}"
        for n in range(10)
    ]
    outcomes = await asyncio.gather(*(run(box, "sh", "-c", script) for script in scripts))
    assert [int(outcome.stdout) for outcome in outcomes] == list(range(10))


async def test_files_stay_from_one_command_to_the_next(box):
    await run(box, "sh", "-c", "echo kept > /tmp/kept; export LOST=1")
    outcome = await run(box, "sh", "-c", 'cat /tmp/kept; echo "[$LOST]"')
    assert outcome.stdout == b"kept\n[]\n"


async def _inside(box, words: str) -> int:
    """Count the living processes of the sandbox that run this."""
    script = (
        "import os, sys\nn = 0\nfor p in os.listdir('/proc'):\n"
        "    if not p.isdigit(): continue\n"
        "    try:\n"
        "        line = open(f'/proc/{p}/cmdline').read().rstrip('\\0').replace('\\0', ' ')\n"
        "        n += line == sys.argv[1]\n"
        "    except OSError: pass\n"
        "print(n)"
    )
    return int((await run(box, "python3", "-c", script, words)).stdout)


async def test_a_bad_path_is_the_caller_s_doing(rig: Rig):
    rig.need(Feature.FILES)
    box = await rig.create()
    with pytest.raises(InvalidArgument):
        await box.read_file("/work", 0, 0)
