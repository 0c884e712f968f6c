"""The agent's entry: `python3 -I -S agent.pyz --host ADDRESS --token-sha256 DIGEST`, Python 3.10 or newer.

It holds no secret: of the token it knows the digest alone, and it runs nothing before it has shut out debuggers.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import re
import signal

from sandbox.pod_agent import protocol
from sandbox.pod_agent.counters import Counters
from sandbox.pod_agent.execs import Execs
from sandbox.pod_agent.reaper import Reaper
from sandbox.pod_agent.server import Server, TokenLock, describe, serve, serve_pipes
from sandbox.pod_agent.supervise import Identity
from sandbox.pod_agent.workers import Workers
from sandbox.spawner import syscalls

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def main(arguments: list[str] | None = None) -> None:
    """Run the agent."""
    options = _parse(arguments)
    # As the pod's first process, only signals with a handler reach it from inside; so there are none but SIGCHLD's.
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    syscalls.set_dumpable(False)
    syscalls.set_child_subreaper()  # where it is not the pod's first process
    if not range(*options.groups):
        _need_subreapers()
    identity = Identity(
        uid=options.uid if options.uid >= 0 else os.getuid(),
        gid=options.gid if options.gid >= 0 else os.getgid(),
        switch=options.uid >= 0 and options.uid != os.getuid(),
        max_processes=options.max_processes,
    )
    asyncio.run(_run(options, identity))


async def _run(options: argparse.Namespace, identity: Identity) -> None:
    reaper = Reaper(asyncio.get_running_loop())
    reaper.start()
    folders = tuple(options.folder)
    server = Server(
        TokenLock(options.token_sha256),
        options.pin,
        Execs(identity, reaper, Counters(options.cgroup), range(*options.groups)),
        Workers(identity, reaper, folders),
        describe(identity.uid, identity.switch, folders),
    )
    gc.freeze()  # children are forks; what is not collected stays shared with them
    if options.stdio:
        await serve_pipes(server)
    else:
        await serve(server, options.host, options.port)


def _need_subreapers() -> None:
    """Refuse to serve where nothing would tell what a command started: then its time-out would not end it.

    Tried in a child: to a first process, an old gVisor says that it has them.
    """
    pid = os.fork()
    if not pid:
        with contextlib.suppress(OSError):
            syscalls.set_child_subreaper()
            os._exit(0)
        os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("agent: this kernel has no subreapers; it takes --uid and --groups")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--host", help="address to listen on, the pod's own")
    where.add_argument("--stdio", action="store_true", help="serve on standard input and output")
    parser.add_argument("--port", type=int, default=protocol.PORT)
    parser.add_argument("--token-sha256", default="", help="hexadecimal digest of the token")
    parser.add_argument("--pin", action="store_true", help="let the first caller set the token")
    parser.add_argument("--uid", type=int, default=-1, help="run commands as this user")
    parser.add_argument("--gid", type=int, default=-1)
    parser.add_argument(
        "--groups",
        type=int,
        nargs=2,
        default=(0, 0),
        metavar=("FIRST", "END"),
        help="a group of its own for each command",
    )
    parser.add_argument("--max-processes", type=int, default=0, help="of the commands' user")
    parser.add_argument("--cgroup", default="/sys/fs/cgroup", help="where the counters are")
    parser.add_argument("--folder", action="append", default=[], help="a writable folder; repeat")
    options = parser.parse_args(arguments)
    if not options.pin and not _DIGEST.fullmatch(options.token_sha256):
        parser.error("--token-sha256 must be 64 hexadecimal digits, or --pin be given")
    return options
