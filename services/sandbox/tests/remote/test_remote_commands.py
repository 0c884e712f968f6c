"""Commands, files, archives and snapshots in sandboxes of a remote service, really run behind real HTTP."""

import asyncio
import io
import itertools
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.backends.protocol import BoxLost
from sandbox.backends.remote.box import RemoteBox
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import MIB, BoxFile, BoxSpec, Chunk, Command, ExecOutcome, FileKind, Stream
from sandbox.types import Termination as End
from servicekit.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange

pytestmark = pytest.mark.asyncio(loop_scope="module")
IDS = itertools.count()


class Used:
    """A sandbox with the calls that tests make."""

    def __init__(self, box: RemoteBox, lost: list[str]) -> None:
        self.box = box
        self.lost = lost

    async def run(self, *argv: str, emit=None, **changes: object) -> ExecOutcome:
        fields: dict[str, object] = {"exec_id": f"e{next(IDS)}", "argv": argv}
        env = dict(DEFAULT_ENV)
        command = Command(**(fields | changes))  # type: ignore[arg-type]
        return await self.box.run(command, {**env, **command.env}, emit)

    async def sh(self, script: str, **changes: object) -> ExecOutcome:
        return await self.run("sh", "-c", script, **changes)

    async def text(self, script: str) -> str:
        outcome = await self.sh(script)
        assert (outcome.termination, outcome.exit_code) == (End.EXITED, 0), outcome
        return outcome.stdout.decode()

    async def until(self, count: int, name: str) -> None:
        """Wait until so many processes have the name: one has it once it runs the program, and until it is reaped."""
        async with asyncio.timeout(15):
            while await self.text(f"pgrep -c {name} || true") != f"{count}\n":
                pass


async def _make(backend, **changes: object) -> Used:
    lost: list[str] = []
    spec = replace(BoxSpec(sandbox_id=f"sbx_{next(IDS):06d}"), **changes)  # type: ignore[arg-type]
    return Used(await backend.create(spec, lost.append), lost)


@pytest_asyncio.fixture(loop_scope="module")
async def used(real_backend):
    made = await _make(real_backend)
    yield made
    await made.box.destroy()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(real_backend):
    """For tests that leave nothing behind."""
    made = await _make(real_backend)
    yield made
    await made.box.destroy()


async def test_output_exit_code_and_folder(shared):
    outcome = await shared.sh("pwd; echo oops >&2; exit 3")
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, 3)
    assert (outcome.stdout, outcome.stderr) == (b"/work\n", b"oops\n")
    assert not outcome.output_incomplete


async def test_arguments_bytes_environment_and_input_arrive_as_they_are(shared):
    odd = "a b\n'\"$HOME`\\ é"
    outcome = await shared.run("printf", "%s|", odd, "", "-n")
    assert outcome.stdout == f"{odd}||-n|".encode()
    outcome = await shared.run("sh", "-c", 'printf %s "$ODD"', env={"ODD": odd})
    assert outcome.stdout == odd.encode()
    data = bytes(range(256)) * 500
    outcome = await shared.run("cat", stdin=data)
    assert outcome.stdout == data
    assert (await shared.text("ls -A /tmp")) == ""  # the input's file is gone


async def test_without_input_the_command_reads_its_end(shared):
    assert (await shared.sh("cat; echo done")).stdout == b"done\n"


async def test_a_signal_is_said(shared):
    outcome = await shared.sh("kill -SEGV $$")
    assert (outcome.termination, outcome.signal) == (End.SIGNALED, 11)
    outcome = await shared.sh("kill -35 $$")
    assert (outcome.termination, outcome.signal) == (End.SIGNALED, 35)


@pytest.mark.parametrize(
    ("argv", "folder", "code"),
    [
        (("no-such-program",), "/work", 127),
        (("/etc/hosts",), "/work", 126),
        (("true",), "/nowhere", 126),
    ],
)
async def test_a_program_that_cannot_start_is_data(shared, argv, folder, code):
    outcome = await shared.run(*argv, working_dir=folder)
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, code)
    assert outcome.stderr


async def test_output_is_capped_and_streamed_as_it_comes(shared):
    outcome = await shared.run("seq", "1", "20000", max_output_bytes=1000)
    assert outcome.stdout_truncated
    assert len(outcome.stdout) == 1000
    assert outcome.stdout.endswith(b"20000\n")
    chunks: list[Chunk] = []
    seen = asyncio.Event()

    def emit(chunk: Chunk) -> None:
        chunks.append(chunk)
        seen.set()

    running = asyncio.ensure_future(
        shared.sh("echo one; echo two >&2; exec sleep 60", emit=emit, exec_id="streamed")
    )
    async with asyncio.timeout(10):
        while len(chunks) < 2:
            seen.clear()
            await seen.wait()
        assert {(c.stream, c.data) for c in chunks} == {
            (Stream.STDOUT, b"one\n"),
            (Stream.STDERR, b"two\n"),
        }
        await shared.box.kill("streamed")
        assert (await running).termination is End.KILLED


async def test_a_flood_is_cut(shared):
    outcome = await shared.run("yes")
    assert outcome.termination is End.OUTPUT_LIMIT
    assert len(outcome.stdout) == MIB
    await shared.until(0, "yes")


async def test_06_a_process_left_behind_does_not_hold_the_command(shared):
    begun = time.monotonic()
    outcome = await shared.sh("setsid sleep 778 & echo started; exit 5")
    assert (outcome.termination, outcome.exit_code) == (End.EXITED, 5)
    assert (outcome.stdout, outcome.output_incomplete) == (b"started\n", True)
    assert time.monotonic() - begun < 60  # and not for the time that it sleeps
    await shared.until(1, "sleep")
    await shared.text("pkill -9 sleep")
    await shared.until(0, "sleep")


async def test_06b_a_signal_is_said_there_too(shared):
    outcome = await shared.sh("sleep 779 & kill -9 $$")
    assert (outcome.termination, outcome.signal) == (End.SIGNALED, 9)
    assert outcome.output_incomplete
    await shared.text("pkill -9 sleep")
    await shared.until(0, "sleep")


async def test_survivors_are_killed_where_that_is_asked_for(shared):
    outcome = await shared.sh("setsid sleep 778 >/dev/null 2>&1 &", kill_survivors=True)
    assert outcome.exit_code == 0
    await shared.until(0, "sleep")


async def test_07_a_time_out_kills_everything_that_the_command_started(shared):
    script = (
        "trap '' TERM; setsid nohup sleep 777 >/dev/null 2>&1 & sleep 777 & "
        "echo begun; kill -STOP $$"
    )
    outcome = await shared.sh(script, timeout_seconds=0.5)
    assert (outcome.termination, outcome.stdout) == (End.TIMED_OUT, b"begun\n")
    assert outcome.duration_seconds >= 0.5
    await shared.until(0, "sleep")


async def test_a_caller_that_gives_up_kills_its_command(shared):
    running = asyncio.ensure_future(shared.sh("echo; exec sleep 776", exec_id="given-up"))
    await shared.until(1, "sleep")
    running.cancel()
    await shared.until(0, "sleep")
    assert running.cancelled()


@pytest.mark.slow
async def test_01_a_sandbox_that_fills_itself_with_processes_is_the_workloads_doing(used):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    outcome = await used.run("python3", "-c", bomb, timeout_seconds=1.0)
    assert outcome.termination in (End.SANDBOX_BROKEN_BY_WORKLOAD, End.TIMED_OUT)
    assert outcome.duration_seconds < 20
    after = await used.sh("echo hello")
    assert after.termination in (End.PIDS_LIMIT, End.SANDBOX_BROKEN_BY_WORKLOAD, End.EXITED)
    assert used.lost == []


async def test_08_a_sandbox_that_wrecks_itself_is_the_workloads_doing(used):
    await used.sh("rm -rf --no-preserve-root / 2>/dev/null")
    outcome = await used.sh("echo hello")
    assert outcome.termination is End.SANDBOX_BROKEN_BY_WORKLOAD
    with pytest.raises(FailedPrecondition) as caught:
        await used.box.list_files("/")
    assert caught.value.reason == "SANDBOX_BROKEN_BY_WORKLOAD"
    assert caught.value.attributable == "workload"
    assert used.lost == []


async def test_files_are_written_and_read(shared):
    content = bytes(range(256)) * 1000
    await shared.box.write_file(BoxFile(path="/work/d e/a'b\n", content=content, mode=0o640))
    read = await shared.box.read_file("/work/d e/a'b\n", 0, 0)
    assert (read.content, read.size_bytes) == (content, len(content))
    part = await shared.box.read_file("/work/d e/a'b\n", 255, 3)
    assert (part.content, part.size_bytes) == (b"\xff\x00\x01", len(content))
    entry = await shared.box.stat_file("/work/d e/a'b\n")
    assert (entry.kind, entry.size_bytes, entry.mode) == (FileKind.FILE, len(content), 0o640)
    assert abs(entry.modify_time - time.time()) < 60
    await shared.text("rm -r '/work/d e'")
    assert (await shared.text("ls -A /tmp")) == ""


async def test_a_folder_is_listed_in_order_with_links_unresolved(shared):
    await shared.text("mkdir -p /work/l/sub; cd /work/l; touch b; ln -s /nowhere a; mkfifo f")
    listed = await shared.box.list_files("/work/l")
    assert [(e.name, e.kind) for e in listed] == [
        ("a", FileKind.LINK),
        ("b", FileKind.FILE),
        ("f", FileKind.OTHER),
        ("sub", FileKind.FOLDER),
    ]
    assert listed[0].link_target == "/nowhere"
    assert (await shared.box.stat_file("/work/l/a")).kind is FileKind.LINK
    assert await shared.box.list_files("/work/l/sub") == []
    await shared.text("rm -r /work/l")


async def test_09_what_is_no_regular_file_is_refused_at_once(shared):
    await shared.text(
        "cd /work; mkfifo pipe; ln -s /dev/zero zero; ln -s /proc/self/environ env; ln -s /no broken"
    )
    async with asyncio.timeout(20):
        for name in ("pipe", "zero", "."):
            with pytest.raises(InvalidArgument):
                await shared.box.read_file(f"/work/{name}", 0, 0)
        for name in ("broken", "absent", "env"):
            with pytest.raises(NotFound):
                await shared.box.read_file(f"/work/{name}", 0, 0)
        with pytest.raises(NotFound):
            await shared.box.stat_file("/work/absent")
        with pytest.raises(NotFound):
            await shared.box.list_files("/work/absent")
        with pytest.raises(InvalidArgument):
            await shared.box.list_files("/etc/hosts")
        with pytest.raises(InvalidArgument):
            await shared.box.write_file(BoxFile(path="/work/pipe", content=b"x"))
        with pytest.raises(InvalidArgument):
            await shared.box.write_file(BoxFile(path="/etc/hosts/x", content=b"x"))
        with pytest.raises(NotFound):
            await shared.box.write_file(BoxFile(path="/work/broken", content=b"x"))
    await shared.text("cd /work; rm pipe zero env broken")


async def test_a_write_through_a_link_writes_what_it_leads_to(shared):
    await shared.text("cd /work; echo old >real; ln -s real link")
    await shared.box.write_file(BoxFile(path="/work/link", content=b"new"))
    assert await shared.text("cat /work/real; readlink /work/link") == "newreal\n"
    await shared.text("rm /work/real /work/link")


async def test_a_file_that_is_too_large_is_read_in_parts(shared):
    await shared.text("head -c 4000000 /dev/zero >/work/big")
    with pytest.raises(OutOfRange):
        await shared.box.read_file("/work/big", 0, 0)
    read = await shared.box.read_file("/work/big", 3_999_990, 100)
    assert (read.content, read.size_bytes) == (bytes(10), 4_000_000)
    await shared.text("rm /work/big")


async def test_a_full_disk_is_the_workloads_doing(used):
    await used.sh("head -c 1000M /dev/zero >/work/fill")
    with pytest.raises(FailedPrecondition) as caught:
        await used.box.write_file(BoxFile(path="/work/x", content=bytes(MIB)))
    assert (caught.value.reason, caught.value.attributable) == ("DISK_FULL", "workload")
    outcome = await used.run("cat", stdin=bytes(MIB))
    assert (outcome.exit_code, b"no room" in outcome.stderr) == (126, True)


async def test_an_archive_goes_in_and_comes_out(shared, tmp_path: Path):
    source = tmp_path / "in.tar"
    with tarfile.open(source, "w:gz") as archive:
        for name in ("top.txt", "sub/inner.txt"):
            member = tarfile.TarInfo(name)
            member.size, member.mode = 5, 0o750
            archive.addfile(member, io.BytesIO(b"hello"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "top.txt"
        archive.addfile(link)
    await shared.box.unpack("/work/new", source)
    assert await shared.text("cd /work/new; cat link sub/inner.txt; stat -c %a:%u top.txt") == (
        "hellohello750:0\n"
    )
    out = tmp_path / "out.tar"
    await shared.box.pack("/work/new", out, MIB)
    with tarfile.open(out) as archive:
        assert sorted(archive.getnames()) == ["link", "sub", "sub/inner.txt", "top.txt"]
        assert archive.extractfile("link").read() == b"hello"
    await shared.box.pack("/work/new/top.txt", out, MIB)
    with tarfile.open(out) as archive:
        assert archive.getnames() == ["top.txt"]
    await shared.text("mkdir /work/empty")
    await shared.box.pack("/work/empty", out, MIB)
    with tarfile.open(out) as archive:
        assert archive.getnames() == []
    await shared.text("rm -r /work/new /work/empty")


async def test_an_archive_that_is_too_large_or_absent_is_said(shared, tmp_path: Path):
    await shared.text("head -c 2000000 /dev/urandom >/work/big")
    with pytest.raises(OutOfRange):
        await shared.box.pack("/work/big", tmp_path / "out", MIB)
    with pytest.raises(NotFound):
        await shared.box.pack("/work/absent", tmp_path / "out", MIB)
    await shared.until(0, "tar")
    await shared.text("rm /work/big")


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
async def test_an_archive_that_would_leave_its_folder_is_refused(shared, tmp_path: Path, name):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(InvalidArgument, match="would leave"):
        await shared.box.unpack("/work/bad", path)
    assert await shared.text("ls /work") == ""


async def test_an_archive_that_passes_through_its_own_link_is_refused(shared, tmp_path: Path):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("out/x"), io.BytesIO())
    with pytest.raises(InvalidArgument, match="passes through a link"):
        await shared.box.unpack("/work/bad", path)


async def test_what_is_no_archive_is_refused(shared, tmp_path: Path):
    path = tmp_path / "bad.tar"
    path.write_bytes(b"x" * 2000)
    with pytest.raises(InvalidArgument):
        await shared.box.unpack("/work/bad", path)


async def test_a_snapshot_starts_others_and_goes_with_its_file(
    real_backend, real_service, used, tmp_path: Path
):
    await used.text("echo kept >/work/note; ln -s note /work/link")
    unfinished, target = tmp_path / "unfinished", real_backend._folder.path / "saved"
    unfinished = real_backend._folder.path / "unfinished"
    await used.box.snapshot(unfinished)
    unfinished.rename(target)  # as the manager does
    await used.text("echo changed >/work/note")
    await real_backend.reap(frozenset({used.box.sandbox_id}))
    assert len(real_service.snapshots) == 1
    other = await _make(real_backend, snapshot=target)
    assert await other.text("cat /work/link") == "kept\n"
    await other.box.destroy()
    target.unlink()
    await real_backend.reap(frozenset({used.box.sandbox_id}))
    assert real_service.snapshots == {}


async def test_a_machine_that_vanishes_under_a_command_is_lost_and_no_result(
    real_backend, real_service
):
    used = await _make(real_backend)
    seen = asyncio.Event()
    running = asyncio.ensure_future(used.sh("echo half; exec sleep 60", emit=lambda _: seen.set()))
    async with asyncio.timeout(10):
        await seen.wait()
        await real_service.vanish(used.box.remote_id)
        with pytest.raises(BoxLost):
            await running
    assert used.lost == [used.box.sandbox_id]
    with pytest.raises(BoxLost):
        await used.sh("true")
    with pytest.raises(BoxLost):
        await used.box.read_file("/work/x", 0, 0)
    await used.box.destroy()
    assert used.lost == [used.box.sandbox_id]


async def test_a_machine_that_vanished_is_noticed_by_a_file_call(real_backend, real_service):
    used = await _make(real_backend)
    await real_service.vanish(used.box.remote_id)
    with pytest.raises(BoxLost):
        await used.box.stat_file("/work")
    assert used.lost == [used.box.sandbox_id]
    await used.box.destroy()


async def test_a_connection_that_breaks_under_a_command_gives_the_sandbox_up(
    real_backend, real_service
):
    used = await _make(real_backend)
    seen = asyncio.Event()
    running = asyncio.ensure_future(used.sh("echo half; exec sleep 60", emit=lambda _: seen.set()))
    async with asyncio.timeout(10):
        await seen.wait()
        for stream in list(real_service.vms[used.box.remote_id].streams):
            stream.cancel()
        with pytest.raises(BoxLost):
            await running
    assert used.lost == [used.box.sandbox_id]  # the fleet destroys it
    await used.box.destroy()
    assert used.box.remote_id not in real_service.vms


async def test_two_sandboxes_share_nothing(real_backend):
    one, two = await asyncio.gather(_make(real_backend), _make(real_backend))
    await one.text("echo secret >/work/x")
    assert await two.text("ls /work") == ""
    await asyncio.gather(one.box.destroy(), two.box.destroy())
