"""The first process of a sandbox: builds its root file system, gives everything up, then only waits.

It runs in a new pid namespace as a child of the keeper. It makes the other namespaces, mounts the root, pivots into
it, enters a user namespace that owns none of those, drops all capabilities and sleeps. From then on it exists to hold
the pid namespace and to let orphans be reaped (SIGCHLD is ignored, so the kernel does it).

After the pivot the only files in reach are the sandbox's own; nothing may be imported from there (see `main`).
"""

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

from sandbox.spawner import syscalls, wire

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_NAMESPACES = ("mnt", "net", "ipc", "cgroup", "user")
"""Order of the namespace descriptors that the keeper receives."""


class StageError(Exception):
    """A step of the set-up failed; says which and why."""

    def __init__(self, stage: str, error: OSError) -> None:
        """Keeps what the manager is told."""
        super().__init__(f"{stage}: {error}")
        self.stage = stage
        self.number = error.errno or 0
        self.detail = str(error)


def run_init(link: socket.socket, spec: Mapping[str, Any], seccomp_filter: bytes) -> NoReturn:
    """Set the sandbox up, report to the keeper over `link`, and wait to be killed."""
    try:
        _set_up(link, spec, seccomp_filter)
    except StageError as error:
        failure = {"step": "failed", "stage": error.stage, "errno": error.number}
        wire.send(link, {**failure, "detail": error.detail})
        os._exit(1)
    link.close()
    while True:
        signal.pause()


def _set_up(link: socket.socket, spec: Mapping[str, Any], seccomp_filter: bytes) -> None:
    stage = "session"
    try:
        os.setsid()
        stage = "namespaces"
        syscalls.unshare(
            syscalls.CLONE_NEWNS
            | syscalls.CLONE_NEWNET
            | syscalls.CLONE_NEWIPC
            | syscalls.CLONE_NEWCGROUP
        )
        stage = "mount private"
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        stage = "root file system"
        _build_root(spec)
        stage = "pivot root"
        syscalls.pivot_root_here()
        stage = "loopback"
        _bring_loopback_up()
        stage = "user namespace"
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        wire.send(link, {"step": "map"})
        if wire.receive(link) is None:
            os._exit(1)  # the keeper is gone
        held = [os.open("/", os.O_PATH | os.O_DIRECTORY)]
        held += [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
        stage = "stdio"
        _detach_stdio()
        stage = "credentials"
        give_up_privileges(bool(spec["rootless"]), seccomp_filter)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        stage = "parent death signal"
        # Armed last: a change of credentials clears it. A keeper that died before shows at the next send.
        syscalls.set_parent_death_signal(signal.SIGKILL)
        wire.send(link, {"step": "ready"}, held)
        for descriptor in held:
            os.close(descriptor)
    except OSError as error:
        raise StageError(stage, error) from error


def give_up_privileges(rootless: bool, seccomp_filter: bytes) -> None:
    """Become the sandbox's root without any power: no groups, capabilities or way to gain privileges."""
    if not rootless:  # an ordinary user may not change its groups
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.set_not_dumpable()
    syscalls.drop_all_capabilities()
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp(seccomp_filter)


def _build_root(spec: Mapping[str, Any]) -> None:
    uid = int(spec["uid"])
    owner = f"uid={uid},gid={uid}"
    limits = f"size={spec['disk_bytes']},nr_inodes={spec['max_inodes']}"
    root_flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", spec["root_dir"], "tmpfs", root_flags, f"mode=755,{owner},{limits}")
    os.chdir(spec["root_dir"])
    syscalls.set_fs_ids(uid, uid)
    os.umask(0)
    for path, mode in spec["directories"]:
        os.mkdir(path, mode)
    for path, mode, text in spec["files"]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    for path, target in spec["symlinks"]:
        os.symlink(target, path)
    for _, path, is_directory in spec["binds"]:
        if is_directory:
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    os.umask(0o022)
    syscalls.set_fs_ids(0, 0)
    for source, path, _ in spec["binds"]:
        syscalls.bind_read_only(source, path)
    _build_dev(owner, int(spec["shm_bytes"]))
    proc_flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "proc", "proc", proc_flags)


def _build_dev(owner: str, shm_bytes: int) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", "dev", "tmpfs", flags, "mode=755,size=65536,nr_inodes=64")
    for name in _DEVICES:
        os.close(os.open(f"dev/{name}", os.O_WRONLY | os.O_CREAT, 0o666))
        syscalls.mount(f"/dev/{name}", f"dev/{name}", None, syscalls.MS_BIND)
    for directory in ("dev/pts", "dev/shm"):
        os.mkdir(directory)
    syscalls.mount("devpts", "dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620")
    shm = f"mode=1777,size={shm_bytes},nr_inodes=4096,{owner}"
    syscalls.mount("tmpfs", "dev/shm", "tmpfs", flags | syscalls.MS_NODEV, shm)
    os.symlink("pts/ptmx", "dev/ptmx")
    os.symlink("/proc/self/fd", "dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"dev/{name}")


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
        flags = struct.unpack("16sH14x", answer)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _detach_stdio() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
