"""Spawner and keeper: born in their control group, first process, one capability that nobody inherits."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.backends.local.backend import LocalBackend
from sandbox.backends.local.cgroups import find_tree
from sandbox.types import BoxSpec, Command, Termination
from servicekit.errors import Unavailable

pytestmark = pytest.mark.slow

FORK = """
import os, sys
sys.path.append(sys.argv[1])
from sandbox.spawner import syscalls

def child(namespaces, group):
    reader, writer = os.pipe()
    pid = syscalls.fork_into(namespaces, group)
    if pid == 0:
        with open("/proc/self/cgroup") as file:
            own = [line.strip() for line in file if line.startswith("0::")]
        grandchild = os.fork()  # what a fork leaves behind must be whole: a fork of it, garbage, an import
        if grandchild == 0:
            import gc, decimal
            gc.collect()
            os._exit(7)
        _, status = os.waitpid(grandchild, 0)
        os.write(writer, f"{os.getpid()} {own[0]} {os.waitstatus_to_exitcode(status)}".encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 4096).decode()
    _, status = os.waitpid(pid, 0)
    print(pid, os.waitstatus_to_exitcode(status), said)

group = -1
if len(sys.argv) > 2:
    group = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECTORY)
child(syscalls.CLONE_NEWPID if os.geteuid() == 0 else 0, group)
try:
    syscalls.fork_into(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID, os.open("/", os.O_RDONLY))
except OSError as error:
    print("refused", error.errno)
"""


def _fork(*arguments: str) -> list[list[str]]:
    import sandbox

    folder = str(Path(next(iter(sandbox.__path__))).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FORK, folder, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_a_fork_into_namespaces_leaves_a_whole_interpreter():
    (pid, code, inner, _, grandchild), refused = _fork()
    assert (code, grandchild) == ("0", "7")
    assert inner == ("1" if os.geteuid() == 0 else pid)
    assert refused[0] == "refused"  # / is no control group, and the parent lives on


@pytest.fixture
def version_2_group():
    """A folder of our own in a version 2 tree, with whatever controllers that has."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            folder = Path(before.split()[4]) / f"hone-test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError as error:
                pytest.skip(f"no group of our own in the version 2 tree: {error}")
            yield folder
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            return
    pytest.skip("no version 2 control groups are mounted")


def test_a_fork_is_born_in_its_version_2_group(version_2_group):
    (_, code, _, own, _), _ = _fork(str(version_2_group))
    assert code == "0"
    assert own.endswith(f"/{version_2_group.name}")
    assert (version_2_group / "cgroup.procs").read_text() == ""


async def test_the_keeper_has_one_capability_and_its_commands_none(real, box):
    entry = real.fleet.find(box.info.sandbox_id)
    keeper = _status(Path(f"/proc/{entry.box.keeper_pid}/status").read_text())
    admin = f"{1 << 21:016x}"
    assert keeper["CapEff"] == keeper["CapPrm"] == admin
    assert {keeper[name] for name in ("CapBnd", "CapInh", "CapAmb")} == {f"{0:016x}"}
    assert (keeper["NoNewPrivs"], keeper["Seccomp"], keeper["NSpid"].split()[-1]) == ("1", "2", "1")
    assert keeper["Threads"] == "1"
    command = _status((await box.sh("cat /proc/self/status")).stdout.decode())
    capabilities = {command[name] for name in command if name.startswith("Cap")}
    assert capabilities == {f"{0:016x}"}
    assert (command["NoNewPrivs"], command["Seccomp"]) == ("1", "2")


async def test_a_command_cannot_leave_its_mark(box):
    script = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "for flags in (0x04000000, 0x04020000, 0x00020000, 0x10000000, 0x44000000, 0):\n"
        "    print(flags, libc.unshare(flags), ctypes.get_errno())"
    )
    outcome = await box.python(script)
    assert outcome.exit_code == 0, outcome.stderr
    for line in outcome.stdout.decode().splitlines():
        assert line.split()[1:] == ["-1", "1"], line


async def test_a_command_holds_nothing_of_the_keeper(box):
    descriptors = (await box.sh("ls /proc/self/fd")).stdout.split()
    assert set(descriptors) <= {b"0", b"1", b"2", b"3"}  # 3 is the folder that ls reads
    seen = await box.sh(
        "cat /proc/1/environ; ls -l /proc/1/fd /proc/1/root; kill -STOP 1; kill -CHLD 1"
    )
    assert b"denied" in seen.stderr.lower()
    assert b"socket" not in seen.stdout
    assert (await box.sh("echo on")).stdout == b"on\n"


async def test_more_commands_at_once_than_fit_the_keepers_socket_all_run(box):
    long = "x" * 25_000  # 40 of them are several times what the socket holds
    outcomes = await asyncio.gather(*(box.sh(f"echo {n} # {long}") for n in range(40)))
    assert [outcome.stdout for outcome in outcomes] == [b"%d\n" % n for n in range(40)]


async def test_commands_that_are_given_up_before_the_keeper_took_them_leave_nothing(real, box):
    raw = real.fleet.find(box.info.sandbox_id).box
    before = len(asyncio.all_tasks())
    argv = ("sh", "-c", f"sleep 60 # {'x' * 25_000}")
    calls = [
        asyncio.ensure_future(raw.run(Command(exec_id=f"given-up-{n}", argv=argv), {}, None))
        for n in range(40)
    ]
    await asyncio.sleep(0)  # each has asked, or waits until it can
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > before or raw.busy:
            await asyncio.sleep(0.01)
    assert (await box.sh("echo on")).stdout == b"on\n"


async def test_the_keeper_reaps_what_commands_leave(box):
    script = "for i in $(seq 50); do (sleep 0 &) ; done; sleep 0.05"
    assert (await box.sh(script)).exit_code == 0
    seen = await box.sh("grep -h '^State' /proc/[0-9]*/status")
    assert b"Z" not in seen.stdout


async def test_a_keeper_is_in_every_control_group_of_its_sandbox(real, box):
    if real.manager.stats().isolation.endswith("-rlimits"):
        pytest.skip("no control groups here")
    keeper = real.fleet.find(box.info.sandbox_id).box.keeper_pid
    lines = Path(f"/proc/{keeper}/cgroup").read_text().splitlines()
    tree = find_tree()
    inside = {
        name
        for line in lines
        for name in line.split(":")[1].split(",")
        if line.endswith(box.info.sandbox_id)
    }
    assert inside >= ({""} if tree.version == 2 else set(tree.controllers))


def _status(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key: value.strip() for key, value in pairs}


OF_THE_KEEPER = """
import ctypes, os, resource, signal
libc = ctypes.CDLL(None, use_errno=True)
null = ctypes.byref(ctypes.c_int(0))
tries = {
    "no processor time": lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)),
    "no memory": lambda: resource.prlimit(1, resource.RLIMIT_AS, (0, 0)),
    "no descriptors": lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)),
    "last in turn": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "last in turn, by group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "last in turn, by user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "only when idle": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    "parameters": lambda: os.sched_setparam(1, os.sched_param(0)),
    "one processor": lambda: os.sched_setaffinity(1, {0}),
    "first victim": lambda: open("/proc/1/oom_score_adj", "w").write("1000"),
    "memory": lambda: open("/proc/1/mem", "r+b"),
    "descriptors": lambda: os.listdir("/proc/1/fd"),
}
for name, attempt in tries.items():
    try: attempt()
    except PermissionError: continue
    print("done to the keeper:", name)
print("own limits", resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (512, 512))[0])
os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1))
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
"""


async def test_commands_do_nothing_to_the_keeper(box):
    """What they break of it would look like our failure, which is tried again."""
    outcome = await box.python(OF_THE_KEEPER)
    assert (outcome.exit_code, outcome.stderr) == (0, b"")
    assert outcome.stdout == b"own limits 1024\n"
    assert (await box.sh("echo here")).stdout == b"here\n"


async def test_a_file_that_signals_its_owner_does_not_reach_the_keeper(box):
    script = """
import fcntl, os, signal
for number in (0, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(reader, fcntl.F_SETOWN, 1)
        fcntl.fcntl(reader, fcntl.F_SETSIG, number)
    except OSError: continue
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")
"""
    assert (await box.python(script)).exit_code == 0
    assert (await box.sh("echo here")).stdout == b"here\n"


async def test_a_long_search_path_does_not_hold_up_others(box):
    await box.sh("mkdir /work/d; echo '#!/nowhere' > /work/d/p; chmod 755 /work/d/p")
    path = ":".join(["/work/d", *("/work/d/" + "./" * (n % 5) for n in range(6000))])
    outcome = await box.run("p", env={"PATH": path}, timeout_seconds=10.0)
    assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, 127)


async def test_a_keeper_that_does_not_answer_is_given_up(suite_maker, starter, use, tmp_path):
    suite = suite_maker(LocalBackend(tmp_path, answer_seconds=0.2), tmp_path, time.time)
    await starter(suite)
    try:
        box = use(suite, (await suite.create(suite.rollout_id())).info)
        os.kill(suite.fleet.find(box.info.sandbox_id).box.keeper_pid, signal.SIGSTOP)
        with pytest.raises(Unavailable) as lost:
            await asyncio.wait_for(box.run("true", timeout_seconds=0.2), 20)
        assert (lost.value.retryable, lost.value.attributable) == (True, "infra")
        end = time.monotonic() + 10.0
        while suite.backend.live_count():
            assert time.monotonic() < end, "it was not destroyed"
            await asyncio.sleep(0.01)
    finally:
        await suite.manager.close()


async def test_a_program_whose_name_is_no_text_is_not_found(real, box):
    raw = real.fleet.find(box.info.sandbox_id).box
    command = Command(exec_id="x", argv=(os.fsdecode(b"/work/\xff"),), timeout_seconds=10.0)
    outcome = await asyncio.wait_for(raw.run(command, {}, None), 20)
    assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, 127)
    assert outcome.stderr == b"/work/\xff: No such file or directory\n"


@pytest.mark.slow
async def test_a_spawner_that_is_stuck_is_replaced_and_does_not_hold_up_the_end(
    suite_maker, starter, tmp_path
):
    backend = LocalBackend(tmp_path, answer_seconds=0.2)
    suite = suite_maker(backend, tmp_path, time.time)
    await starter(suite)
    try:
        stuck = backend.spawner_pid
        os.kill(stuck, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.create(BoxSpec(sandbox_id="a"), print), 0.1)
        end = time.monotonic() + 10.0
        while backend.spawner_pid == stuck:
            assert time.monotonic() < end, "no other spawner"
            with contextlib.suppress(TimeoutError, Unavailable):
                box = await asyncio.wait_for(backend.create(BoxSpec(sandbox_id="b"), print), 1.0)
        assert (await box.run(Command(exec_id="x", argv=("/bin/true",)), {}, None)).exit_code == 0
        os.kill(backend.spawner_pid, signal.SIGSTOP)
    finally:
        await asyncio.wait_for(suite.manager.close(), 20)
