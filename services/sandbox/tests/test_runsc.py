"""What gVisor without a daemon does beside the contract: its refusals, its limits, what it leaves."""

import asyncio
import itertools
from pathlib import Path

import hostile_cases
import pytest
import pytest_asyncio
import runsc_rows
from small_root import add_program, add_python

from sandbox.backends.runsc.backend import RunscBackend
from sandbox.rootfs import DEFAULT_ENV
from sandbox.settings import RunscOptions
from sandbox.types import MIB, BoxSpec, Command, ExecOutcome, Limits, Template, Termination
from servicekit.errors import FailedPrecondition

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count()


class Made:
    """A started backend, and what became of its sandboxes."""

    def __init__(self, backend: RunscBackend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.lost: list[str] = []

    async def box(self, **changes):
        spec = BoxSpec(sandbox_id=f"sbx_{next(_numbers):032x}", **changes)
        return await self.backend.create(spec, self.lost.append)

    def census(self) -> frozenset[str]:
        return runsc_rows.census(self.backend, self.folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runsc")
    async with runsc_rows.opened(folder) as backend:
        await backend.start()
        yield Made(backend, folder)
        await backend.close()


async def run(box, *argv: str, **changes) -> ExecOutcome:
    values = {"timeout_seconds": 20.0, **changes}
    command = Command(exec_id=f"x{next(_numbers)}", argv=argv, **values)
    return await box.run(command, DEFAULT_ENV, None)


@pytest.mark.parametrize(
    ("program", "said"),
    [("no-such-runsc", "not installed"), ("false", "makes no usable sandboxes")],
)
async def test_it_refuses_where_it_cannot_isolate(tmp_path, program, said):
    runsc_rows.need_runsc()
    backend = RunscBackend(tmp_path, RunscOptions(program=program, start_seconds=5.0))
    with pytest.raises(FailedPrecondition, match=said) as caught:
        await backend.start()
    assert caught.value.reason == "ISOLATION_UNAVAILABLE"
    assert caught.value.attributable == "infra"
    await backend.close()
    assert not runsc_rows.census(backend, tmp_path)


async def test_a_program_that_never_answers_is_given_up(tmp_path):
    runsc_rows.need_runsc()
    program = tmp_path / "mute"
    program.write_text("#!/bin/sh\nexec sleep 792\n")
    program.chmod(0o755)
    state = tmp_path / "state"
    backend = RunscBackend(state, RunscOptions(program=str(program), start_seconds=0.5))
    with pytest.raises(FailedPrecondition, match="makes no usable sandboxes"):
        await backend.start()
    assert not hostile_cases.processes("sleep", "792")
    await backend.close()
    assert not runsc_rows.census(backend, state)


async def test_commands_have_no_rights_over_what_holds_them(made):
    box = await made.box()
    outcome = await run(
        box,
        "sh",
        "-c",
        "grep -h '^Cap[IPE]' /proc/self/status; kill -9 1; cat /proc/1/mem; id -u; echo x > /etc/x; echo x > /usr/x",
    )
    lines = outcome.stdout.decode().split()
    assert [word for word in lines if len(word) == 16] == ["0" * 16] * 3
    assert lines[-1] == "1000"
    assert outcome.stderr.count(b"ermi") + outcome.stderr.count(b"Read-only") >= 3, outcome
    assert (await run(box, "echo", "usable")).stdout == b"usable\n"
    await box.destroy()


async def test_what_leads_from_the_agent_to_the_manager_is_closed_to_commands(made):
    box = await made.box()
    script = """
import os
for number in os.listdir("/proc/1/fd"):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            path = f"/proc/1/fd/{number}"
            opened = os.open(path, flags | os.O_NONBLOCK)
        except OSError:
            continue
        print(os.readlink(path))
"""
    outcome = await run(box, "python3", "-c", script)
    assert outcome.exit_code == 0, outcome
    own = [line for line in outcome.stdout.decode().split() if line.startswith("pipe:")]
    assert set(outcome.stdout.decode().split()) == {"/dev/null", *own}
    assert len(set(own)) <= 2  # the command's own output
    await box.destroy()


async def test_nothing_of_the_manager_s_environment_is_in_a_process_of_the_runtime(
    made, monkeypatch
):
    monkeypatch.setenv("HONE_SECRET", "a-secret-of-this-test")
    box = await made.box()
    kernels = runsc_rows.kernels_of(box.sandbox_id)
    assert kernels
    for pid in kernels:
        assert b"HONE_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    await box.destroy()


async def test_what_hides_in_sessions_of_its_own_dies_with_its_command(made):
    box = await made.box()
    script = (
        "trap '' TERM; setsid sleep 793 & nohup setsid sh -c 'sleep 793 & sleep 793' "
        ">/dev/null 2>&1 & echo up; wait; sleep 793"
    )
    outcome = await run(box, "sh", "-c", script, timeout_seconds=0.7)
    assert (outcome.termination, outcome.stdout) == (Termination.TIMED_OUT, b"up\n")
    alive = await run(
        box, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 793'"
    )
    assert alive.stdout == b"0\n"
    await box.destroy()


async def test_memory_beyond_the_limit_ends_the_sandbox_and_is_the_workload_s_doing(made):
    before = made.census()
    box = await made.box(limits=Limits(memory_bytes=128 * MIB))
    outcome = await run(
        box, "python3", "-c", "x = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1"
    )
    assert outcome.termination is Termination.OOM_KILLED
    again = await run(box, "true")
    assert again.termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD
    with pytest.raises(FailedPrecondition) as caught:
        await box.read_file("/etc/hostname", 0, 0)
    assert caught.value.attributable == "workload"
    await box.destroy()
    assert made.lost == []
    assert made.census() == before


async def test_a_fork_bomb_harms_nobody_else(made):
    before = made.census()
    box, other = await asyncio.gather(made.box(limits=Limits(max_processes=32)), made.box())
    outcome = await run(box, "python3", "-c", hostile_cases.BOMB, timeout_seconds=1.0)
    assert outcome.termination in (
        Termination.TIMED_OUT,
        Termination.SANDBOX_BROKEN_BY_WORKLOAD,
        Termination.OOM_KILLED,
    )
    assert (await run(other, "echo", "usable")).stdout == b"usable\n"
    await asyncio.gather(box.destroy(), other.destroy())
    assert made.lost == []
    assert made.census() == before


async def test_the_disk_is_as_large_as_asked_for(made):
    box = await made.box(limits=Limits(disk_bytes=8 * MIB))
    outcome = await run(
        box, "sh", "-c", "dd if=/dev/zero of=/work/x bs=1M count=20; wc -c < /work/x"
    )
    assert b"No space left" in outcome.stderr
    assert int(outcome.stdout) <= 8 * MIB
    await box.destroy()


async def test_an_imported_root_is_what_a_sandbox_sees(made, tmp_path):
    for program in ("sh", "cat", "id"):
        add_program(program, tmp_path)
    add_python(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/issue").write_text("an image of its own\n")
    box = await made.box(template=Template(name="image", rootfs=str(tmp_path)))
    seen = await run(
        box, "sh", "-c", "cat /etc/issue; id -u; echo x > /work/x; echo x > /etc/issue"
    )
    assert seen.stdout == b"an image of its own\n1000\n"
    assert b"issue" in seen.stderr
    assert (await box.read_file("/work/x", 0, 0)).content == b"x\n"
    other = await made.box()
    assert other.rootfs_digest != box.rootfs_digest
    assert (tmp_path / "etc/issue").read_text() == "an image of its own\n"
    await asyncio.gather(box.destroy(), other.destroy())


async def test_a_root_that_the_agent_cannot_run_in_is_refused(made, tmp_path):
    add_program("sh", tmp_path)
    before = made.census()
    with pytest.raises(FailedPrecondition, match="python3") as caught:
        await made.box(template=Template(name="image", rootfs=str(tmp_path)))
    assert caught.value.reason == "ROOT_UNUSABLE"
    assert made.census() == before


async def test_a_sandbox_ends_with_its_manager(tmp_path):
    runsc_rows.need_runsc()
    await runsc_rows.leave_remains(None, tmp_path, 2)

    def alive() -> list[str]:
        return [one for one in runsc_rows.census(None, tmp_path) if one.startswith("process")]

    async with asyncio.timeout(20):
        while alive():
            await asyncio.sleep(0.02)
    async with runsc_rows.opened(tmp_path) as backend:
        await backend.start()
        assert backend.live_count() == 0
        await backend.close()
    assert not runsc_rows.census(None, tmp_path)


async def test_a_network_is_refused(made):
    with pytest.raises(FailedPrecondition, match="network profile 'open'"):
        await made.box(network_profile="open")
    box = await made.box()
    seen = await run(box, "cat", "/proc/net/dev")
    names = {
        line.split(":")[0].strip() for line in seen.stdout.decode().splitlines() if ":" in line
    }
    assert names <= {"lo"}
    await box.destroy()
