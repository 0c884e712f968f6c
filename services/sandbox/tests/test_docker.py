"""What is special about the Docker backend, over a real daemon of the tests' own; see test_contract.py for the rest."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import docker_daemon
import docker_rows
import pytest
import pytest_asyncio

from sandbox.backends import container_archives
from sandbox.backends.docker.backend import DockerBackend
from sandbox.backends.docker.box import COMMAND_GROUPS
from sandbox.backends.docker.spec import DEADLINE_LABEL, ID_LABEL, MANAGER_LABEL
from sandbox.backends.manager_name import ManagerName
from sandbox.backends.protocol import BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.settings import DockerOptions
from sandbox.storage.archives import Member, MemberKind
from sandbox.types import (
    MIB,
    BoxFile,
    BoxSpec,
    Command,
    FileKind,
    Limits,
    Owner,
    Purpose,
    Template,
    Termination,
)
from servicekit.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL = Limits(memory_bytes=192 * MIB, disk_bytes=32 * MIB, shm_bytes=8 * MIB, max_processes=64)


class Maker:
    """Makes sandboxes and destroys them after the test."""

    def __init__(self, backend: DockerBackend) -> None:
        self.backend = backend
        self.boxes = []
        self.lost: list[str] = []
        self.numbers = iter(range(1 << 20))

    async def __call__(self, **changes):
        spec = replace(
            BoxSpec(sandbox_id=f"sbx_own_{next(self.numbers):06d}", limits=SMALL), **changes
        )
        box = await self.backend.create(spec, self.lost.append)
        self.boxes.append(box)
        return box


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory):
    """One started backend."""
    async with docker_rows.opened(tmp_path_factory.mktemp("docker")) as made:
        await made.start()
        yield made
        await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def make(backend):
    """A way to make sandboxes; nothing of them is left."""
    maker = Maker(backend)
    yield maker
    for box in maker.boxes:
        await box.destroy()
    assert docker_rows.census(backend, Path()) == frozenset()


@pytest.fixture
def client():
    """The tests' own way to the daemon."""
    with contextlib.closing(docker_daemon.daemon().client()) as made:
        yield made


_numbers = iter(range(1 << 20))


async def run(box, *argv, **changes):
    command = Command(
        exec_id=f"d{next(_numbers)}", argv=argv, **({"timeout_seconds": 20.0} | changes)
    )
    return await box.run(command, DEFAULT_ENV, None)


async def test_the_container_is_as_hard_as_it_is_said_to_be(make, client):
    box = await make(owner=Owner(rollout_id="r-1", run_id="run-1", purpose=Purpose.GRADE))
    found = await asyncio.to_thread(client.inspect_container, box.container)
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert host["RestartPolicy"]["Name"] == "no"
    assert (host["Memory"], host["MemorySwap"]) == (SMALL.memory_bytes, SMALL.memory_bytes)
    assert host["PidsLimit"] == SMALL.max_processes + 2
    assert host["NanoCpus"] == 1_000_000_000
    labels = found["Config"]["Labels"]
    assert labels["hone.rollout.id"] == "r-1"
    assert labels["hone.sandbox.purpose"] == "grade"
    assert labels[ID_LABEL] == box.sandbox_id
    assert found["Name"] == f"/hone-{box.sandbox_id}"
    assert box.rootfs_digest == found["Image"]


async def test_commands_are_nobody_and_have_nothing_of_the_host(make):
    box = await make()
    said = await run(
        box,
        "sh",
        "-c",
        "id -u; id -g; grep Cap /proc/self/status; grep NoNewPrivs /proc/self/status",
    )
    lines = said.stdout.decode().split()
    assert lines[0] == "1000"
    assert int(lines[1]) in COMMAND_GROUPS
    assert set(lines[3:12:2]) == {"0" * 16}
    assert lines[-1] == "1"
    mounts = (await run(box, "cat", "/proc/mounts")).stdout.decode()
    assert "docker.sock" not in mounts
    assert [line.split()[3][:2] for line in mounts.splitlines() if line.split()[1] == "/"] == ["ro"]


async def test_each_writable_folder_is_sized(make):
    box = await make()
    for folder, size in (("/work", 32), ("/tmp", 8), ("/root", 8), ("/dev/shm", 8)):
        outcome = await run(
            box,
            "sh",
            "-c",
            f"dd if=/dev/zero of={folder}/big bs=1M count=64; stat -c %s {folder}/big; rm {folder}/big",
        )
        assert b"No space left" in outcome.stderr, folder
        assert int(outcome.stdout) <= size * MIB, folder


async def test_a_signal_to_everybody_spares_what_keeps_the_sandbox(make):
    box = await make()
    await run(box, "sh", "-c", "kill -9 -1; kill -CONT -1; kill -9 1")
    assert (await run(box, "echo", "usable")).stdout == b"usable\n"
    assert make.lost == []


async def _runs(box, words: str) -> bool:
    """Say whether a process in the box runs exactly this."""
    script = "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$one; echo; done"
    return f"{words} " in (await run(box, "sh", "-c", script)).stdout.decode().splitlines()


async def test_what_an_orphan_left_is_still_the_command_s_and_dies_with_it(make):
    box = await make()
    script = "(setsid sh -c 'setsid sleep 9771 & sleep 9771' &) ; kill -9 $$"
    outcome = await run(box, "sh", "-c", script, kill_survivors=True)
    assert (outcome.termination, outcome.signal) == (Termination.SIGNALED, 9)
    assert not await _runs(box, "sleep 9771")


async def test_survivors_of_an_earlier_command_outlive_the_kill_of_a_later_one(make):
    box = await make()
    await run(box, "sh", "-c", "setsid sleep 9772 >/dev/null 2>&1 &")
    await run(box, "sh", "-c", "setsid sleep 9773 >/dev/null 2>&1 &", kill_survivors=True)
    assert not await _runs(box, "sleep 9773")
    async with asyncio.timeout(10):  # it may not have become this program yet
        while not await _runs(box, "sleep 9772"):
            pass


async def test_a_command_beside_one_that_is_killed_starts_all_the_same(make):
    box = await make()
    victims = [
        asyncio.ensure_future(run(box, "sleep", "9774", timeout_seconds=0.3 + n / 20))
        for n in range(3)
    ]
    beside = [asyncio.ensure_future(run(box, "echo", str(n))) for n in range(12)]
    waves = []
    for _ in range(8):
        waves.append(asyncio.ensure_future(run(box, "echo", "wave")))
        await asyncio.wait(victims, timeout=0.05)
    assert [int((await one).stdout) for one in beside] == list(range(12))
    assert {(await one).stdout for one in waves} == {b"wave\n"}
    assert {(await one).termination for one in victims} == {Termination.TIMED_OUT}


async def test_a_full_process_limit_is_the_workload_s_doing(make):
    box = await make(limits=replace(SMALL, max_processes=16))
    filler = (
        "import os, time\nfor _ in range(30):\n    try:\n        if not os.fork(): time.sleep(60); os._exit(0)\n"
        "    except OSError: break\nprint('full', flush=True)\ntime.sleep(60)"
    )
    said = asyncio.Event()
    command = Command(exec_id="filler", argv=("python3", "-c", filler), timeout_seconds=30.0)
    filling = asyncio.ensure_future(box.run(command, DEFAULT_ENV, lambda _: said.set()))
    await asyncio.wait_for(said.wait(), 20)
    refused = await run(box, "sh", "-c", "true & wait")
    assert refused.exit_code != 0
    assert b"ork" in refused.stderr
    await box.kill("filler")
    assert (await filling).termination is Termination.KILLED
    assert (await run(box, "echo", "room")).stdout == b"room\n"


async def test_death_for_memory_is_told_from_a_kill(make):
    box = await make()
    outcome = await run(box, "python3", "-c", "x = bytearray(1 << 30)")
    assert outcome.termination is Termination.OOM_KILLED
    outcome = await run(box, "sh", "-c", "kill -9 $$")
    assert (outcome.termination, outcome.signal) == (Termination.SIGNALED, 9)


async def test_files_that_lead_astray_are_refused_at_once(make, tmp_path):
    box = await make()
    secret = tmp_path / "secret"
    secret.write_text("host only")
    await run(
        box,
        "sh",
        "-c",
        f"cd /work; ln -s {secret} out; ln -s out out2; ln -s b a; ln -s a b; mkfifo fifo; "
        "ln -s /proc/self/environ env; ln -s /dev/zero zero; ln -s /work loop; echo real > real; "
        "ln -s /work/real in; ln -s /tmp elsewhere",
    )
    for name in ("out", "out2", "a", "env", "zero", "missing", "loop/loop/missing"):
        with pytest.raises(NotFound):
            await asyncio.wait_for(box.read_file(f"/work/{name}", 0, 0), 10)
    for path in ("/work/fifo", "/dev/zero", "/proc/self/environ", "/work"):
        with pytest.raises(InvalidArgument):
            await asyncio.wait_for(box.read_file(path, 0, 0), 10)
    assert (await box.read_file("/work/loop/loop/in", 0, 0)).content == b"real\n"
    await box.write_file(BoxFile(path="/work/in", content=b"through"))
    assert (await box.read_file("/work/real", 0, 0)).content == b"through"
    for path in ("/work/fifo", "/work/real/x", "/dev/shm/x", "/usr/bin/x", "/work"):
        with pytest.raises(InvalidArgument):
            await asyncio.wait_for(box.write_file(BoxFile(path=path, content=b"x")), 10)
    with pytest.raises(NotFound):
        await box.write_file(BoxFile(path="/work/out", content=b"x"))
    assert secret.read_text() == "host only"
    kinds = {entry.name: (entry.kind, entry.link_target) for entry in await box.list_files("/work")}
    assert kinds["fifo"] == (FileKind.OTHER, "")
    assert kinds["in"] == (FileKind.LINK, "/work/real")
    assert kinds["real"] == (FileKind.FILE, "")
    assert list(kinds) == sorted(kinds)


async def test_a_full_disk_is_said_to_be_full(make):
    box = await make()
    with pytest.raises(FailedPrecondition) as caught:
        await box.write_file(BoxFile(path="/work/big", content=bytes(33 * MIB)))
    assert (caught.value.reason, caught.value.attributable) == ("DISK_FULL", "workload")


def _archive(path: Path, *members: tuple[Member, bytes]) -> Path:
    container_archives.write_members(path, list(members))
    return path


def _file(path: str, content: bytes) -> tuple[Member, bytes]:
    return Member(path=path, kind=MemberKind.FILE, size=len(content), mode=0o4755), content


def _link(path: str, target: str) -> tuple[Member, bytes]:
    return Member(path=path, kind=MemberKind.LINK, link_target=target), b""


@pytest.mark.parametrize(
    "members",
    [
        [_file("../up", b"x")],
        [_file("/tmp/absolute", b"x")],
        [_link("way", "/tmp"), _file("way/through", b"x")],
        [(Member(path="hard", kind=MemberKind.HARD_LINK, link_target="../../etc/passwd"), b"")],
        [(Member(path="fifo", kind=MemberKind.FIFO), b"")],
        [(Member(path="device", kind=MemberKind.DEVICE), b"")],
        [_file("planted/through", b"x")],
    ],
    ids=["up", "absolute", "own link", "hard link", "fifo", "device", "link that is there"],
)
async def test_an_archive_leaves_its_folder_in_no_way(make, tmp_path, members):
    box = await make()
    await run(box, "sh", "-c", "mkdir /work/in; ln -s /tmp /work/in/planted")
    with pytest.raises(InvalidArgument):
        await box.unpack("/work/in", _archive(tmp_path / "a.tar", *members))
    listed = await run(box, "sh", "-c", "ls -A /tmp; ls /work")
    assert listed.stdout == b"in\n"


async def test_what_is_packed_unpacks_to_the_same(make, tmp_path):
    first, second = await make(), await make()
    await first.unpack(
        "/work/a/b", _archive(tmp_path / "in.tar", _file("x/y", b"content"), _link("l", "x/y"))
    )
    await run(first, "mkfifo", "/work/a/fifo")
    await first.pack("/work/a", tmp_path / "out.tar", 1 * MIB)
    await second.unpack("/work/copy", tmp_path / "out.tar")
    listed = await run(second, "sh", "-c", "cd /work/copy; ls -A; cat b/l; stat -c '%a %u' b/x/y")
    assert listed.stdout == b"b\ncontent755 1000\n"


async def test_a_snapshot_brings_back_all_that_can_be_written(make, tmp_path):
    first = await make()
    await run(
        first,
        "sh",
        "-c",
        "for d in /work /tmp /root; do mkdir $d/deep; echo $d > $d/deep/f; chmod 600 $d/deep/f; done; "
        "mkfifo /work/p",
    )
    await first.snapshot(tmp_path / "saved")
    second = await make(snapshot=tmp_path / "saved")
    listed = await run(
        second,
        "sh",
        "-c",
        "cat /work/deep/f /tmp/deep/f /root/deep/f; stat -c '%a %u' /work/deep/f; test -p /work/p && echo fifo",
    )
    assert listed.stdout == b"/work\n/tmp\n/root\n600 1000\nfifo\n"


async def test_an_image_that_is_missing_is_no_fault_of_the_caller(make):
    with pytest.raises(FailedPrecondition, match="docker pull") as caught:
        await make(template=Template(name="t", image="no-such-image:1"))
    assert caught.value.attributable == "infra"


async def test_a_network_profile_without_a_network_is_refused(make):
    with pytest.raises(FailedPrecondition, match="HONE_SANDBOX_DOCKER__NETWORKS"):
        await make(network_profile="egress")


async def test_no_daemon_is_said_with_what_to_do(tmp_path):
    options = DockerOptions(host=f"unix://{tmp_path}/none", image="x", call_seconds=2.0)
    with pytest.raises(FailedPrecondition, match="HONE_SANDBOX_DOCKER__HOST"):
        await DockerBackend(tmp_path / "a", options).start()
    with pytest.raises(FailedPrecondition, match="ssh -L"):
        DockerBackend(tmp_path, DockerOptions(host="ssh://somewhere", image="x"))
    with pytest.raises(FailedPrecondition, match="HONE_SANDBOX_DOCKER__IMAGE"):
        await DockerBackend(tmp_path / "b", DockerOptions()).start()


async def test_a_root_without_a_size_is_not_made_writable(tmp_path):
    options = docker_rows.options(docker_daemon.daemon(), writable_root=True)
    backend = DockerBackend(tmp_path, options)
    try:
        await backend.start()
    except FailedPrecondition as error:
        assert "storage-opt" in error.message or "pquota" in error.message
    else:
        pytest.skip("the storage driver here does limit the size of a root")
    finally:
        await backend.close()


async def test_remains_are_told_from_what_others_use(backend, make, client, tmp_path):
    box = await make()
    own = ManagerName.own("another-one")
    labels = {
        "lives": {MANAGER_LABEL: str(own), DEADLINE_LABEL: str(int(time.time()) + 600)},
        "dead": {MANAGER_LABEL: str(replace(own, start_ticks="1")), DEADLINE_LABEL: "99999999999"},
        "elsewhere": {
            MANAGER_LABEL: str(replace(own, host="other-1", pid=1)),
            DEADLINE_LABEL: str(int(time.time()) + 600),
        },
        "overdue": {MANAGER_LABEL: str(replace(own, host="other-1")), DEADLINE_LABEL: "1000"},
        "not ours": {},
    }
    made = {
        what: client.create_container(
            docker_daemon.IMAGE,
            ["true"],
            name=f"{tmp_path.name}-{n}",
            labels={**words, ID_LABEL: what} if words else {},
        )["Id"]
        for n, (what, words) in enumerate(labels.items())
    }
    try:
        assert await backend.reap(frozenset()) == 2
        left = {one["Id"] for one in client.containers(all=True)}
        kept = {what for what, container in made.items() if container in left}
        assert kept == {"lives", "elsewhere", "not ours"}
        assert (await run(box, "echo", "here")).stdout == b"here\n"
    finally:
        for container in made.values():
            with contextlib.suppress(Exception):
                client.remove_container(container, force=True)


async def test_a_container_that_is_made_too_late_is_removed(backend, client):
    spec = BoxSpec(sandbox_id="sbx_own_late", limits=SMALL)
    creating = asyncio.ensure_future(backend.create(spec, lambda _: None))
    end = time.monotonic() + 10
    while not client.containers(all=True, filters={"name": "hone-sbx_own_late"}):
        assert time.monotonic() < end
        await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert docker_rows.census(backend, Path()) == frozenset()
    assert backend.live_count() == 0


async def test_a_daemon_that_dies_is_a_fault_of_ours_and_is_found_again(tmp_path):
    reason = docker_daemon.why_not()
    if reason:
        pytest.skip(reason)
    daemon = await asyncio.to_thread(docker_daemon.start)
    backend = DockerBackend(tmp_path, docker_rows.options(daemon, call_seconds=5.0))
    lost: list[str] = []
    try:
        await backend.start()
        box = await backend.create(BoxSpec(sandbox_id="sbx_own_d", limits=SMALL), lost.append)
        said = asyncio.Event()
        command = Command(exec_id="x", argv=("sh", "-c", "echo up; sleep 60"), timeout_seconds=60)
        running = asyncio.ensure_future(box.run(command, DEFAULT_ENV, lambda _: said.set()))
        await asyncio.wait_for(said.wait(), 10)
        await asyncio.to_thread(daemon.interrupt)
        with pytest.raises((Unavailable, BoxLost)):
            await asyncio.wait_for(running, 20)
        with pytest.raises((Unavailable, BoxLost)):
            await run(box, "true")
        with pytest.raises(Unavailable):
            await backend.create(BoxSpec(sandbox_id="sbx_own_e", limits=SMALL), lost.append)
        await asyncio.to_thread(daemon.resume)
        end = time.monotonic() + 20
        while not lost:
            assert time.monotonic() < end, "nobody noticed that the container is gone"
            await asyncio.sleep(0.02)
        await box.destroy()
        again = await backend.create(BoxSpec(sandbox_id="sbx_own_f", limits=SMALL), lost.append)
        assert (await run(again, "echo", "again")).stdout == b"again\n"
        await again.destroy()
        assert backend.live_count() == 0
    finally:
        await backend.close()
        await asyncio.to_thread(docker_daemon.stop, daemon)
