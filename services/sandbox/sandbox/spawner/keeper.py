"""The keeper of one sandbox: makes its init, then starts commands in it and reports how they end.

One keeper per sandbox, forked by the spawner, inside the sandbox's cgroups but outside its namespaces. A command is
one fork of the keeper: it is born in the sandbox's cgroups and pid namespace, so starting it moves no process between
cgroups (the costly part of a start). Each command gets a UTS namespace of its own, which its descendants cannot leave:
that is the mark by which the manager finds all that a command started.

The keeper never enters the sandbox's root, reads nothing that the workload wrote, and ends when the manager's side of
its control socket closes. Its init ends with it (parent death signal), and with init the whole sandbox.
"""

import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any, NoReturn

from sandbox.spawner import syscalls, wire
from sandbox.spawner.command import FAILURE, STAGES, BoxDescriptors, run_command
from sandbox.spawner.init import StageError, run_init


class _Child:
    """A command under way."""

    def __init__(self, key: int, pid: int, pidfd: int, status: int) -> None:
        self.key = key
        self.pid = pid
        self.pidfd = pidfd
        self.status = status


def run_keeper(
    control: socket.socket, spec: Mapping[str, Any], seccomp_filter: bytes, spawner_pid: int
) -> NoReturn:
    """Make the sandbox and serve it until the manager goes away or its init dies."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        syscalls.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != spawner_pid:
            os._exit(1)
        _Keeper(control, spec, seccomp_filter).run()
    except StageError as error:
        wire.send(
            control,
            {"op": "error", "stage": error.stage, "errno": error.number, "detail": error.detail},
        )
    finally:
        os._exit(0)


class _Keeper:
    def __init__(
        self, control: socket.socket, spec: Mapping[str, Any], seccomp_filter: bytes
    ) -> None:
        self._control = control
        self._spec = spec
        self._seccomp_filter = seccomp_filter
        self._children: dict[int, _Child] = {}
        self._poll = select.poll()
        self._init_pid = 0
        self._init_pidfd = -1
        self._box: BoxDescriptors | None = None

    def run(self) -> None:
        own_pidfd = os.pidfd_open(os.getpid())
        wire.send(self._control, {"op": "hello", "pid": os.getpid()}, [own_pidfd])
        os.close(own_pidfd)
        self._make_box()
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._init_pidfd, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    message = wire.receive(self._control)
                    if message is None:
                        self._end_box()
                        return
                    self._start(*message)
                elif descriptor == self._init_pidfd:
                    wire.send(self._control, {"op": "init_died"})
                    return
                elif descriptor in self._children:
                    self._report(self._children[descriptor])

    def _make_box(self) -> None:
        stage = "cgroup"
        try:
            for path in self._spec["cgroup_procs"]:
                descriptor = os.open(path, os.O_WRONLY)
                os.write(descriptor, b"0")
                os.close(descriptor)
            stage = "user namespace of the user"
            if self._spec["rootless"]:
                _enter_own_user_namespace()
            stage = "host name"
            syscalls.unshare(syscalls.CLONE_NEWUTS)
            socket.sethostname(self._spec["hostname"])
            stage = "pid namespace"
            syscalls.unshare(syscalls.CLONE_NEWPID)
            stage = "init"
            self._start_init()
        except OSError as error:
            raise StageError(stage, error) from error

    def _start_init(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._control.close()
                run_init(theirs, self._spec, self._seccomp_filter)
            finally:
                os._exit(1)
        theirs.close()
        self._init_pid = pid
        self._init_pidfd = os.pidfd_open(pid)
        self._expect(ours, "map")
        _write_maps(pid, int(self._spec["uid"]))
        wire.send(ours, {"step": "go"})
        root, *namespaces = self._expect(ours, "ready")
        ours.close()
        self._box = BoxDescriptors(*namespaces)
        message = {"op": "ready", "init_pid": pid}
        wire.send(self._control, message, [self._init_pidfd, root])
        os.close(root)

    def _expect(self, link: socket.socket, step: str) -> list[int]:
        received = wire.receive(link)
        if received is None:
            raise OSError(0, f"init ended before step {step}")
        message, descriptors = received
        if message["step"] == "failed":
            raise StageError(message["stage"], OSError(message["errno"], message["detail"]))
        return descriptors

    def _start(self, request: dict[str, Any], stdio: list[int]) -> None:
        assert self._box is not None
        try:
            syscalls.unshare(syscalls.CLONE_NEWUTS)
            mark = os.open("/proc/self/ns/uts", os.O_RDONLY)
            status, status_theirs = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
        except OSError as error:
            failure = {"op": "refused", "stage": "fork", "errno": error.errno}
            wire.send(self._control, {**failure, "key": request["key"]})
            for descriptor in stdio:
                os.close(descriptor)
            return
        if pid == 0:
            run_command(request, stdio, status_theirs, self._box, self._spec, self._seccomp_filter)
        for descriptor in (*stdio, status_theirs):
            os.close(descriptor)
        child = _Child(request["key"], pid, os.pidfd_open(pid), status)
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)
        started = {"op": "started", "key": child.key, "pid": pid}
        wire.send(self._control, {**started, "mark": os.fstat(mark).st_ino}, [mark])
        os.close(mark)

    def _report(self, child: _Child) -> None:
        _, wait_status = os.waitpid(child.pid, 0)
        self._poll.unregister(child.pidfd)
        del self._children[child.pidfd]
        failure = os.read(child.status, FAILURE.size)
        os.close(child.pidfd)
        os.close(child.status)
        if failure:
            position, number = FAILURE.unpack(failure)
            message = {"op": "refused", "stage": STAGES[position], "errno": number}
        else:
            message = {"op": "ended", "status": os.waitstatus_to_exitcode(wait_status)}
        wire.send(self._control, {**message, "key": child.key, "pid": child.pid})

    def _end_box(self) -> None:
        signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
        os.waitpid(self._init_pid, 0)


def _enter_own_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    _write("/proc/self/uid_map", f"0 {uid} 1")


def _write_maps(pid: int, uid: int) -> None:
    _write(f"/proc/{pid}/gid_map", f"0 {uid} 1")
    _write(f"/proc/{pid}/uid_map", f"0 {uid} 1")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
