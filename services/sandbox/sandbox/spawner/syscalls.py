"""Linux system calls that Python 3.11 has no function for, by ctypes.

Every function raises OSError with the system's errno. Standard library only: the spawner runs without site-packages.
"""

import ctypes
import errno
import os
import platform
import signal
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_CLONE_INTO_CGROUP = 0x200000000
_OPENAT2_TRIES = 100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_NOEXEC = 0x8
_MOUNT_ATTR_IDMAP = 0x100000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECBIT_NO_SETUID_FIXUP = 0x4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
CAP_SYS_ADMIN = 21
_LAST_CAPABILITY = 63
LINKS_OF_ONE_THREAD = 3
"""Of /proc/self/task: itself, its parent, and one folder per thread."""

# From 424 on, all architectures share one table.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_CLONE3 = 435
_NR_CLOSE_RANGE = 436
_NR_OPENAT2 = 437
_NR_MOUNT_SETATTR = 442
_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))
_libc.mount.argtypes = (*3 * (ctypes.c_char_p,), ctypes.c_ulong, ctypes.c_char_p)
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
_libc_with_gil.syscall.restype = ctypes.c_long
for _function in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent"):
    getattr(ctypes.pythonapi, _function).restype = None


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, argument: int = 0, other: int = 0) -> int:
    return int(_libc.prctl(option, argument, other, 0, 0))


def unshare(flags: int) -> None:
    """Move this process (for NEWPID: its next children) into new namespaces."""
    _check(_libc.unshare(flags), f"unshare(0x{flags:x})")


def fork_into(namespaces: int, group: int = -1) -> int:
    """Fork as os.fork does, with the child born in new namespaces and in a version 2 control group.

    Only for a process with one thread: then no lock can be held by a thread that the child lacks, and the interpreter
    is prepared and renewed around the call by the same functions that os.fork uses. The GIL is kept during the call.

    Args:
        namespaces: CLONE_NEW* flags.
        group: Descriptor of the group's folder; this process's own group if negative.
    """
    assert os.stat("/proc/self/task").st_nlink == LINKS_OF_ONE_THREAD
    ctypes.pythonapi.PyOS_BeforeFork()
    if group < 0:
        # The arguments after the flags are all zero, so their order, which differs between machines, does not matter.
        number, flags = _NR_CLONE[platform.machine()], namespaces | signal.SIGCHLD
        pid = int(_libc_with_gil.syscall(ctypes.c_long(number), ctypes.c_long(flags), 0, 0, 0, 0))
    else:
        flags = namespaces | _CLONE_INTO_CGROUP
        how = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
        size = ctypes.c_size_t(len(how))
        pid = int(_libc_with_gil.syscall(ctypes.c_long(_NR_CLONE3), how, size))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    ctypes.set_errno(error)
    return _check(pid, "clone")


def close_from(first: int) -> None:
    """Close every descriptor from this number on."""
    result = _libc.syscall(
        ctypes.c_long(_NR_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0
    )
    _check(int(result), "close_range")


def setns(descriptor: int, kind: int) -> None:
    """Join the namespace that a descriptor of /proc/PID/ns stands for."""
    _check(_libc.setns(descriptor, kind), f"setns(0x{kind:x})")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or change a mount."""
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            flags,
            options.encode() or None,
        ),
        f"mount({kind or source} on {target})",
    )


def unmount(target: str, flags: int) -> None:
    """Take a mount away."""
    _check(_libc.umount2(target.encode(), flags), f"umount2({target})")


def bind_read_only(
    source: str, target: str, *, devices: bool = False, user_namespace: int = -1
) -> None:
    """Bind a file or a tree to another place: read-only, without set-uid, submounts alike.

    Without devices too, unless they are what is wanted; then nothing in it can be executed. With a user namespace,
    owners show as it maps them.
    """
    tree = _check(
        _libc.syscall(
            ctypes.c_long(_NR_OPEN_TREE),
            _AT_FDCWD,
            source.encode(),
            _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE,
        ),
        f"open_tree({source})",
    )
    try:
        other = _MOUNT_ATTR_NOEXEC if devices else _MOUNT_ATTR_NODEV
        flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | other
        if user_namespace >= 0:
            flags |= _MOUNT_ATTR_IDMAP
        attributes = struct.pack("QQQQ", flags, 0, 0, max(user_namespace, 0))
        _check(
            _libc.syscall(
                ctypes.c_long(_NR_MOUNT_SETATTR),
                tree,
                b"",
                _AT_EMPTY_PATH | _AT_RECURSIVE,
                attributes,
                ctypes.c_size_t(len(attributes)),
            ),
            f"mount_setattr({source})",
        )
        _check(
            _libc.syscall(
                ctypes.c_long(_NR_MOVE_MOUNT),
                tree,
                b"",
                _AT_FDCWD,
                target.encode(),
                _MOVE_MOUNT_F_EMPTY_PATH,
            ),
            f"move_mount({source} to {target})",
        )
    finally:
        os.close(tree)


def pivot_root_here() -> None:
    """Make the working directory the root and detach the old root."""
    number = _NR_PIVOT_ROOT[platform.machine()]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".", MNT_DETACH)
    os.chdir("/")


def openat2(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """Open a path below a directory under the given resolution rules.

    Where a link has `..` in it, the kernel gives up (EAGAIN) if anything anywhere was renamed or mounted meanwhile;
    that is tried again, but not for ever: somebody may be at it on purpose.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    arguments = (directory, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    for _ in range(_OPENAT2_TRIES):
        result = int(_libc.syscall(ctypes.c_long(_NR_OPENAT2), *arguments))
        if result >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return _check(result, path)


def set_fs_ids(uid: int, gid: int) -> None:
    """Make files from here on belong to these ids."""
    # These calls report no errors; asking with -1 tells what holds.
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != gid:
        raise PermissionError(1, f"setfsuid({uid}): Operation not permitted")


def set_parent_death_signal(signal_number: int) -> None:
    """Have this process signalled when its parent ends; a change of credentials clears it."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number), "prctl(PR_SET_PDEATHSIG)")


def set_child_subreaper() -> None:
    """Become the parent of orphaned descendants."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_dumpable(dumpable: bool) -> None:
    """Let processes of the same uid into this one's memory and /proc entries, or keep them out."""
    _check(_prctl(_PR_SET_DUMPABLE, int(dumpable)), "prctl(PR_SET_DUMPABLE)")


def become(uid: int) -> None:
    """Become another user, and of its group, with all capabilities kept until the next user namespace."""
    _check(_prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP), "prctl(PR_SET_SECUREBITS)")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    set_dumpable(True)  # what /proc says of this process is its own again


def keep_one_capability(capability: int) -> None:
    """Empty the bounding, ambient and inheritable sets; keep one capability permitted and effective.

    An execve then leaves none: what it grants comes from those empty sets.
    """
    for number in range(_LAST_CAPABILITY + 1):
        if _prctl(_PR_CAPBSET_DROP, number) < 0:
            break  # past the last one that this kernel knows
    _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL), "prctl(PR_CAP_AMBIENT)")
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    kept = 1 << capability
    sets = struct.pack("6I", kept, kept, 0, 0, 0, 0)
    _check(_libc.capset(header, sets), "capset")


def set_no_new_privileges() -> None:
    """Let no later execve gain privileges."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl(PR_SET_NO_NEW_PRIVS)")


def install_seccomp(program: bytes) -> None:
    """Install a seccomp filter, given as packed BPF instructions."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = _SockFprog(len(program) // 8, ctypes.addressof(buffer))
    place = ctypes.addressof(fprog)
    _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, place), "prctl(PR_SET_SECCOMP)")


def set_process_title(title: str) -> None:
    """Replace this process's command line, which workloads can read, by a title; forks inherit it."""
    with open("/proc/self/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (
        int(fields[45]),
        int(fields[46]),
    )  # arg_start and arg_end, fields 48 and 49 of proc(5)
    if start and end > start:
        length = end - start
        text = title.encode()[: length - 1]
        ctypes.memmove(start, text + bytes(length - len(text)), length)
