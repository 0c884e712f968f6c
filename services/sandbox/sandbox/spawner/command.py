"""The child that becomes a command in a sandbox: joins the namespaces, gives everything up, executes."""

import errno
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox.spawner import syscalls
from sandbox.spawner.init import give_up_privileges

STAGES = ("prepare", "join", "credentials", "working_dir", "execute")
"""Where a start can fail; the status pipe carries the position."""

FAILURE = struct.Struct("=BI")
"""What the status pipe carries on failure: position in STAGES, errno."""

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT)
_OOM_FIRST_VICTIM = b"1000"


@dataclass(frozen=True, slots=True)
class BoxDescriptors:
    """Descriptors of the sandbox's namespaces, held by the keeper."""

    mnt: int
    net: int
    ipc: int
    cgroup: int
    user: int


def run_command(
    request: Mapping[str, Any],
    stdio: Sequence[int],
    status: int,
    box: BoxDescriptors,
    spec: Mapping[str, Any],
    seccomp_filter: bytes,
) -> NoReturn:
    """Become the command; on failure write the stage and errno to `status` and exit 127."""
    stage = "prepare"
    try:
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        for name, soft, hard in spec["rlimits"]:
            resource.setrlimit(name, (soft, hard))
        _become_first_oom_victim()
        stage = "join"
        syscalls.setns(box.cgroup, syscalls.CLONE_NEWCGROUP)
        syscalls.setns(box.ipc, syscalls.CLONE_NEWIPC)
        syscalls.setns(box.net, syscalls.CLONE_NEWNET)
        syscalls.setns(box.mnt, syscalls.CLONE_NEWNS)
        syscalls.set_not_dumpable()
        syscalls.setns(box.user, syscalls.CLONE_NEWUSER)
        stage = "credentials"
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        give_up_privileges(bool(spec["rootless"]), seccomp_filter)
        stage = "working_dir"
        os.chdir(request["cwd"])
        stage = "execute"
        _execute(request["argv"], request["env"])
    except OSError as error:
        os.write(status, FAILURE.pack(STAGES.index(stage), error.errno or errno.EIO))
    finally:
        os._exit(127)


def _become_first_oom_victim() -> None:
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(descriptor, _OOM_FIRST_VICTIM)
    os.close(descriptor)


def _execute(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Search PATH as a shell would; os.execvpe is not used because it imports on the way."""
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, env)
    denied = False
    for directory in env.get("PATH", "").split(":"):
        try:
            os.execve(f"{directory or '.'}/{program}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number), program)
