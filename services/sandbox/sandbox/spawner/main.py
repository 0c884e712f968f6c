"""The spawner: one single-threaded process that forks a keeper per sandbox and does nothing else.

Started by `sandbox.backends.spawner_process` with an isolated interpreter (`python -I -S`), an empty environment and
one socket. It exists so that sandboxes are forked from a process that is small, has no threads (a parent death
signal follows the thread that forked) and holds no secrets. It ends when the manager's side of its socket closes.
"""

import gc
import os
import signal
import socket
import sys
from typing import NoReturn

from sandbox.spawner import syscalls, wire
from sandbox.spawner.keeper import run_keeper
from sandbox.spawner.seccomp import build_filter


def main(descriptor: int) -> NoReturn:
    """Serve requests on the socket with this descriptor until it closes."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    os.chdir("/")
    os.umask(0o022)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a Ctrl-C in the terminal is the manager's to handle
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # keepers and their orphans are reaped by the kernel
    syscalls.set_child_subreaper()
    syscalls.set_process_title("hone-sandbox")
    seccomp_filter = build_filter()
    _forbid_imports()
    gc.disable()
    gc.freeze()
    wire.send(control, {"op": "up", "pid": os.getpid()})
    _serve(control, seccomp_filter)
    os._exit(0)


def _serve(control: socket.socket, seccomp_filter: bytes) -> None:
    spawner_pid = os.getpid()
    while (received := wire.receive(control)) is not None:
        spec, descriptors = received
        if os.fork() == 0:
            control.close()
            run_keeper(socket.socket(fileno=descriptors[0]), spec, seccomp_filter, spawner_pid)
        os.close(descriptors[0])


def _forbid_imports() -> None:
    """Leave no way to import a module: init and commands live in a root that the workload can write to."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
