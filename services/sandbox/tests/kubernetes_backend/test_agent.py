"""The agent alone, as a process: who may call it, as whom commands run, how its limits show."""

import asyncio
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sandbox.backends.agent_box import AgentBox
from sandbox.backends.agent_client import AgentClient, AgentLost
from sandbox.backends.verdict import State, Verdict
from sandbox.pod_agent import bundle
from sandbox.pod_agent.reaper import Reaper
from sandbox.types import BoxFile, Termination
from servicekit.errors import FailedPrecondition, HoneError

from .conftest import Shell

TOKEN = "the token"
PORT = 8731
_UID = 123_457
"""Nobody's; a limit on its processes touches nothing else."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run commands as others")


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(bundle.build())
    path.chmod(0o644)
    path.parent.chmod(0o755)
    return path


@pytest.fixture
async def start(archive, tmp_path):
    """Start agents; each has an address of its own."""
    processes = []

    async def run(*arguments: str, token: str = TOKEN) -> Shell:
        host = f"127.{32 + os.getpid() % 32}.{os.getpid() // 32 % 250}.{len(processes) + 1}"
        command = [sys.executable, "-I", "-S", str(archive), "--host", host, "--port", str(PORT)]
        if "--pin" not in arguments:
            command += ["--token-sha256", hashlib.sha256(token.encode()).hexdigest()]
        processes.append(
            await asyncio.create_subprocess_exec(
                *command, *arguments, env={"PATH": os.environ["PATH"], "SECRET": "not to be seen"}
            )
        )
        agent = AgentClient(host, PORT, token)
        async with asyncio.timeout(10):
            while not await _listens(host):
                await asyncio.sleep(0.01)
        return Shell(_box(agent))

    yield run
    for process in processes:
        process.kill()
        await process.wait()


async def _listens(host: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, PORT)
    except OSError:
        return False
    writer.close()
    return True


def _box(agent: AgentClient) -> AgentBox:
    async def nothing(*_: object) -> None:
        return None

    async def look() -> Verdict:
        return Verdict(state=State.READY)

    return AgentBox(
        "sbx",
        name="sbx",
        rootfs_digest="",
        agent=agent,
        take=nothing,
        look=look,
        remove=nothing,
        on_lost=lambda _: None,
    )


def as_user(uid: int = _UID) -> tuple[str, ...]:
    return "--uid", str(uid), "--gid", str(uid)


def _open_to_all(folder: Path) -> None:
    """Let another user into a test's folder; above those that pytest made nothing is touched."""
    folder.chmod(0o777)
    for parent in folder.parents:
        if parent == Path(tempfile.gettempdir()):
            return
        parent.chmod(0o755)
        if parent.name.startswith("pytest-of-"):
            return


async def test_the_archive_is_the_same_each_time_and_needs_no_package(archive):
    assert bundle.build() == archive.read_bytes()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sandbox.pod_agent.main as found\n"
        "print(found.__file__.startswith(sys.argv[1]))\n"
        "files = [getattr(module, '__file__', '') or '' for module in list(sys.modules.values())]\n"
        "print([file for file in files if 'site-packages' in file])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(archive)], capture_output=True, check=True
    )
    assert done.stdout == b"True\n[]\n"


async def test_the_archive_avoids_what_python_3_10_does_not_know(archive):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--target-version", "py310",
         "--select", "E9", str(Path(bundle.__file__).parent)],
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    sources = "".join(path.read_text() for path in Path(bundle.__file__).parent.glob("*.py"))
    for newer in ("asyncio.timeout(", "TaskGroup", "StrEnum", "except*", "tomllib", "Self"):
        assert newer not in sources


async def test_a_caller_needs_the_token(start):
    shell = await start()
    assert (await shell.box._agent.info())["separate_uid"] is False
    host = shell.box._agent._host
    for token in ("", "another", hashlib.sha256(TOKEN.encode()).hexdigest()):
        with pytest.raises(AgentLost, match="401"):
            await AgentClient(host, PORT, token).info()
    with pytest.raises(AgentLost, match="404"):
        await shell.box._agent.pin()


async def test_the_first_caller_pins_its_token(start):
    shell = await start("--pin")
    with pytest.raises(AgentLost, match="401"):
        await shell.box._agent.info()
    await shell.box._agent.pin()
    await shell.box._agent.pin()
    assert (await shell.box._agent.info())["uid"] == 0
    with pytest.raises(AgentLost, match="409"):
        await AgentClient(shell.box._agent._host, PORT, "late").pin()


async def test_commands_and_files_are_another_user_s(start, tmp_path):
    shell = await start(*as_user())
    _open_to_all(tmp_path)
    outcome = await shell.sh(
        f"id -u; id -g; id -G; cat /proc/$PPID/environ; kill -9 $PPID; touch {tmp_path}/x"
    )
    assert outcome.stdout.split() == [b"123457"] * 3
    assert b"SECRET" not in outcome.stdout + outcome.stderr
    assert b"Operation not permitted" in outcome.stderr
    await shell.box.write_file(BoxFile(path=f"{tmp_path}/made", content=b"x"))
    assert (tmp_path / "made").stat().st_uid == (tmp_path / "x").stat().st_uid == _UID
    with pytest.raises(HoneError):
        await shell.box.read_file("/etc/shadow", 0, 0)
    with pytest.raises(HoneError):
        await shell.box.write_file(BoxFile(path="/etc/hone-was-here", content=b"x"))


async def test_01_a_fork_bomb_is_contained_and_killed(start):
    shell = await start(*as_user(_UID + 1), "--max-processes", "60")
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    before = len(os.listdir("/proc"))
    outcome = await shell.python(bomb, timeout_seconds=1.0)
    assert outcome.termination is Termination.TIMED_OUT
    assert outcome.duration_seconds < 6.0
    assert len(os.listdir("/proc")) < before + 100
    assert (await shell.sh("echo alive")).stdout == b"alive\n"


async def test_01b_running_out_of_processes_is_said(start, tmp_path):
    (tmp_path / "pids.events").write_text("max 3\n")
    shell = await start("--cgroup", str(tmp_path))
    counted = await shell.sh(f"echo max 4 > {tmp_path}/pids.events; exit 1")
    assert counted.termination is Termination.PIDS_LIMIT
    fine = await shell.sh(f"echo max 5 > {tmp_path}/pids.events")
    assert fine.termination is Termination.EXITED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\noom 1\noom_kill {}\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
async def test_04_a_command_that_the_kernel_killed_for_memory_says_so(start, tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(0))
    shell = await start("--cgroup", str(tmp_path))
    script = f"printf '{text.format(1)}' > {path}; kill -9 $$"
    assert (await shell.sh(script)).termination is Termination.OOM_KILLED
    assert (await shell.sh("kill -9 $$")).termination is Termination.SIGNALED


async def test_04b_memory_that_runs_out_for_real_kills_the_command_alone(start):
    folder = Path("/sys/fs/cgroup/memory")
    if not (folder / "memory.limit_in_bytes").exists() or not os.access(folder, os.W_OK):
        pytest.skip("needs a writable memory control group of version 1")
    group = folder / f"hone-agent-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(96 * 1024 * 1024))
        shell = await start("--cgroup", str(group.parent))
        # The counters lie in a folder `memory` below what the agent is given; here that is the group itself.
        link = Path(os.path.join("/tmp", f"hone-agent-test-{os.getpid()}"))
        link.mkdir()
        (link / "memory").symlink_to(group)
        limited = await start("--cgroup", str(link))
        pid = int((await limited.sh("ps -o ppid= -p $PPID")).stdout)
        (group / "cgroup.procs").write_text(str(pid))
        outcome = await limited.python("x = bytearray(1 << 30)")
        assert outcome.termination is Termination.OOM_KILLED
        assert (await limited.sh("echo usable")).stdout == b"usable\n"
        (folder / "cgroup.procs").write_text(str(pid))
        (link / "memory").unlink()
        link.rmdir()
        assert (await shell.sh("echo other")).stdout == b"other\n"
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            (folder / "cgroup.procs").write_text(line)
        group.rmdir()


async def test_nothing_of_the_agent_reaches_a_command(start):
    shell = await start()
    outcome = await shell.python(
        "import os, resource\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd'))), 'SECRET' in os.environ, os.getsid(0) == os.getpid())\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    assert outcome.stdout == b"[0, 1, 2, 3] False True\n(0, 0)\n"


async def test_many_commands_at_once_leave_no_descriptor_and_no_process(start):
    shell = await start()
    pid = int((await shell.sh("ps -o ppid= -p $PPID")).stdout)
    before = len(os.listdir(f"/proc/{pid}/fd"))
    outcomes = await asyncio.gather(*(shell.sh(f"echo {n}; exit {n % 5}") for n in range(60)))
    assert [o.exit_code for o in outcomes] == [n % 5 for n in range(60)]
    async with asyncio.timeout(10):
        while len(os.listdir(f"/proc/{pid}/fd")) > before or _children(pid):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [b'{"is_first_pro', b"", b'["no object"]'])
async def test_an_answer_that_was_cut_off_is_a_lost_agent(answer):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(AgentLost):
            await AgentClient("127.0.0.1", port, TOKEN).info()


async def test_half_a_file_is_not_written(start, tmp_path):
    shell = await start()
    target = tmp_path / "file"
    target.write_bytes(b"before")
    host = shell.box._agent._host
    reader, writer = await asyncio.open_connection(host, PORT)
    writer.write(
        f"PUT /v1/file?path={target}&mode=420 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Length: 1000\r\n\r\nhalf".encode()
    )
    writer.write_eof()  # the caller is cut off
    async with asyncio.timeout(10):
        await reader.read(-1)  # the agent is through with it
    writer.close()
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


async def test_a_file_operation_that_takes_too_long_is_not_the_workload_s_doing(start, tmp_path):
    shell = await start()
    reader, writer = await asyncio.open_connection(shell.box._agent._host, PORT)
    writer.write(
        f"PUT /v1/file?path={tmp_path}/x&mode=420 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        "X-Timeout: 0.1\r\nContent-Length: 1000\r\n\r\n".encode()
    )
    async with asyncio.timeout(10):
        answer = await reader.read(-1)
    writer.close()
    end = json.loads(answer[answer.index(b"{") :])
    assert end["error"]["reason"] == "FILE_OPERATION_TIMEOUT"
    assert (end["error"]["retryable"], end["error"]["attributable"]) == (True, "infra")


async def test_what_cannot_be_read_is_not_left_out_of_a_snapshot(start, tmp_path):
    _open_to_all(tmp_path)
    shell = await start(*as_user(), "--folder", str(tmp_path))
    await shell.sh(f"cd {tmp_path} && touch open closed && mkdir folder && touch folder/x")
    await shell.box.snapshot(tmp_path.parent / "whole.tar")
    for mode, path in (("0", "closed"), ("0", "folder"), ("444", "folder")):
        await shell.sh(f"chmod {mode} {tmp_path}/{path}")
        with pytest.raises(FailedPrecondition, match=path) as caught:
            await shell.box.snapshot(tmp_path.parent / "half.tar")
        assert (caught.value.reason, caught.value.attributable) == ("UNREADABLE", "workload")
        await shell.sh(f"chmod 700 {tmp_path}/{path}")


async def test_a_write_through_a_link_is_whole_or_an_error(start, tmp_path):
    """A kernel that takes a part of what is written says so, and says why only when asked again."""
    shell = await start()
    pid = int((await shell.sh("ps -o ppid= -p $PPID")).stdout)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))  # stands for a disk with little room
    target, link = tmp_path / "file", tmp_path / "link"
    target.write_bytes(b"")
    link.symlink_to(target)
    with pytest.raises(HoneError) as caught:
        await shell.box.write_file(BoxFile(path=str(link), content=b"x" * 10_000))
    assert caught.value.attributable == "workload"


def test_an_old_end_is_not_taken_for_that_of_a_new_process_with_its_number():
    loop = asyncio.new_event_loop()
    try:
        reaper = Reaper(loop)
        orphan = os.fork()
        if not orphan:
            os._exit(3)
        os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
        reaper.reap()  # nobody asked for it
        again = reaper.forked(orphan)  # the kernel gives the number out a second time
        assert not again.done()
        assert orphan in reaper.own
    finally:
        loop.close()


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
