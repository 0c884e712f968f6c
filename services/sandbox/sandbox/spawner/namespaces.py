"""The steps that shut a process in: namespaces, control groups, and giving up all power."""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from sandbox.spawner import syscalls

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def join_groups(files: Sequence[str]) -> None:
    """Move this process into control groups, by the files that they are joined by.

    A version 1 `tasks` file moves the thread that writes; the process has one.
    """
    assert not files or os.stat("/proc/self/task").st_nlink == syscalls.LINKS_OF_ONE_THREAD
    for path in files:
        write(path, "0")


def make_namespaces(host_name: str) -> None:
    """Leave the host's mounts, network, message queues, control group tree and name."""
    syscalls.unshare(
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWCGROUP
        | syscalls.CLONE_NEWUTS
    )
    socket.sethostname(host_name)


def bring_loopback_up() -> None:
    """Switch on the one network interface that there is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)
        flags = struct.unpack("16sH14x", answer)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def enter_own_user_namespace() -> None:
    """Become root of a new user namespace in which this user is the only one; for an ordinary user."""
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/gid_map", f"0 {gid} 1")
    write("/proc/self/uid_map", f"0 {uid} 1")


def write_maps(pid: int, uid: int) -> None:
    """Make a user of this namespace the root of a process's own user namespace."""
    write(f"/proc/{pid}/gid_map", f"0 {uid} 1")
    write(f"/proc/{pid}/uid_map", f"0 {uid} 1")


def id_map(inside: int, outside: int) -> int:
    """Return a descriptor of a user namespace that maps one user and its group to another; for mounts."""
    reader, writer = os.pipe()
    pid = syscalls.fork_into(syscalls.CLONE_NEWUSER)
    if pid == 0:  # it only has to be there until the namespace is held by the descriptor
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        for name in ("gid_map", "uid_map"):
            write(f"/proc/{pid}/{name}", f"{inside} {outside} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)


def give_up_privileges(rootless: bool, seccomp_filter: bytes) -> None:
    """Become the sandbox's root with one capability, which ends at the next execve, and no way to gain another."""
    if not rootless:  # an ordinary user may not change its groups
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.set_dumpable(False)
    syscalls.keep_one_capability(syscalls.CAP_SYS_ADMIN)
    syscalls.set_no_new_privileges()
    syscalls.install_seccomp(seccomp_filter)


def write(path: str, text: str) -> None:
    """Write a kernel file in one call."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
