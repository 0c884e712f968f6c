"""Commands and files through the real agent: the design's vectors that apply in a pod, and the agent's contract."""

import asyncio
import os
import stat
import tarfile

import psutil
import pytest

from sandbox.types import BoxFile, FileKind, Stream, Termination
from servicekit.errors import InvalidArgument, NotFound, OutOfRange


def host_processes(*argv: str) -> list[int]:
    wanted = list(argv)
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["cmdline"] == wanted and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


async def test_streams_codes_and_signals_are_data(shell):
    outcome = await shell.sh("echo out; echo err >&2; exit 7")
    assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, 7)
    assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")
    signaled = await shell.sh("kill -TERM $$")
    assert (signaled.termination, signaled.signal) == (Termination.SIGNALED, 15)


async def test_input_environment_and_folder_arrive(shell):
    text = b"x" * 300_000
    outcome = await shell.sh("cat; echo; pwd; echo $HOME", stdin=text, working_dir="/tmp")
    assert outcome.stdout == text + b"\n/tmp\n/root\n"
    unread = await shell.sh("exit 0", stdin=text)
    assert unread.termination is Termination.EXITED


async def test_what_a_shell_would_say_of_a_program_that_cannot_start(shell):
    missing = await shell.run("no-such-program")
    assert (missing.exit_code, missing.stderr) == (
        127,
        b"no-such-program: No such file or directory\n",
    )
    assert (await shell.run("/etc/passwd")).exit_code == 126
    nowhere = await shell.run("true", working_dir="/nowhere")
    assert (nowhere.termination, nowhere.exit_code) == (Termination.EXITED, 126)


async def test_05_endless_output_is_cut(shell):
    before = psutil.Process().memory_info().rss
    for script in ("yes", "cat /dev/zero >&2"):
        outcome = await shell.sh(script, max_output_bytes=100_000)
        assert outcome.termination is Termination.OUTPUT_LIMIT
        assert max(len(outcome.stdout), len(outcome.stderr)) == 100_000
        assert outcome.stdout_truncated or outcome.stderr_truncated
    assert psutil.Process().memory_info().rss < before + 32 * 1024 * 1024


async def test_long_output_keeps_its_head_and_its_tail(shell):
    outcome = await shell.sh("seq 1 100000", max_output_bytes=1001)
    assert outcome.termination is Termination.EXITED
    assert outcome.stdout_truncated
    assert len(outcome.stdout) == 1001
    assert outcome.stdout.startswith(b"1\n2\n3\n")
    assert outcome.stdout.endswith(b"99999\n100000\n")


async def test_output_comes_while_the_command_runs(shell):
    first = asyncio.Event()
    chunks = []

    def emit(chunk):
        chunks.append(chunk)
        first.set()

    running = asyncio.ensure_future(
        shell.sh("echo one; read line; echo $line >&2; cat /work/go", emit=emit)
    )
    await asyncio.wait_for(first.wait(), 10)
    outcome = await running
    assert chunks[0].stream is Stream.STDOUT
    assert outcome.stdout == b""
    assert b"".join(c.data for c in chunks if c.stream is Stream.STDOUT) == b"one\n"


async def test_06_a_daemon_that_holds_the_pipe_does_not_hold_the_call(rig, shell):
    outcome = await shell.sh("setsid sleep 7781 & echo started")
    assert (outcome.termination, outcome.exit_code) == (Termination.EXITED, 0)
    assert outcome.stdout == b"started\n"
    assert outcome.output_incomplete
    assert outcome.duration_seconds < 60.0
    await rig.cluster.until(lambda: host_processes("sleep", "7781"), "the daemon lives on")
    await shell.box.destroy()
    await rig.cluster.until(lambda: not host_processes("sleep", "7781"), "the daemon is gone")


@pytest.mark.parametrize(
    "script",
    [
        "trap '' TERM; setsid sleep 7791 & nohup setsid sh -c 'sleep 7791 & sleep 7791' "
        ">/dev/null 2>&1 & kill -STOP $$",
        "env -i setsid sh -c 'setsid sleep 7791 & exit 0' & sleep 60",
    ],
)
async def test_07_a_timeout_kills_everything_that_the_command_started(shell, script):
    neighbour = asyncio.ensure_future(shell.sh("sleep 0.8; echo untouched"))
    outcome = await shell.sh(script, timeout_seconds=0.5)
    assert outcome.termination is Termination.TIMED_OUT
    assert not host_processes("sleep", "7791")
    assert (await neighbour).stdout == b"untouched\n"


async def test_07b_a_chain_of_forks_does_not_outrun_the_timeout(shell):
    chain = "import os, time\nwhile os.fork() == 0: time.sleep(0.0005)\ntime.sleep(0.002)"
    outcome = await shell.python(f"{chain}\ntime.sleep(9)", timeout_seconds=0.3)
    assert outcome.termination in (Termination.EXITED, Termination.TIMED_OUT)
    spreading = (
        "import os, time\nend = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n    if os.fork() == 0: os.setsid(); time.sleep(20)\n"
        "    time.sleep(0.002)"
    )
    outcome = await shell.python(spreading, timeout_seconds=0.3)
    assert outcome.termination is Termination.TIMED_OUT
    left = await shell.sh("ls /proc | grep -c '^[0-9]'")
    assert int(left.stdout) <= 6  # the agent, a supervisor, the shell, ls, grep


async def test_survivors_live_on_unless_they_are_to_die(rig, shell):
    await shell.sh("setsid sleep 7801 >/dev/null 2>&1 &")
    await rig.cluster.until(lambda: host_processes("sleep", "7801"), "it lives on")
    await shell.sh("setsid sleep 7802 >/dev/null 2>&1 &", kill_survivors=True)
    assert not host_processes("sleep", "7802")
    assert host_processes("sleep", "7801")


async def test_kill_ends_a_command_with_its_children(rig, shell):
    running = asyncio.ensure_future(shell.sh("sleep 7811 & sleep 7811", exec_id="victim"))
    await rig.cluster.until(lambda: len(host_processes("sleep", "7811")) == 2, "it runs")
    await shell.box.kill("victim")
    assert (await running).termination is Termination.KILLED
    assert not host_processes("sleep", "7811")
    await shell.box.kill("nobody")


async def test_a_caller_that_goes_away_takes_its_command_with_it(rig, shell):
    running = asyncio.ensure_future(shell.sh("sleep 7821"))
    await rig.cluster.until(lambda: host_processes("sleep", "7821"), "it runs")
    running.cancel()
    await rig.cluster.until(lambda: not host_processes("sleep", "7821"), "it is gone")


async def test_10_kill_reaches_nobody_outside_and_not_the_agent(shell):
    outcome = await shell.sh(
        f"kill -9 {os.getpid()}; kill -9 1; kill -INT 1; kill -TERM 1; echo before; kill -9 -1; "
        "echo after"
    )
    assert outcome.stdout.startswith(b"before\n")
    assert outcome.termination is Termination.EXITED
    assert (await shell.sh("echo alive")).stdout == b"alive\n"
    left = await shell.sh("ls /proc | grep -c '^[0-9]'")
    assert int(left.stdout) <= 6


async def test_10b_what_a_killed_supervisor_left_is_found_by_the_timeout(shell):
    script = (
        "import os, signal, subprocess, time\n"
        "subprocess.Popen(['setsid', 'sleep', '7831'])\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        "if os.fork(): time.sleep(30)\n"
        "os.setsid()\nos.execvp('sleep', ['sleep', '7831'])"
    )
    outcome = await shell.python(script, timeout_seconds=0.5)
    assert outcome.termination is Termination.TIMED_OUT
    assert not host_processes("sleep", "7831")


async def test_the_agent_cannot_be_looked_into(shell):
    outcome = await shell.python(
        "import os\n"
        "for name in ('environ', 'mem', 'maps', 'fd', 'root', 'cwd'):\n"
        "    try:\n"
        "        path = f'/proc/1/{name}'\n"
        "        os.listdir(path) if name in ('fd', 'root', 'cwd') else open(path).read(1)\n"
        "        print(name, 'open')\n"
        "    except OSError as error: pass\n"
        "import ctypes\n"
        "print('ptrace', ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    )
    assert outcome.stdout == b"ptrace -1\n"


async def test_a_workload_cannot_call_the_agent(shell):
    outcome = await shell.python(
        "import re, socket\n"
        "words = open('/proc/1/cmdline').read().split('\\0')\n"
        "host, digest = words[words.index('--host') + 1], words[words.index('--token-sha256') + 1]\n"
        "def ask(source, token):\n"
        "    made = socket.create_connection((host, 8730), source_address=(source, 0), timeout=5)\n"
        "    made.sendall(f'GET /v1/info HTTP/1.1\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n'.encode())\n"
        "    try: return made.recv(100).split(b' ')[1:2]\n"
        "    except ConnectionError: return []\n"
        "print(ask('127.0.0.1', digest), ask('127.0.0.1', ''), ask(host, digest))"
    )
    assert outcome.stdout == b"[b'401'] [b'401'] []\n", outcome.stderr


async def test_commands_run_as_nobody_special(shell):
    outcome = await shell.sh("id -u; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; umask")
    words = outcome.stdout.split()
    assert words[0] == b"1000"
    assert words[1:] == [
        b"CapEff:",
        b"0000000000000000",
        b"CapBnd:",
        b"0000000000000000",
        b"NoNewPrivs:",
        b"1",
        b"0022",
    ]
    assert b"HONE" not in (await shell.sh("env")).stdout


async def test_02_the_disk_has_a_size(shell):
    outcome = await shell.sh("dd if=/dev/zero of=/work/big bs=1M count=100")
    assert outcome.exit_code == 1
    assert b"No space left" in outcome.stderr
    assert (
        await shell.sh("rm /work/big; echo usable > /work/x; cat /work/x")
    ).stdout == b"usable\n"


async def test_08_rm_rf_removes_what_is_its_own(rig, backend, shell):
    other = await rig.make(backend)
    await shell.sh("echo mine > /work/x; rm -rf --no-preserve-root / 2>/dev/null")
    assert os.path.exists("/usr/bin/python3")
    assert (await shell.sh("ls -A /work; echo alive")).stdout == b"alive\n"
    assert (await other.sh("echo untouched")).stdout == b"untouched\n"


async def test_09_no_path_leads_to_what_is_no_file(shell):
    await shell.sh(
        "mkfifo /work/fifo; ln -s /proc/self/environ /work/env; ln -s /dev/zero /work/zero; "
        "ln -s /work/loop /work/loop; echo real > /work/real; ln -s real /work/in; "
        "ln -s /nowhere /work/out"
    )
    box = shell.box
    for path in ("/work/nothing", "/work/out", "/work/loop", "/nowhere/x", "/work/env"):
        with pytest.raises(NotFound):
            await box.read_file(path, 0, 0)
    for path in ("/work/fifo", "/dev/zero", "/work/zero", "/work", "/proc/1/status"):
        with pytest.raises(InvalidArgument):
            await asyncio.wait_for(box.read_file(path, 0, 0), 5)
    assert (await box.read_file("/work/in", 0, 0)).content == b"real\n"
    with pytest.raises(NotFound):
        await box.write_file(BoxFile(path="/work/out", content=b"x"))
    for path in ("/proc/sysrq-trigger", "/usr/bin/evil", "/work/fifo", "/etc/passwd", "/dev/shm/x"):
        with pytest.raises(InvalidArgument):
            await box.write_file(BoxFile(path=path, content=b"x"))
    await box.write_file(BoxFile(path="/work/in", content=b"through\n"))
    assert (await box.read_file("/work/real", 0, 0)).content == b"through\n"


async def test_files_are_written_read_listed_and_described(shell):
    box = shell.box
    content = bytes(range(256)) * 8000
    await box.write_file(BoxFile(path="/work/a/b/c.bin", content=content, mode=0o750))
    read = await box.read_file("/work/a/b/c.bin", 100, 50)
    assert (read.content, read.size_bytes) == (content[100:150], len(content))
    assert (await box.read_file("/work/a/b/c.bin", 0, 0)).content == content
    await shell.sh("ln -s c.bin /work/a/b/a-link; mkdir /work/a/b/z; mkfifo /work/a/b/q")
    entries = await box.list_files("/work/a/b")
    assert [(e.name, e.kind) for e in entries] == [
        ("a-link", FileKind.LINK),
        ("c.bin", FileKind.FILE),
        ("q", FileKind.OTHER),
        ("z", FileKind.FOLDER),
    ]
    assert entries[0].link_target == "c.bin"
    assert (entries[1].mode, entries[1].size_bytes) == (0o750, len(content))
    assert (await box.stat_file("/work/a/b/a-link")).kind is FileKind.LINK
    with pytest.raises(NotFound):
        await box.stat_file("/work/none")
    with pytest.raises(InvalidArgument):
        await box.list_files("/work/a/b/c.bin")
    await shell.sh("dd if=/dev/zero of=/work/large bs=1M count=4 2>/dev/null")
    with pytest.raises(OutOfRange):
        await box.read_file("/work/large", 0, 0)


async def test_a_full_disk_is_the_workload_s_doing(shell):
    await shell.sh("dd if=/dev/zero of=/work/big bs=1M count=100")
    with pytest.raises(Exception, match="disk is full") as caught:
        await shell.box.write_file(BoxFile(path="/work/x", content=b"x" * 2_000_000))
    assert caught.value.reason == "DISK_FULL"
    assert caught.value.attributable == "workload"
    assert b"hone" not in (await shell.sh("ls -A /work")).stdout


async def test_an_archive_goes_in_and_comes_out(shell, tmp_path):
    source = tmp_path / "in.tar.gz"
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    with tarfile.open(source, "w:gz") as tar:
        tar.add(tmp_path / "tool", "bin/tool")
        link = tarfile.TarInfo("bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "tool"
        tar.addfile(link)
    await shell.box.unpack("/work/kit", source)
    assert (await shell.run("/work/kit/bin/link")).stdout == b"tool\n"
    target = tmp_path / "out.tar"
    await shell.box.pack("/work/kit", target, 10_000_000)
    with tarfile.open(target) as tar:
        assert sorted(tar.getnames()) == ["bin", "bin/link", "bin/tool"]
        assert tar.getmember("bin/tool").mode & stat.S_IXUSR
    with pytest.raises(OutOfRange):
        await shell.box.pack("/work/kit", target, 100)
    assert not target.exists()
    with pytest.raises(NotFound):
        await shell.box.pack("/work/none", target, 100)
    source.write_bytes(b"this is no archive" * 100)
    with pytest.raises(InvalidArgument):
        await shell.box.unpack("/work/kit", source)


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "in/out", "sub/../../out"])
async def test_an_archive_cannot_write_outside_its_folder(shell, tmp_path, name):
    await shell.sh("mkdir -p /work/kit; ln -s /tmp /work/kit/in")
    source = tmp_path / "in.tar"
    (tmp_path / "x").write_bytes(b"x")
    with tarfile.open(source, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        with (tmp_path / "x").open("rb") as file:
            tar.addfile(member, file)
    with pytest.raises(InvalidArgument):
        await shell.box.unpack("/work/kit", source)
    assert (await shell.sh("ls /tmp /work")).stdout == b"/tmp:\n\n/work:\nkit\n"


async def test_a_snapshot_is_what_the_next_one_starts_from(rig, backend, shell, tmp_path):
    await shell.sh(
        "mkdir -p /work/deep/er; echo one > /work/deep/er/file; chmod 640 /work/deep/er/file; "
        "ln -s er /work/deep/link; echo home > /root/.profile; echo tmp > /tmp/t; mkfifo /work/f"
    )
    target = tmp_path / "snapshot"
    busy = asyncio.ensure_future(
        shell.sh(
            "while :; do head -c 9000 /dev/urandom > /tmp/busy; rm /tmp/busy; done",
            timeout_seconds=1,
        )
    )
    await shell.box.snapshot(target)
    await busy
    copy = await rig.make(backend, snapshot=target)
    outcome = await copy.sh(
        "cat /work/deep/link/file /root/.profile /tmp/t; stat -c %a /work/deep/er/file; "
        "test -p /work/f && echo fifo"
    )
    assert outcome.stdout == b"one\nhome\ntmp\n640\nfifo\n"
    assert copy.box.rootfs_digest == shell.box.rootfs_digest


async def test_a_broken_snapshot_leaves_no_pod(rig, backend, tmp_path):
    target = tmp_path / "snapshot"
    target.write_bytes(b"nothing that was ever a snapshot" * 100)
    with pytest.raises(InvalidArgument):
        await rig.make(backend, snapshot=target)
    await rig.cluster.until(lambda: not rig.cluster.pods(), "no pod")
