"""The system-call filter of everything that runs in a sandbox, as classic BPF.

A deny list: programs of all kinds must run, so only calls that widen the kernel's attack surface or look past the
sandbox are refused (EPERM). clone3 answers ENOSYS, so that libc falls back to clone, whose flags can be looked at. It
holds for the keeper too, which starts the commands.

The keeper belongs to the same user as they do, so that the kernel would let them set its limits and its priority: no
command may name process 1, nor all processes of the user, where those are set.
"""

import errno
import platform
import struct

_LD_ABS = 0x20
_JEQ = 0x15
_JGE = 0x35
_JSET = 0x45
_RET = 0x06
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
_RET_KILL_PROCESS = 0x80000000
_OFFSET_NR = 0
_OFFSET_ARCH = 4
_OFFSET_ARGS = 16
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""
_CLONE_NEWUTS = 0x04000000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_ALLOWED_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (libc lists interfaces by it)."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IOCTL = {"x86_64": 16, "aarch64": 29}

_KEEPER = 1
"""Process id, and process group, of the keeper as everything in the sandbox numbers it."""

# name: numbers, argument that names the process, value of the first argument that means all of a user's, or None
_SETS_A_PROCESS: dict[str, tuple[tuple[int, int], int, int | None]] = {
    "ioprio_set": ((251, 30), 1, 3),
    "prlimit64": ((302, 261), 0, None),
    "sched_setaffinity": ((203, 122), 0, None),
    "sched_setattr": ((314, 274), 0, None),
    "sched_setparam": ((142, 118), 0, None),
    "sched_setscheduler": ((144, 119), 0, None),
    "setpriority": ((141, 140), 1, 2),
}


def build_filter(machine: str | None = None) -> bytes:
    """Return the filter for an architecture (default: this one) as packed instructions."""
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise OSError(
            errno.ENOSYS,
            f"seccomp: machine {machine} is not supported; supported: {', '.join(_AUDIT_ARCH)}",
        )
    column = 0 if machine == "x86_64" else 1
    program = [
        _op(_LD_ABS, _OFFSET_ARCH),
        _op(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _op(_RET, _RET_KILL_PROCESS),
        _op(_LD_ABS, _OFFSET_NR),
    ]
    if machine == "x86_64":
        program += _refuse_if(_JGE, _X32_BIT, errno.ENOSYS)
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            program += _refuse_if(_JEQ, number, errno.EPERM)
    program += _refuse_if(_JEQ, _CLONE3, errno.ENOSYS)
    program += _when_call(
        _CLONE[machine], [_load_argument(0), *_refuse_if(_JSET, _NAMESPACE_FLAGS, errno.EPERM)]
    )
    # The keeper marks each command by a UTS namespace; commands lack the capability that this needs.
    program += _when_call(
        _UNSHARE[machine], [_load_argument(0), *_refuse_unless(_CLONE_NEWUTS, errno.EPERM)]
    )
    program += _when_call(_SOCKET[machine], _only_families())
    program += _when_call(
        _IOCTL[machine],
        [
            _load_argument(1),
            *_refuse_if(_JEQ, _TIOCSTI, errno.EPERM),
            *_refuse_if(_JEQ, _TIOCLINUX, errno.EPERM),
        ],
    )
    for numbers, subject, whole_user in _SETS_A_PROCESS.values():
        checks = [_load_argument(subject), *_refuse_if(_JEQ, _KEEPER, errno.EPERM)]
        if whole_user is not None:
            checks += [_load_argument(0), *_refuse_if(_JEQ, whole_user, errno.EPERM)]
        program += _when_call(numbers[column], checks)
    program.append(_op(_RET, _RET_ALLOW))
    return b"".join(program)


def _op(code: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, value)


def _load_argument(index: int) -> bytes:
    return _op(_LD_ABS, _OFFSET_ARGS + 8 * index)  # low half: both architectures are little-endian


def _refuse_if(jump: int, value: int, number: int) -> list[bytes]:
    return [_op(jump, value, 0, 1), _op(_RET, _RET_ERRNO | number)]


def _refuse_unless(value: int, number: int) -> list[bytes]:
    return [_op(_JEQ, value, 1, 0), _op(_RET, _RET_ERRNO | number)]


def _when_call(number: int, checks: list[bytes]) -> list[bytes]:
    body = [*checks, _op(_RET, _RET_ALLOW)]
    return [_op(_JEQ, number, 0, len(body)), *body]


def _only_families() -> list[bytes]:
    checks = [_load_argument(0)]
    for position, family in enumerate(_ALLOWED_FAMILIES):
        remaining = len(_ALLOWED_FAMILIES) - position
        checks.append(_op(_JEQ, family, remaining, 0))
    return [*checks, _op(_RET, _RET_ERRNO | errno.EAFNOSUPPORT)]
