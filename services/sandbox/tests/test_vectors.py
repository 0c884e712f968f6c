"""The hostile cases of the design, on the embedded backend, over the domain's own calls."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.backends.local import LocalBackend
from sandbox.cgroups import CgroupsUnavailable
from sandbox.types import MIB, Cause, Limits, Termination
from servicekit.errors import InvalidArgument, NotFound

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager_over_local(tmp_path_factory, suite_maker, starter):
    """One manager for all vectors: starting one costs more than most of them."""
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


def _limits(**changes: int) -> Limits:
    base = {"memory_bytes": 256 * MIB, "disk_bytes": 64 * MIB, "shm_bytes": 16 * MIB}
    return Limits(**(base | changes))  # type: ignore[arg-type]


def _needs_cgroups(suite) -> None:
    isolation = suite.manager.stats().isolation
    if isolation.endswith("-rlimits"):
        pytest.skip(f"needs limits by control groups; this machine gives {isolation}")


async def test_01_a_fork_bomb_is_contained_and_killed(box):
    _needs_cgroups(box.suite)
    before = len(_pids())
    script = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    outcome = await box.python(script, timeout_seconds=1.0)
    assert outcome.termination is Termination.TIMED_OUT
    assert outcome.duration_seconds < 2.5
    after = await box.sh("echo alive; ls /proc | grep -c '^[0-9]'")
    assert after.stdout.split()[0] == b"alive"
    assert int(after.stdout.split()[1]) <= 5
    assert len(_pids()) < before + 50


async def test_01b_running_out_of_processes_is_said(real, use):
    _needs_cgroups(real)
    limits = _limits(max_processes=20)
    box = use(real, (await real.create(real.rollout_id(), limits=limits)).info)
    script = (
        "import os, time\nfor i in range(50):\n    if not os.fork(): time.sleep(5); os._exit(0)"
    )
    outcome = await box.python(script)
    assert outcome.termination is Termination.PIDS_LIMIT
    assert b"BlockingIOError" in outcome.stderr


async def test_02_the_disk_has_a_size(box):
    free = shutil.disk_usage("/").free
    outcome = await box.sh("dd if=/dev/zero of=/big bs=1M count=3000")
    assert outcome.exit_code != 0
    assert b"No space left" in outcome.stderr
    shm = await box.sh("dd if=/dev/zero of=/dev/shm/big bs=1M count=3000")
    assert b"No space left" in shm.stderr
    assert abs(shutil.disk_usage("/").free - free) < 512 * MIB
    assert (await box.sh("rm /big /dev/shm/big && echo usable")).stdout == b"usable\n"


async def test_03_the_disk_has_a_number_of_files(real, use):
    limits = _limits(max_inodes=3000)
    box = use(real, (await real.create(real.rollout_id(), limits=limits)).info)
    script = "for i in range(300_000): open(f'/work/{i}', 'w').close()"
    outcome = await box.python(script)
    assert outcome.exit_code == 1
    assert b"No space left" in outcome.stderr


async def test_04_running_out_of_memory_kills_the_command_alone(box):
    _needs_cgroups(box.suite)
    outcome = await box.python("x = bytearray(8 << 30)")
    assert outcome.termination is Termination.OOM_KILLED
    nested = await box.sh("python3 -c 'x = bytearray(8 << 30)'; exit $?")
    assert nested.termination is Termination.OOM_KILLED
    assert (await box.sh("echo usable")).stdout == b"usable\n"


async def test_05_endless_output_is_cut(box):
    before = _resident_bytes()
    for script in ("yes", "cat /dev/zero >&2"):
        outcome = await box.sh(script, max_output_bytes=100_000)
        assert outcome.termination is Termination.OUTPUT_LIMIT
        assert max(len(outcome.stdout), len(outcome.stderr)) == 100_000
        assert outcome.stdout_truncated or outcome.stderr_truncated
    assert _resident_bytes() < before + 32 * MIB


async def test_06_a_daemon_that_holds_the_pipe_does_not_hold_the_call(box):
    outcome = await box.sh("setsid sleep 778 & echo started")
    assert outcome.termination is Termination.EXITED
    assert outcome.exit_code == 0
    assert outcome.stdout == b"started\n"
    assert outcome.output_incomplete
    assert outcome.duration_seconds < 1.0
    assert _host_processes("sleep", "778")
    await box.suite.fleet.end_rollout(box.info.key.rollout_id)
    assert not _host_processes("sleep", "778")


async def test_07_a_timeout_kills_everything_that_the_command_started(box):
    script = (
        "trap '' TERM; setsid sleep 779 & nohup setsid sh -c 'sleep 779 & sleep 779' "
        ">/dev/null 2>&1 & kill -STOP $$"
    )
    neighbour = asyncio.ensure_future(box.sh("sleep 0.8; echo untouched"))
    outcome = await box.sh(script, timeout_seconds=0.5)
    assert outcome.termination is Termination.TIMED_OUT
    assert outcome.duration_seconds < 1.5
    assert not _host_processes("sleep", "779")
    assert (await neighbour).stdout == b"untouched\n"


async def test_08_rm_rf_wrecks_only_its_own_sandbox(real, use):
    box = use(real, (await real.create(real.rollout_id())).info)
    other = use(real, (await real.create(real.rollout_id())).info)
    programs = sorted(os.listdir("/usr/bin"))
    refused = await box.sh("rm -rf /usr/bin/python3 /usr/bin/sh")
    assert b"Read-only file system" in refused.stderr
    await box.sh("rm -rf --one-file-system --no-preserve-root /")
    assert sorted(os.listdir("/usr/bin")) == programs
    broken = await box.sh("echo hello")
    assert broken.termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD
    assert (await other.sh("echo hello")).stdout == b"hello\n"


async def test_09_the_file_api_cannot_be_led_out(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host only")
    await box.sh(
        f"ln -s {secret} /work/out; ln -s / /work/root; mkfifo /work/fifo; "
        "ln -s /proc/self/environ /work/env; ln -s /work/real /work/in; echo real > /work/real; "
        f"ln -s {tmp_path} /work/folder; ln -s ../../../../../../../etc/hostname /work/up"
    )
    for path in ("/work/out", "/work/folder/secret", "/work/env"):
        with pytest.raises(NotFound):
            await box.read(path)
    for path in ("/work/fifo", "/dev/zero", "/work", "/proc/1/status"):
        with pytest.raises(InvalidArgument):
            await box.read(path)
    assert await box.read("/work/in") == b"real\n"
    assert await box.read("/work/root/work/real") == b"real\n"
    assert await box.read("/work/up") == b"sandbox\n"
    with pytest.raises(NotFound):
        await box.write("/work/out", b"x")
    with pytest.raises(NotFound):
        await box.write("/work/folder/made", b"x")
    for path in ("/proc/sysrq-trigger", "/usr/bin/evil", "/dev/shm/x", "/work/fifo"):
        with pytest.raises(InvalidArgument):
            await box.write(path, b"x")
    assert secret.read_text() == "host only"


async def test_10_kill_reaches_nobody_outside_and_not_the_init(box):
    outcome = await box.sh(f"kill -9 {os.getpid()}; kill -9 1; echo before; kill -9 -1; echo after")
    assert outcome.stdout.startswith(b"before\n")
    assert (await box.sh("echo alive")).stdout == b"alive\n"


async def test_11_there_is_no_network(box):
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0hone-test-{os.getpid()}")
    abstract.listen()
    port = listener.getsockname()[1]
    script = f"""
import socket
def attempt(family, address):
    sock = socket.socket(family)
    sock.settimeout(1)
    try:
        sock.connect(address)
        return "connected"
    except OSError as error:
        return type(error).__name__
print(attempt(socket.AF_INET, ("127.0.0.1", {port})))
print(attempt(socket.AF_UNIX, "\\0hone-test-{os.getpid()}"))
print(attempt(socket.AF_INET, ("169.254.169.254", 80)))
try:
    socket.getaddrinfo("example.com", 80)
    print("resolved")
except OSError:
    print("unresolved")
inside = socket.create_server(("127.0.0.1", 0))
print(attempt(socket.AF_INET, inside.getsockname()))
"""
    outcome = await box.python(script)
    listener.close()
    abstract.close()
    assert outcome.stdout.split() == [
        b"ConnectionRefusedError",
        b"ConnectionRefusedError",
        b"OSError",
        b"unresolved",
        b"connected",
    ]


async def test_12_the_kernel_s_side_doors_are_shut(box):
    script = """
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"ptrace": 101, "bpf": 321, "keyctl": 250, "io_uring_setup": 425, "perf": 298,
           "userfaultfd": 323, "clone3": 435}
if platform.machine() == "aarch64":
    numbers |= {"ptrace": 117, "bpf": 280, "keyctl": 219, "perf": 241, "userfaultfd": 282}
def name(number): return errno.errorcode.get(number, number)
def report(what, result): print(what, name(ctypes.get_errno()) if result < 0 else "allowed")
report("mount", libc.mount(b"x", b"/mnt", b"tmpfs", 0, None))
report("unshare", libc.unshare(0x10000000))
report("setns", libc.setns(0, 0))
report("sethostname", libc.sethostname(b"x", 1))
for what, number in numbers.items():
    report(what, libc.syscall(number, 0, 0, 0, 0, 0))
for what, call in {
    "core_pattern": lambda: open("/proc/sys/kernel/core_pattern", "w"),
    "init": lambda: os.listdir("/proc/1/root"),
    "device": lambda: os.mknod("/work/d", 0o60600, os.makedev(8, 0)),
    "packet": lambda: socket.socket(17, 3),
    "vsock": lambda: socket.socket(40, 1),
    "shadow": lambda: open("/etc/shadow"),
    "chown": lambda: os.chown("/work", 1, 1),
}.items():
    try:
        call()
        print(what, "allowed")
    except OSError as error:
        print(what, name(error.errno))
print("caps", *[l.split()[1] for l in open("/proc/self/status") if l.startswith("Cap")])
"""
    outcome = await box.python(script)
    found = dict(line.split(" ", 1) for line in outcome.stdout.decode().splitlines())
    caps = found.pop("caps")
    assert set(caps.split()) == {"0000000000000000"}
    assert found.pop("clone3") == "ENOSYS"
    assert found.pop("packet") == found.pop("vsock") == "EAFNOSUPPORT"
    assert found.pop("shadow") == "ENOENT"
    refused = {"EPERM", "EACCES", "EINVAL"}
    assert {what: word for what, word in found.items() if word not in refused} == {}
    assert outcome.exit_code == 0


async def test_12b_nothing_of_the_host_is_in_sight(box):
    outcome = await box.sh(
        "cat /proc/1/cmdline | tr '\\0' ' '; ls /root /home /tmp /work; env; ls /proc | grep -c '^[0-9]'"
    )
    text = outcome.stdout.decode()
    assert text.startswith("hone-sandbox ")
    assert sys.executable not in text
    assert "HONE" not in text
    assert int(text.split()[-1]) <= 4  # init, the shell, ls and grep
    descriptors = await box.python(
        "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    )
    assert descriptors.stdout == b"[0, 1, 2, 3]\n"  # 3 is the listing itself


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


async def test_stdin_env_and_working_dir_reach_the_command(box):
    outcome = await box.sh(
        "cat; echo $WORD; pwd", stdin=b"x" * 200_000, env={"WORD": "hello"}, working_dir="/tmp"
    )
    assert outcome.stdout == b"x" * 200_000 + b"hello\n/tmp\n"


async def test_what_a_shell_would_say_of_a_program_that_cannot_start(box):
    missing = await box.run("no-such-program")
    assert (missing.exit_code, missing.stderr) == (
        127,
        b"no-such-program: No such file or directory\n",
    )
    refused = await box.run("/etc/passwd")
    assert refused.exit_code == 126
    nowhere = await box.run("true", working_dir="/nowhere")
    assert (nowhere.exit_code, nowhere.termination) == (126, Termination.EXITED)


async def test_kill_ends_a_command_with_its_children(box):
    running = asyncio.ensure_future(box.sh("sleep 781 & sleep 781", exec_id="victim"))
    while not _host_processes("sleep", "781"):
        await asyncio.sleep(0.01)
    manager, info = box.suite.manager, box.info
    await manager.kill_exec(box.caller, info.key.rollout_id, info.sandbox_id, "victim")
    assert (await running).termination is Termination.KILLED
    assert not _host_processes("sleep", "781")


async def test_killing_one_command_does_not_keep_another_from_starting(box):
    _needs_cgroups(box.suite)
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


async def test_cpu_is_limited(real, use):
    _needs_cgroups(real)
    limits = _limits()
    slow = replace(limits, cpus=0.2)
    box = use(real, (await real.create(real.rollout_id(), limits=slow)).info)
    script = (
        "import time; end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )
    assert float((await box.python(script)).stdout) < 0.4


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _host_processes(*argv: str) -> list[int]:
    wanted = b"".join(word.encode() + b"\0" for word in argv)
    found = []
    for pid in _pids():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
async def test_14_a_hundred_creates_at_once(real):
    made = await asyncio.gather(*(real.create(real.rollout_id()) for _ in range(100)))
    assert len({one.info.sandbox_id for one in made}) == 100
    stats = real.manager.stats()
    assert stats.live_count == stats.expected_count == 100
    await real.fleet.destroy_all(Cause.CANCELLED)
    assert real.manager.stats().live_count == 0
    assert "/vectors0/" not in Path("/proc/self/mountinfo").read_text()


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


@pytest.mark.slow
async def test_08b_rm_rf_through_every_mount_leaves_the_host_whole(box):
    before = sorted(os.listdir("/usr/bin")), sorted(os.listdir("/etc"))
    await box.sh("rm -rf --no-preserve-root /")
    assert (sorted(os.listdir("/usr/bin")), sorted(os.listdir("/etc"))) == before
    assert (await box.sh("true")).termination is Termination.SANDBOX_BROKEN_BY_WORKLOAD


async def test_without_control_groups_the_level_says_so_and_processes_are_still_limited(
    tmp_path, suite_maker, starter, use
):
    def none_here():
        raise CgroupsUnavailable("none in this test")

    backend = LocalBackend(tmp_path, find_cgroups=none_here)
    suite = suite_maker(backend, tmp_path, time.time)
    await starter(suite)
    assert suite.manager.stats().isolation.endswith("-rlimits")
    limits = _limits(max_processes=30)
    box = use(suite, (await suite.create(suite.rollout_id(), limits=limits)).info)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await box.python(bomb, timeout_seconds=0.5)).termination is Termination.TIMED_OUT
    # Killed processes may still be waiting to be reaped; none of them may live on.
    after = await box.sh("grep -hc '^State:[[:space:]]*[RSD]' /proc/[0-9]*/status | grep -c 1")
    assert int(after.stdout) <= 5
    assert b"MemoryError" in (await box.python("bytearray(1 << 30)")).stderr
    assert suite.manager.stats().live_count == 1
    await suite.manager.close()
    assert backend.live_count() == 0
