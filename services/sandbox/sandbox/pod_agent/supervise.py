"""The child that stands between the agent and one command, and the command's start.

The supervisor is a subreaper: whatever the command starts, however often it forks and changes session, stays among the
supervisor's descendants, so that killing by descent misses nothing. It does nothing else; output goes past it, straight
to the agent. It ends when its last descendant has ended.
"""

import contextlib
import errno
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sandbox.spawner import syscalls

NOTE = struct.Struct("=Bii")
"""What goes through the note pipe: kind, and two numbers."""

STARTED, FAILED, ENDED = 1, 2, 3
"""The command's process id; the stage and errno of a failed start; the wait status."""

STAGE_FORK, STAGE_PREPARE, STAGE_CREDENTIALS, STAGE_WORKING_DIR, STAGE_EXECUTE = range(5)

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT)
_TITLE = "hone-sandbox exec"
_MAX_DESCRIPTORS = min(65536, os.sysconf("SC_OPEN_MAX"))
"""Where there is no call to close a range (gVisor), each costs."""


@dataclass(frozen=True)
class Identity:
    """As whom commands and file operations run."""

    uid: int
    gid: int
    switch: bool
    """Whether the agent runs as somebody else and has to become this."""
    max_processes: int = 0
    """Of this uid; 0 means that the pod's own limit is the only one."""
    is_mark: bool = False
    """Whether the group is one command's alone and so tells what it started, as where there are no subreapers."""


@dataclass(frozen=True)
class Start:
    """A command to start."""

    argv: list[str]
    env: Mapping[str, str]
    working_dir: str


def become(identity: Identity) -> None:
    """Give up what the agent may do beyond its commands; the last step before foreign code runs."""
    if identity.switch:
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    syscalls.set_no_new_privileges()


def supervise(start: Start, identity: Identity, stdio: Sequence[int], notes: int) -> NoReturn:
    """Become the supervisor of one command: start it, note its end, reap until nothing is left."""
    try:
        signal.set_wakeup_fd(-1)
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not identity.is_mark:
            syscalls.set_child_subreaper()
        syscalls.set_parent_death_signal(signal.SIGKILL)
        _close_all_but({*stdio, notes})
        try:
            pid = os.fork()
        except OSError as error:
            os.write(notes, NOTE.pack(FAILED, STAGE_FORK, error.errno or errno.EAGAIN))
            os.write(notes, NOTE.pack(ENDED, 126 << 8, 0))
        else:
            if not pid:
                _run(start, identity, stdio, notes)
            os.write(notes, NOTE.pack(STARTED, pid, 0))
            syscalls.set_process_title(_TITLE)
            _close_all_but({notes})
            _reap(pid, notes)
    finally:
        os._exit(0)


def _reap(command: int, notes: int) -> None:
    """Reap until nothing is left.

    The command is looked at, noted, and only then reaped: if this process is killed at any point, its status is in the
    note or still to be had by the agent, which then inherits the command.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert ended is not None
        if ended.si_pid == command:
            is_exit = ended.si_code == os.CLD_EXITED
            status = ended.si_status << 8 if is_exit else ended.si_status
            os.write(notes, NOTE.pack(ENDED, status, 0))
        os.waitpid(ended.si_pid, 0)


def _run(start: Start, identity: Identity, stdio: Sequence[int], notes: int) -> NoReturn:
    stage = STAGE_PREPARE
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        os.umask(0o022)
        _become_first_oom_victim()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if identity.max_processes:
            limit = (identity.max_processes, identity.max_processes)
            resource.setrlimit(resource.RLIMIT_NPROC, limit)
        stage = STAGE_CREDENTIALS
        become(identity)
        stage = STAGE_WORKING_DIR
        os.chdir(start.working_dir)
        stage = STAGE_EXECUTE
        _execute(start.argv, start.env)
    except OSError as error:
        os.write(notes, NOTE.pack(FAILED, stage, error.errno or errno.EIO))
    finally:
        os._exit(127)


def _execute(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Search PATH as a shell would."""
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, env)
    denied = False
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder or '.'}/{program}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number), program)


def _become_first_oom_victim() -> None:
    # Refused to an agent that is not root and not dumpable; the kernel then goes by size and finds the command too.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _close_all_but(keep: set[int]) -> None:
    """Close every descriptor but these; standard input and output lead nowhere."""
    highest = max(keep)
    for descriptor in set(range(3, highest)) - keep:
        with contextlib.suppress(OSError):  # was not open
            os.close(descriptor)
    os.closerange(highest + 1, _MAX_DESCRIPTORS)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
