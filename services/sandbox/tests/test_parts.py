"""The small parts: output caps, journal, cgroup detection, wire, filter, requests, digest."""

import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.backends.local.cgroups import CgroupsUnavailable, find_tree
from sandbox.fleet.records import Records, SandboxRecord
from sandbox.output import CappedOutput
from sandbox.requests import Policy, check_create, fill_limits
from sandbox.rootfs import plan_host_root
from sandbox.spawner import seccomp, wire
from sandbox.storage.files import BoxFiles, check_path
from sandbox.types import BoxKey, Cause, CreateSpec, Limits, Purpose
from servicekit.errors import InvalidArgument


@given(st.integers(0, 40), st.lists(st.binary(max_size=15), max_size=12))
def test_output_keeps_head_and_tail_within_the_cap(cap, pieces):
    output = CappedOutput(cap)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    kept = output.content()
    assert output.total_bytes == len(whole)
    assert output.truncated == (len(whole) > cap)
    if len(whole) <= cap:
        assert kept == whole
    else:
        head = cap - cap // 2
        assert kept == whole[:head] + (whole[-(cap // 2) :] if cap // 2 else b"")


def _record(number: int, rollout: str = "r") -> SandboxRecord:
    key = BoxKey(rollout_id=f"{rollout}{number}", purpose=Purpose.AGENT, sequence=0)
    return SandboxRecord(
        sandbox_id=f"sbx_{number}", key=key, run_id="run-1", epoch=number, trace_parent=""
    )


def test_a_journal_that_was_cut_off_is_read_up_to_the_cut(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.begin(_record(1))
    records.begin(_record(2))
    records.finish("sbx_2", Cause.OUTCOME, polluted=True)
    records.mark_told("sbx_2")
    records.end_rollout("r2")
    records.close()
    with path.open("a") as file:
        file.write('{"op": "begin", "sandbox_id": "sbx_3", "roll')
    again = Records(path)
    assert [(r.sandbox_id, r.cause) for r in again.untold()] == [("sbx_1", Cause.MANAGER_LOST)]
    assert again.get("sbx_2").cause is Cause.OUTCOME
    assert again.get("sbx_2").polluted
    assert again.has_ended("r2")
    assert dict(again.newest_epochs()) == {"r1": 1, "r2": 2}
    again.close()
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_the_journal_stays_bounded(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path, max_sandboxes=10, max_ended=10)
    for number in range(6000):
        records.begin(_record(number))
        records.finish(f"sbx_{number}", Cause.OUTCOME)
        records.mark_told(f"sbx_{number}")
        records.end_rollout(f"r{number}")
    assert len(path.read_text().splitlines()) < 10_000
    assert records.get("sbx_5999") is not None
    assert records.get("sbx_0") is None
    assert records.has_ended("r5999")
    assert not records.has_ended("r0")
    records.close()


def test_what_was_made_ahead_is_told_to_nobody_until_it_is_somebodys(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    for number in (1, 2, 3, 4):
        records.begin_ahead(f"sbx_{number}")
    records.drop("sbx_2")  # given up
    records.begin(_record(3))  # handed over
    records.begin(_record(4))
    records.drop("sbx_4")  # could not be handed over
    assert records.last_of(_record(4).key) is None
    records.close()
    again = Records(path)
    assert [(r.sandbox_id, r.cause) for r in again.untold()] == [("sbx_3", Cause.MANAGER_LOST)]
    assert [again.get(f"sbx_{number}") for number in (1, 2, 4)] == [None] * 3
    again.close()
    assert "ahead" not in path.read_text()


def test_what_is_made_ahead_survives_a_rewrite_of_the_journal(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path, max_sandboxes=10, max_ended=10)
    records.begin_ahead("sbx_kept")
    for number in range(20_000):
        records.begin_ahead(f"sbx_{number}")
        records.drop(f"sbx_{number}")
    lines = path.read_text().splitlines()
    assert len(lines) < 20_000
    assert '{"op": "ahead", "sandbox_id": "sbx_kept"}' in lines
    records.close()


@contextlib.contextmanager
def _files_end_at(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_record_that_cannot_be_written_is_none_and_spoils_no_other(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.begin(_record(1))
    with _files_end_at(path.stat().st_size + 20):  # half a line fits
        with pytest.raises(OSError, match="too large"):
            records.begin(_record(2))
        assert records.last_of(_record(2).key) is None
        with pytest.raises(OSError, match="too large"):
            records.end_rollout("r1")
        assert not records.has_ended("r1")  # whoever tells it tells it again
        records.finish("sbx_1", Cause.OUTCOME)  # that it is gone is true, written or not
    records.begin(_record(3))
    records.close()
    again = Records(path)
    assert {r.sandbox_id: r.cause for r in again.untold()} == {
        "sbx_1": Cause.MANAGER_LOST,
        "sbx_3": Cause.MANAGER_LOST,
    }
    again.close()


def test_a_journal_that_cannot_be_rewritten_goes_on(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)

    def make_and_drop(count: int) -> int:
        for number in range(count):
            records.begin_ahead(f"sbx_ahead_{number}")
            records.drop(f"sbx_ahead_{number}")
        return len(path.read_text().splitlines())

    records.begin(_record(1))
    path.with_suffix(".new").mkdir()  # in the way
    assert make_and_drop(10_000) == 20_001
    path.with_suffix(".new").rmdir()
    assert make_and_drop(10_000) < 10_000
    records.close()
    again = Records(path)
    assert [r.sandbox_id for r in again.untold()] == ["sbx_1"]
    again.close()


async def test_sync_is_shared(tmp_path):
    records = Records(tmp_path / "records.jsonl")
    records.begin(_record(1))
    await records.sync()
    await records.sync()
    records.close()


MOUNTS_V1 = """\
24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
25 24 0:23 / {root}/memory rw - cgroup cgroup rw,memory
26 24 0:24 /box {root}/pids rw - cgroup cgroup rw,pids
27 24 0:25 / {root}/unified rw - cgroup2 cgroup2 rw
"""


def _proc(tmp_path: Path, mounts: str, own: str) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(mounts.format(root=tmp_path))
    (proc / "cgroup").write_text(own)
    return proc


def test_a_hybrid_machine_uses_version_1_below_its_own_paths(tmp_path):
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("hugetlb\n")
    proc = _proc(tmp_path, MOUNTS_V1, "4:memory:/outer/inner\n8:pids:/box/x\n0::/\n")
    tree = find_tree(proc)
    assert tree.version == 1
    assert dict(tree.folders) == {
        "memory": tmp_path / "memory/outer/inner",
        "pids": tmp_path / "pids/x",
    }


def test_a_version_2_tree_with_the_controllers_is_used(tmp_path):
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    proc = _proc(tmp_path, "30 1 0:26 / {root} rw - cgroup2 cgroup2 rw\n", "0::/unit\n")
    tree = find_tree(proc)
    assert tree.version == 2
    assert set(tree.controllers) == {"pids", "memory", "cpu"}
    assert set(tree.folders.values()) == {tmp_path / "unit"}


def test_a_machine_without_controllers_says_which_are_missing(tmp_path):
    proc = _proc(tmp_path, "", "0::/\n")
    with pytest.raises(CgroupsUnavailable, match="pids and memory"):
        find_tree(proc)


def test_long_messages_and_descriptors_cross_the_wire():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    with ours, theirs:
        for size in (10, wire.INLINE_BYTES, 1_000_000):
            wire.send(ours, {"text": "x" * size}, [writer])
            message, (passed,) = wire.receive(theirs)
            assert message == {"text": "x" * size}
            os.write(passed, b"!")
            os.close(passed)
            assert os.read(reader, 1) == b"!"
        ours.close()
        assert wire.receive(theirs) is None
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_s_jumps_stay_inside_it(machine):
    program = seccomp.build_filter(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    for position, (code, jump_true, jump_false, _) in enumerate(steps):
        if code & 0x07 == 0x05:
            assert position + 1 + max(jump_true, jump_false) < len(steps)
    assert steps[-1] == (0x06, 0, 0, 0x7FFF0000)


@pytest.mark.parametrize(
    ("machine", "number", "argument", "verdict"),
    [
        ("x86_64", 101, 0, 0x00050001),
        ("x86_64", 59, 0, 0x7FFF0000),
        ("x86_64", 41, 2, 0x7FFF0000),
        ("x86_64", 41, 17, 0x00050061),
        ("x86_64", 56, 0x10000000, 0x00050001),
        ("x86_64", 56, 0x11, 0x7FFF0000),
        ("x86_64", 435, 0, 0x00050026),
        ("x86_64", 0x40000000, 0, 0x00050026),
        ("aarch64", 117, 0, 0x00050001),
        ("aarch64", 198, 1, 0x7FFF0000),
        ("aarch64", 198, 40, 0x00050061),
    ],
)
def test_the_filter_decides(machine, number, argument, verdict):
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    words = {0: number, 4: arch, 16: argument, 24: argument}
    assert _run_filter(seccomp.build_filter(machine), words) == verdict
    words[4] ^= 1
    assert _run_filter(seccomp.build_filter(machine), words) == 0x80000000


def _run_filter(program: bytes, words: dict[int, int]) -> int:
    position, accumulator = 0, 0
    while True:
        code, jump_true, jump_false, value = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        if code == 0x20:
            accumulator = words[value]
        elif code == 0x06:
            return value
        else:
            met = {0x15: accumulator == value, 0x35: accumulator >= value}.get(
                code, bool(accumulator & value)
            )
            position += jump_true if met else jump_false


def test_default_limits_fit_each_other_whatever_the_memory():
    for memory in (0, 64 << 20, 1 << 30):
        limits = fill_limits(
            memory_bytes=memory, max_processes=0, cpus=0, disk_bytes=0, max_inodes=0
        )
        spec = CreateSpec(
            key=BoxKey(
                rollout_id="00000000-0000-7000-8000-000000000000",
                purpose=Purpose.AGENT,
                sequence=0,
            ),
            run_id="run-1",
            limits=limits,
            lifetime_seconds=60,
            idle_seconds=60,
        )
        check_create(spec, "", Policy())
    with pytest.raises(InvalidArgument, match="memory_bytes"):
        check_create(
            CreateSpec(
                key=spec.key,
                run_id="run-1",
                limits=Limits(memory_bytes=1),
                lifetime_seconds=60,
                idle_seconds=60,
            ),
            "host",
            Policy(),
        )


def test_the_digest_names_what_the_root_is_made_of(tmp_path):
    host = tmp_path / "host"
    for folder in ("usr/bin", "usr/local/bin", "etc", "var/lib/dpkg"):
        (host / folder).mkdir(parents=True)
    (host / "usr/bin/sh").write_text("shell")
    (host / "var/lib/dpkg/status").write_text("Package: a")
    (host / "bin").symlink_to("usr/bin")
    first = plan_host_root(tmp_path / "a", host)
    assert first.digest == plan_host_root(tmp_path / "b", host).digest
    assert ("bin", "usr/bin") in first.symlinks
    (host / "var/lib/dpkg/status").write_text("Package: b")
    assert plan_host_root(tmp_path / "a", host).digest != first.digest
    (host / "usr/bin/sh").unlink()
    with pytest.raises(FileNotFoundError, match="shell"):
        plan_host_root(tmp_path / "a", host)


RENAMING = """
import os, sys
os.chdir(sys.argv[1])
while os.getppid() == int(sys.argv[2]):
    os.rename("here", "there")
    os.rename("there", "here")
"""


def test_somebody_elses_renames_do_not_keep_a_link_from_being_followed(tmp_path):
    root, other = tmp_path / "root", tmp_path / "other"
    (root / "folder").mkdir(parents=True)
    (root / "file").write_text("content")
    (root / "folder/link").symlink_to("../file")
    (other / "here").mkdir(parents=True)
    arguments = [sys.executable, "-c", RENAMING, str(other), str(os.getpid())]
    descriptor = os.open(root, os.O_PATH)
    with subprocess.Popen(arguments) as renaming:
        end = time.monotonic() + 10
        while (other / "here").exists():
            assert time.monotonic() < end
        files = BoxFiles(descriptor, os.getuid(), lambda: "unused")
        assert all(files.exists("/folder/link") for _ in range(20_000))
        assert renaming.poll() is None
        renaming.kill()
    os.close(descriptor)


@pytest.mark.parametrize("path", ["/" + "a" * 5000, "\u00e9" * 5000])
def test_a_long_path_is_cut_where_it_is_refused(path):
    with pytest.raises(InvalidArgument) as caught:
        check_path(path, "path")
    assert len(caught.value.message.encode()) < 1000
    assert f"({len(path)} characters)" in caught.value.message
