"""The keeper of one sandbox: its first process. Builds the sandbox around itself, then starts commands in it.

The spawner forks it into a new pid namespace. It joins the control groups, makes the other namespaces, mounts the root
and pivots into it, enters a user namespace that owns none of those, and gives up all but one capability. What it
starts is born inside all of that: a command is one posix_spawn, which moves nothing between control groups and copies
no memory. Orphans come to it and are reaped.

Each command gets a UTS namespace of its own, which its descendants cannot leave: that is the mark by which the manager
finds all that a command started. Making it takes CAP_SYS_ADMIN in the sandbox's own user namespace, the one capability
that the keeper keeps; an execve leaves none of it (see `syscalls.keep_one_capability`), and the system-call filter lets
nothing else be done with it.

After the pivot the keeper's only files are the sandbox's own; nothing may be imported from there (see `main`), and the
keeper reads none. Signals from inside the sandbox do not reach it, being the first process. It ends when the manager's
side of its control socket closes or the spawner dies, and with it everything in the sandbox.
"""

import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from sandbox.spawner import namespaces, syscalls, wire
from sandbox.spawner.root import enter_root

CONTROL = 3
"""Descriptor of the socket to the manager."""

LINK = 4
"""Descriptor of the socket to the spawner, during set-up."""

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT)
_MAPPED_ROOT = "root file system under another owner"
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_NUM_STDIO = 3
_MAX_SEARCHED = 256
"""Folders of a PATH that are looked into."""
_OOM_FIRST_VICTIM = b"1000"
_OOM_LAST_VICTIM = b"0"


class StageError(Exception):
    """A step of the set-up failed; says which and why."""

    def __init__(self, stage: str, error: OSError) -> None:
        """Keeps what the manager is told."""
        super().__init__(f"{stage}: {error}")
        self.stage = stage
        self.number = error.errno or 0
        self.detail = str(error)


def run_keeper(
    spec: Mapping[str, Any], join: Sequence[str], seccomp_filter: bytes, id_map: int
) -> NoReturn:
    """Make the sandbox and serve it until the manager goes away. Its sockets are CONTROL and LINK.

    Args:
        spec: What to make; see `LocalBackend`.
        join: Files by which it joins its control groups, if it was not born in them.
        seccomp_filter: Of everything in the sandbox.
        id_map: See `enter_root`.
    """
    control = socket.socket(fileno=CONTROL)
    link = socket.socket(fileno=LINK)
    try:
        keeper = _Keeper(control)
        keeper.set_up(link, spec, join, seccomp_filter, id_map)
        link.close()
        keeper.serve()
    except StageError as error:
        failure = {"op": "error", "stage": error.stage, "errno": error.number}
        failure["maps_no_owners"] = error.stage == _MAPPED_ROOT and error.number in _UNSUPPORTED
        wire.send(control, {**failure, "detail": error.detail})
    finally:
        os._exit(0)


class _Keeper:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._keys: dict[int, int] = {}
        """Of commands under way, by process id."""
        self._marks: dict[int, int] = {}
        """Descriptors of commands' UTS namespaces: while one is open its number means no other."""
        self._proc = -1
        self._oom_score = -1
        self._wakeup = -1

    def set_up(
        self,
        link: socket.socket,
        spec: Mapping[str, Any],
        join: Sequence[str],
        seccomp_filter: bytes,
        id_map: int,
    ) -> None:
        """Become the first process of a finished sandbox; say so to the manager."""
        stage = "cgroup"
        try:
            namespaces.join_groups(join)
            os.setsid()
            stage = "namespaces"
            namespaces.make_namespaces(spec["hostname"])
            stage = _MAPPED_ROOT if id_map >= 0 else "root file system"
            writable = enter_root(spec, id_map)
            if id_map >= 0:
                os.close(id_map)
            stage = "loopback"
            namespaces.bring_loopback_up()
            stage = "user namespace"
            if not spec["rootless"]:
                # The kernel counts what a user may have (inotify, signals, queues, descriptors on their way) also with
                # whoever made the user namespace: that must not be the host's root.
                syscalls.become(int(spec["uid"]))
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            link.send(b"map")
            if not link.recv(1):
                os._exit(1)  # the spawner is gone
            stage = "descriptors"
            root = os.open("/", os.O_PATH | os.O_DIRECTORY)
            # Before the limits: an ordinary user's sandboxes could keep it from sending descriptors after them.
            wire.send(self._control, {"op": "root"}, [root, writable])
            os.close(root)
            os.close(writable)
            self._proc = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
            self._oom_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            _detach_stdio()
            self._watch_children()
            stage = "limits"
            for name, soft, hard in spec["rlimits"]:
                resource.setrlimit(name, (soft, hard))
            stage = "credentials"
            namespaces.give_up_privileges(bool(spec["rootless"]), seccomp_filter)
            stage = "parent death signal"
            # Armed last: a change of credentials clears it. A spawner that died before shows at the send.
            syscalls.set_parent_death_signal(signal.SIGKILL)
            link.send(b"armed")
            wire.send(self._control, {"op": "ready"})
        except OSError as error:
            raise StageError(stage, error) from error

    def serve(self) -> None:
        """Start commands and report their ends until the manager goes away."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            self._reap()  # before a start too: what has ended no longer counts as a process
            if CONTROL in ready:
                received = wire.receive(self._control)
                if received is None:
                    return
                self._start(*received)

    def _watch_children(self) -> None:
        self._wakeup, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _start(self, request: dict[str, Any], stdio: list[int]) -> None:
        for key in request["forget"]:
            os.close(self._marks.pop(key))
        stage = "fork"
        mark = -1
        try:
            if len(stdio) != _NUM_STDIO:  # the kernel drops those that would be too many
                raise OSError(errno.EAGAIN, "too many commands at once")
            stage = "mark"
            syscalls.unshare(syscalls.CLONE_NEWUTS)
            mark = os.open("ns/uts", os.O_RDONLY, dir_fd=self._proc)
            stage = "working_dir"
            os.chdir(request["cwd"])
            stage = "execute"
            pid = self._spawn(request["argv"], request["env"], stdio)
        except (OSError, ValueError) as error:
            number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
            # The one call of the last stage both forks and executes; EAGAIN and ENOMEM come from the fork.
            if stage == "execute" and number in (errno.EAGAIN, errno.ENOMEM):
                stage = "fork"
            elif stage == "mark" and number == errno.EMFILE:
                stage, number = "fork", errno.EAGAIN  # too many commands at once
            failure = {"op": "refused", "stage": stage, "errno": number}
            wire.send(self._control, {**failure, "key": request["key"]})
        else:
            self._keys[pid] = request["key"]
            # The descriptor stays here until the manager has no more use for it: sending one fails when the commands
            # have too many of their own on their way.
            self._marks[request["key"]], number, mark = mark, os.fstat(mark).st_ino, -1
            wire.send(self._control, {"op": "started", "key": request["key"], "mark": number})
        finally:
            os.chdir("/")
            for descriptor in (*stdio, mark):
                if descriptor >= 0:
                    os.close(descriptor)

    def _spawn(self, argv: list[str], env: Mapping[str, str], stdio: list[int]) -> int:
        """Start a program, searched for as a shell would; a child is the first that a lack of memory ends."""
        actions = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(stdio)]
        os.pwrite(self._oom_score, _OOM_FIRST_VICTIM, 0)
        try:
            denied = False
            for program in _candidates(argv[0], env.get("PATH", "")):
                try:
                    return os.posix_spawn(
                        program,
                        argv,
                        env,
                        file_actions=actions,
                        setsid=True,
                        setsigdef=_RESET_SIGNALS,
                    )
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except PermissionError:
                    denied = True
            number = errno.EACCES if denied else errno.ENOENT
            raise OSError(number, os.strerror(number), argv[0])
        finally:
            os.pwrite(self._oom_score, _OOM_LAST_VICTIM, 0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self._keys.pop(pid, None)
            if key is not None:
                ended = {"op": "ended", "status": os.waitstatus_to_exitcode(status)}
                wire.send(self._control, {**ended, "key": key})


def _candidates(program: str, search: str) -> list[str]:
    if "/" in program:
        return [program]
    # Bounded: what is tried takes time that the sandbox's other commands wait for.
    folders = search.split(":", _MAX_SEARCHED)[:_MAX_SEARCHED]
    places = (f"{folder or '.'}/{program}" for folder in dict.fromkeys(folders))
    return [place for place in places if os.access(place, os.F_OK)]


def _detach_stdio() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
