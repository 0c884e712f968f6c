"""A Docker daemon of the tests' own: no network, no bridge, every file in one temporary folder; and an image for it.

It needs root and Debian's docker.io (dockerd, containerd, runc). One daemon serves the whole test process.
"""

import atexit
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

IMAGE = "hone-test:1"
_STAT = """#!/usr/bin/python3
import os, sys
option, form, *paths = sys.argv[1:]
assert option == "-c"
for path in paths:
    found = os.lstat(path)
    for word, value in {"%a": f"{found.st_mode & 0o7777:o}", "%s": found.st_size, "%u": found.st_uid}.items():
        form = form.replace(word, str(value))
    print(form)
"""
"""In place of the usual one, which asks by a call that old versions of gVisor do not have."""

_NEEDED = ("dockerd", "containerd", "runc", "docker-init")
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_PROGRAMS = re.findall(
    r"\w+",
    """
    cat chmod cp dd echo env grep head id kill ln ls mkdir mkfifo mv nohup ps rm rmdir seq setsid sh sleep sort
    sync tail tar tee test touch tr true wc yes
    """,
)
_SKIPPED = re.compile(
    r"(^|/)(test|tests|idlelib|tkinter|ensurepip|lib2to3|site-packages|dist-packages|__pycache__|config-[^/]*)(/|$)"
)


@dataclass(slots=True)
class Daemon:
    """A running daemon."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/sock"

    def interrupt(self) -> None:
        """Kill it; its containers' processes go with the next start."""
        self.process.kill()
        self.process.wait()

    def resume(self) -> None:
        """Start it again over the same folder."""
        for left in ("pid", "run/containerd/containerd.pid", "run/containerd/containerd.sock"):
            (self.folder / left).unlink(missing_ok=True)
        self.process = _run(self.folder)
        _wait_until_it_answers(self)

    def client(self) -> docker.APIClient:
        return docker.APIClient(base_url=self.host, version="auto", timeout=30)


_daemons: list[Daemon] = []


def why_not() -> str:
    """Return why no daemon can be started here; nothing if one can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: docker.io)"
    return "" if os.geteuid() == 0 else "a Docker daemon of the tests' own needs root"


def daemon() -> Daemon:
    """Return the daemon of this test process, started at the first call; skip where none can run."""
    if not _daemons:
        reason = why_not()
        if reason:
            pytest.skip(reason)
        _daemons.append(start())
        atexit.register(stop, _daemons[0])
    return _daemons[0]


def start() -> Daemon:
    """Start a daemon over an empty folder and give it the image."""
    folder = Path(tempfile.mkdtemp(prefix="hone-dockerd-", dir="/tmp"))
    (folder / "daemon.json").write_text(json.dumps({"runtimes": _gvisor()}))
    made = Daemon(folder, _run(folder))
    try:
        _wait_until_it_answers(made)
        image = folder / "image.tar"
        write_image(image)
        with contextlib.closing(made.client()) as client:
            repository, _, tag = IMAGE.partition(":")
            client.import_image_from_file(str(image), repository=repository, tag=tag)
    except BaseException:
        log_end = (folder / "log").read_text(errors="replace")[-600:]
        stop(made)
        pytest.skip(f"dockerd does not run here: {log_end}")
    return made


def stop(made: Daemon) -> None:
    """Stop a daemon and remove all of it."""
    made.process.terminate()
    try:
        made.process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()
    _kill_what_is_left(made.folder)
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        place = line.split()[4]
        if place.startswith(f"{made.folder}/"):
            subprocess.run(["umount", "-l", place], check=False)
    for group in Path("/sys/fs/cgroup").glob(f"*/{made.folder.name}"):
        for top, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(top)
    with contextlib.suppress(OSError):
        os.rmdir(f"/sys/fs/cgroup/{made.folder.name}")
    shutil.rmtree(made.folder, ignore_errors=True)


def _gvisor() -> dict[str, object]:
    program = shutil.which("runsc")
    arguments = ["--network=none", "--platform=ptrace"]
    return {"runsc": {"path": program, "runtimeArgs": arguments}} if program else {}


def _kill_what_is_left(folder: Path) -> None:
    """Kill the shims of a daemon that was killed, and what is in its control groups, until there is nothing."""
    end = time.monotonic() + _STOP_SECONDS
    while pids := _shims(folder) | _members(folder):
        if time.monotonic() > end:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # nothing tells when a control group is empty


def _shims(folder: Path) -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if str(folder).encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.add(int(name))
    return found


def _members(folder: Path) -> set[int]:
    found: set[int] = set()
    for group in Path("/sys/fs/cgroup").glob(f"*/{folder.name}"):
        for top, _, _ in os.walk(group):
            with contextlib.suppress(OSError):
                found |= set(map(int, Path(top, "cgroup.procs").read_text().split()))
    return found


def _run(folder: Path) -> "subprocess.Popen[bytes]":
    arguments = [
        "dockerd",
        f"--config-file={folder}/daemon.json",
        f"--data-root={folder}/root",
        f"--exec-root={folder}/run",
        f"--pidfile={folder}/pid",
        f"--host=unix://{folder}/sock",
        f"--cgroup-parent=/{folder.name}",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--exec-opt=native.cgroupdriver=cgroupfs",
    ]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)


def _wait_until_it_answers(made: Daemon) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            with contextlib.closing(made.client()) as client:
                client.ping()
                return
        except (docker.errors.DockerException, OSError):
            if made.process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)  # nothing tells when the socket is there


def write_image(target: Path) -> None:
    """Write a root file system of this machine's own shell, tools and Python."""
    with tarfile.open(target, "w") as tar:
        for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc", "opt/python/bin", "work", "root"):
            _add_folder(tar, folder, 0o755)
        for name in ("tmp", "run", "proc", "sys", "dev", "home", "mnt", "var"):
            _add_folder(tar, name, 0o1777 if name == "tmp" else 0o755)
        for name, link in (
            ("bin", "usr/bin"),
            ("sbin", "usr/bin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ):
            _add_link(tar, name, link)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        _add_text(tar, "usr/bin/stat", _STAT, 0o755)
        _add_text(tar, "etc/group", "root:x:0:\n")
        python = Path(sys.executable).resolve()
        libraries = set()
        for name in _PROGRAMS:
            program = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
            if program is not None:
                real = Path(program).resolve()
                tar.add(real, f"usr/bin/{name}")
                libraries |= _libraries(real)
        tar.add(python, "opt/python/bin/python3")
        _add_link(tar, "usr/bin/python3", "/opt/python/bin/python3")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        standard = Path(sysconfig.get_path("stdlib"))
        tar.add(standard, f"opt/python/lib/{version}", filter=_wanted)
        for extension in (standard / "lib-dynload").glob("*.so"):
            libraries |= _libraries(extension)
        for library in sorted(libraries | _libraries(python)):
            usual = library.startswith(("/lib", "/usr/lib"))
            place = library.removeprefix("/usr") if usual else f"/lib/{Path(library).name}"
            tar.add(Path(library).resolve(), f"usr{place}")


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _SKIPPED.search(entry.name.partition("/python3")[2]) else entry


def _libraries(program: Path) -> set[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word for word in listed.split() if word.startswith("/")}


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _add_text(tar: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), mode
    tar.addfile(entry, io.BytesIO(text.encode()))
