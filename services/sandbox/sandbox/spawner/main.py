"""The spawner: one single-threaded process that forks a keeper per sandbox and does nothing else.

Started by `sandbox.backends.local.spawner_process` with an isolated interpreter (`python -I -S`), an empty
environment and one socket. It exists so that sandboxes are forked from a process that is small, has no threads (a
parent death signal follows the thread that forked) and holds no secrets. It ends when the manager's side of its
socket closes.

For an ordinary user it lives in a user namespace of its own, in which it is root.
"""

import contextlib
import errno
import fcntl
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from sandbox.spawner import namespaces, syscalls, wire
from sandbox.spawner.keeper import CONTROL, LINK, run_keeper
from sandbox.spawner.root import prepare_devices
from sandbox.spawner.seccomp import build_filter


def main(descriptor: int, devices: str) -> NoReturn:
    """Serve requests on the socket with this descriptor until it closes; `devices` is a folder to mount /dev's on."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    os.chdir("/")
    os.umask(0o022)
    # A Ctrl-C in the terminal is the manager's to handle; keepers and their orphans are reaped by the kernel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    syscalls.set_child_subreaper()
    syscalls.set_process_title("hone-sandbox")
    namespaces.write("/proc/self/comm", "hone-sandbox")
    try:
        if os.geteuid() != 0:
            namespaces.enter_own_user_namespace()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        prepare_devices(devices)
    except OSError as error:
        wire.send(control, {"op": "error", "detail": str(error)})
        os._exit(1)
    spawner = _Spawner(control, build_filter())
    _forbid_imports()
    gc.disable()
    gc.freeze()
    wire.send(control, {"op": "up", "pid": os.getpid()})
    spawner.serve()
    os._exit(0)


class _Spawner:
    def __init__(self, control: socket.socket, seccomp_filter: bytes) -> None:
        self._control = control
        self._seccomp_filter = seccomp_filter
        self._born_in_groups = True
        """Whether the kernel can do that, for control groups of version 2."""
        self._poll = select.poll()
        self._keepers: dict[int, tuple[socket.socket, int, int]] = {}
        """By descriptor: the socket to a keeper that is being set up, its process id, its root's uid here."""

    def serve(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._keepers:
                    self._attend(descriptor)
                    continue
                received = wire.receive(self._control)
                if received is None:
                    return
                spec, descriptors = received
                if not descriptors:  # the manager asks whether this process still answers
                    wire.send(self._control, {"op": "up"})
                    continue
                with socket.socket(fileno=descriptors[0]) as box:
                    self._fork_keeper(spec, box)

    def _fork_keeper(self, spec: Mapping[str, Any], box: socket.socket) -> None:
        """Fork a keeper and tell the manager of it; whatever fails is that sandbox's failure alone."""
        with contextlib.ExitStack() as closing:
            try:
                link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                closing.enter_context(link)
                closing.enter_context(theirs)
                maps = -1
                if spec["base"] and spec["base_uid"] != spec["uid"]:
                    maps = namespaces.id_map(int(spec["base_uid"]), int(spec["uid"]))
                    closing.callback(os.close, maps)
                pid = self._fork(spec)
                if pid == 0:
                    self._become_keeper(spec, box.fileno(), theirs.fileno(), maps)
                pidfd = os.pidfd_open(pid)
                closing.callback(os.close, pidfd)
                wire.send(box, {"op": "hello", "pid": pid}, [pidfd])
            except OSError as error:
                failure = {"op": "error", "stage": "fork", "errno": error.errno}
                with contextlib.suppress(OSError):  # nobody waits for it any more
                    wire.send(box, {**failure, "detail": str(error)})
                return
            kept = link.detach()
        link = socket.socket(fileno=kept)
        self._keepers[link.fileno()] = (link, pid, int(spec["uid"]))
        self._poll.register(link, select.POLLIN)

    def _become_keeper(self, spec: Mapping[str, Any], box: int, link: int, maps: int) -> NoReturn:
        try:
            id_map = _place_descriptors(box, link, maps)
            born = spec["born_in"] and self._born_in_groups
            run_keeper(spec, [] if born else spec["join"], self._seccomp_filter, id_map)
        finally:
            os._exit(1)  # never back into the spawner's loop

    def _fork(self, spec: Mapping[str, Any]) -> int:
        """Fork into a new pid namespace, and into the control group where the kernel can do that at birth."""
        if not (spec["born_in"] and self._born_in_groups):
            return syscalls.fork_into(syscalls.CLONE_NEWPID)
        folder = os.open(spec["born_in"], os.O_RDONLY | os.O_DIRECTORY)
        try:
            return syscalls.fork_into(syscalls.CLONE_NEWPID, folder)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
        finally:
            os.close(folder)
        self._born_in_groups = False  # a filter around this process hides clone3
        return syscalls.fork_into(syscalls.CLONE_NEWPID)

    def _attend(self, descriptor: int) -> None:
        link, pid, uid = self._keepers[descriptor]
        try:
            said = link.recv(16)
            if said == b"map":
                namespaces.write_maps(pid, uid)
                link.send(b"g")
                return
        except OSError:
            pass  # it died; the manager sees that at its own socket
        self._poll.unregister(descriptor)
        del self._keepers[descriptor]
        link.close()


def _place_descriptors(box: int, link: int, maps: int) -> int:
    """Keep stdio, a keeper's two sockets under the numbers that it expects, and `maps`; return its new number."""
    aside = [
        fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, LINK + 2)
        for number in (box, link, maps)
        if number >= 0
    ]
    places = (CONTROL, LINK, LINK + 1)[: len(aside)]
    for number, source in zip(places, aside, strict=True):
        os.dup2(source, number, inheritable=False)
    syscalls.close_from(places[-1] + 1)
    return places[-1] if maps >= 0 else -1


def _forbid_imports() -> None:
    """Leave no way to import a module: keepers live in roots that workloads can write to."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
