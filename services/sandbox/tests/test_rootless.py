"""The same backend as an ordinary user, and what it says where a machine cannot isolate."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534
GROUP = 12345
"""Of the ordinary user; another number than the user's, as on many machines."""

SCRIPT = '''
import asyncio, json, shutil, subprocess, sys, tempfile
from pathlib import Path
from sandbox.backends.local.backend import LocalBackend
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import BoxFile, BoxSpec, Command, Limits, Template
from servicekit.errors import FailedPrecondition

ON_THEIR_WAY = """
import array, os, socket, time
null, kept, got = os.open("/dev/null", 0), [], 0
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 100))]
while got < 1100:
    kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    try: kept[-1][0].sendmsg([b"x"], rights)
    except OSError: break
    got += 100
open("/work/full", "w").close()
time.sleep(60)
"""

def make_image(folder):
    for program in ("sh", "cat", "ls", "rm", "dd"):
        place = shutil.which(program, path="/usr/bin:/bin")
        linked = subprocess.run(["ldd", place], capture_output=True, text=True).stdout.split()
        for path in [place, *(word for word in linked if word.startswith("/"))]:
            target = folder / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    if not (folder / "bin").exists():
        (folder / "bin").symlink_to("usr/bin")
    (folder / "etc/deep").mkdir(parents=True)
    (folder / "etc/issue").write_text("of the image")
    (folder / "etc/deep/file").write_text("x")

async def main():
    with tempfile.TemporaryDirectory() as folder:
        backend = LocalBackend(Path(folder))
        try:
            info = await backend.start()
        except FailedPrecondition as error:
            print(json.dumps({"refused": error.reason, "why": error.message}))
            return
        box = await backend.create(
            BoxSpec(sandbox_id="s1", limits=Limits(max_processes=50)), print)
        said = {"isolation": info.isolation, "detail": info.detail}
        async def run(name, *argv, timeout=10.0):
            command = Command(exec_id=name, argv=argv, timeout_seconds=timeout)
            outcome = await box.run(command, DEFAULT_ENV, None)
            said[name] = [outcome.termination, outcome.exit_code,
                          (outcome.stdout + outcome.stderr).decode()]
        await run("id", "sh", "-c", "id -u; grep CapEff /proc/self/status; ls -d /root")
        bomb = "import os\\nwhile 1:\\n    try: os.fork()\\n    except OSError: pass"
        await run("bomb", "python3", "-c", bomb, timeout=0.5)
        living = "grep -hc '^State:[[:space:]]*[RSD]' /proc/[0-9]*/status | grep -c 1"
        await run("after", "sh", "-c", living)
        await run("memory", "python3", "-c", "bytearray(1 << 30)")
        await run("disk", "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=1000; rm /big")
        await run("doors", "sh", "-c", "unshare -Ur true; cat /proc/1/environ; mount -t proc x /mnt")
        await box.write_file(BoxFile(path="/work/a/b", content=b"hello"))
        said["file"] = (await box.read_file("/work/a/b", 0, 0)).content.decode()
        mess = ("cd /work; ln a/b hard; chmod 4711 a/b; ln -s x l; mkfifo p; rm /etc/hosts; "
                "mkdir closed; echo c > closed/c; chmod 500 closed; chmod 700 /opt")
        await run("mess", "sh", "-c", mess)
        saved = Path(folder) / "saved"
        await box.snapshot(saved)
        looks = ("sh", "-c", "ls -lR --time-style=full-iso / 2>/dev/null --ignore=proc --ignore=usr --ignore=dev")
        await run("saved", *looks)
        await box.destroy()
        box = await backend.create(
            BoxSpec(sandbox_id="s2", limits=Limits(max_processes=50), snapshot=saved), print)
        await run("restored", *looks)
        await run("unreadable", "sh", "-c", "mkdir -m 0 /work/shut")
        try:
            await box.snapshot(Path(folder) / "unreadable")
        except FailedPrecondition as error:
            said["unreadable"] = [error.reason, error.attributable]
        await box.destroy()
        make_image(Path(folder) / "image")
        template = Template(name="image", rootfs=str(Path(folder) / "image"))
        limits = Limits(disk_bytes=1 << 24, max_inodes=500)
        box = await backend.create(BoxSpec(sandbox_id="s2", template=template, limits=limits), print)
        await run("image", "sh", "-c", "cat /etc/issue; echo new >/etc/issue; rm -r /etc/deep; ls /etc")
        await run("image_disk", "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=100; rm /big")
        await run("image_gone", "sh", "-c", "rm -rf --no-preserve-root /")
        await run("image_after", "sh", "-c", "echo still here")
        await box.destroy()
        box = await backend.create(BoxSpec(sandbox_id="s3", template=template, limits=limits), print)
        await run("image_again", "sh", "-c", "cat /etc/issue /etc/deep/file")
        await box.destroy()
        greedy = await backend.create(BoxSpec(sandbox_id="s4", limits=Limits()), print)
        taking = asyncio.ensure_future(greedy.run(
            Command(exec_id="t", argv=("python3", "-c", ON_THEIR_WAY)), DEFAULT_ENV, None))
        while not any(entry.name == "full" for entry in await greedy.list_files("/work")):
            assert not taking.done(), taking.result()
            await asyncio.sleep(0.02)
        box = await backend.create(BoxSpec(sandbox_id="s5", limits=Limits()), print)
        await run("beside_greedy", "sh", "-c", "echo here")
        taking.cancel()
        await asyncio.wait([taking])
        await greedy.destroy()
        await box.destroy()
        said["live"] = backend.live_count()
        await backend.close()
        print(json.dumps(said))

asyncio.run(main())
'''


@pytest.fixture(scope="module")
def said():
    """What the backend did when an ordinary user ran it."""
    if os.geteuid() == 0:
        python, prefix = _python_for_nobody()
    else:
        python, prefix = sys.executable, []
    done = subprocess.run(
        [*prefix, python, "-c", SCRIPT],
        env={"PYTHONPATH": ":".join(_import_folders()), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if "refused" in result:
        assert result["refused"] == "ISOLATION_UNAVAILABLE", result["why"]
        pytest.skip(f"an ordinary user cannot make sandboxes here: {result['why']}")
    return result


def _import_folders() -> list[str]:
    import sandbox
    import servicekit

    packages = (next(iter(sandbox.__path__)), next(iter(servicekit.__path__)))
    return [str(Path(path).parent) for path in packages]


def _python_for_nobody() -> tuple[str, list[str]]:
    """Find an interpreter that another user may execute, and the way to become that user."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv to become an ordinary user")
    prefix = [setpriv, f"--reuid={NOBODY}", f"--regid={GROUP}", "--clear-groups"]
    check = (
        "import sys, os; assert sys.version_info >= (3, 11); "
        f"assert os.access(sys.executable, os.X_OK); os.stat({__file__!r})"
    )
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists():
            done = subprocess.run([*prefix, python, "-c", check], cwd="/", capture_output=True)
            if done.returncode == 0:
                return python, prefix
    pytest.skip("no Python 3.11 that uid 65534 may execute and that reaches this checkout")


def test_the_level_is_said_and_what_it_lacks(said):
    assert said["isolation"] in ("ns-rootless", "ns-rootless-rlimits")
    if said["isolation"] == "ns-rootless-rlimits":
        assert "only limits per process" in said["detail"]


def test_a_user_s_sandbox_holds(said):
    assert said["id"][2].split() == ["0", "CapEff:", "0000000000000000", "/root"]
    assert said["bomb"][0] == "timed_out"
    assert int(said["after"][2]) <= 5  # init, the shell and what it counts with; no zombies
    assert said["memory"][0] == "oom_killed" or "MemoryError" in said["memory"][2]
    assert "No space left" in said["disk"][2]
    text = said["doors"][2].lower()
    assert text.count("denied") + text.count("not permitted") >= 3
    assert said["file"] == "hello"
    assert said["live"] == 0


def test_a_user_s_snapshot_brings_the_disk_back(said):
    assert said["mess"][:2] == ["exited", 0]
    assert "-rws--x--x 2 root root" in said["saved"][2]
    assert said["restored"] == said["saved"]
    assert said["unreadable"] == ["UNREADABLE", "workload"]


def test_a_user_s_sandbox_stands_on_an_imported_root(said):
    assert said["image"] == ["exited", 0, "of the imageissue\n"]
    assert "No space left" in said["image_disk"][2]
    assert said["image_after"][0] == "sandbox_broken_by_workload"
    assert said["image_again"] == ["exited", 0, "of the imagex"]


def test_descriptors_on_their_way_in_one_sandbox_keep_no_other_from_working(said):
    assert said["beside_greedy"] == ["exited", 0, "here\n"]
