"""What the kernel gives to a user or to the machine as a whole: no sandbox takes the others' share of it."""

import asyncio
import contextlib
import ctypes
import os
import time
from pathlib import Path

import pytest

from sandbox.types import Termination

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="sandboxes of an ordinary user are all that one user's"
)

HOLD = "print(got, flush=True)\nopen('/work/full', 'w').close()\ntime.sleep(600)\n"

INOTIFY = """
import ctypes, time
libc, got = ctypes.CDLL(None), 0
while got < 900 and libc.inotify_init() >= 0: got += 1
"""
SIGNALS = """
import ctypes, os, signal, time
libc, got = ctypes.CDLL(None), 0
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
while got < 1_000_000 and libc.sigqueue(os.getpid(), 40, None) == 0: got += 1
"""
QUEUES = """
import ctypes, os, time
libc, got = ctypes.CDLL("librt.so.1"), 0
while got < 900 and libc.mq_open(b"/q%d" % got, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0: got += 1
"""
DESCRIPTORS_ON_THEIR_WAY = """
import array, os, socket, time
null, kept, got = os.open("/dev/null", 0), [], 0
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 100))]
while got < 1100:
    kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        kept[-1][0].sendmsg([b"x"], rights)
    except OSError: break
    got += 100
"""


async def _take(box, script: str) -> asyncio.Task:
    """Have a sandbox take all it gets, and wait until it has."""
    taking = asyncio.ensure_future(box.python(script + HOLD, timeout_seconds=600.0))
    end = time.monotonic() + 60.0
    while not any(entry.name == "full" for entry in await box.list_files("/work")):
        assert not taking.done(), taking.result()
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    return taking


@pytest.mark.parametrize("script", [INOTIFY, SIGNALS, QUEUES, DESCRIPTORS_ON_THEIR_WAY])
async def test_what_a_user_may_have_is_not_shared(real, use, script):
    greedy, other = [use(real, (await real.create(real.rollout_id())).info) for _ in range(2)]
    taking = await _take(greedy, script)
    got = await other.python(script + "print(got)")
    assert (got.termination, got.exit_code) == (Termination.EXITED, 0), got
    assert int(got.stdout) > 0
    late = use(real, (await real.create(real.rollout_id())).info)
    assert (await late.sh("echo here")).stdout == b"here\n"
    libc = ctypes.CDLL(None, use_errno=True)  # nor do they take what the host's root has
    descriptor = libc.inotify_init()
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    os.close(descriptor)
    # To its own sandbox a command may do this, but not so that it looks like our failure.
    assert (await greedy.sh("echo here")).stdout == b"here\n"
    assert not taking.done()
    taking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await taking


async def test_no_two_live_sandboxes_are_the_same_user(real, use):
    boxes = [use(real, (await real.create(real.rollout_id())).info) for _ in range(3)]
    keepers = [real.fleet.find(box.info.sandbox_id).box.keeper_pid for box in boxes]
    users = [Path(f"/proc/{keeper}/uid_map").read_text().split() for keeper in keepers]
    assert len({outside for _, outside, _ in users}) == len(boxes)
    assert all(int(outside) > 100_000 and count == "1" for _, outside, count in users)


TERMINALS = """
import os, time
got = 0
try:
    while got < 900:
        os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
        got += 1
except OSError: pass
"""


async def test_the_machines_terminals_are_not_taken_by_one(box):
    got = await box.python(TERMINALS + "print(got)")
    assert got.exit_code == 0, got
    assert 16 <= int(got.stdout) <= 64  # of 4096 that all namespaces together may have


SOCKETS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=300)
kept, got = [], 0
for _ in range(60):
    sender = socket.create_connection(server.getsockname())
    kept += [sender, server.accept()[0]]
    sender.setblocking(False)
    try:
        while True: got += sender.send(bytes(1 << 18))
    except BlockingIOError: pass
datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(300)]
for one in datagrams:
    one.bind(("127.0.0.1", 0))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    for _ in range(30):
        try: datagrams[0].sendto(bytes(30_000), one.getsockname())
        except OSError: break
"""


async def test_what_waits_in_sockets_is_bounded(real, use):
    box = use(real, (await real.create(real.rollout_id())).info)
    before = _socket_bytes()
    taking = await _take(box, SOCKETS)
    assert _socket_bytes() - before < 128 << 20
    taking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await taking


async def test_programs_still_talk_over_loopback(box):
    script = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
sent = 64 << 20
def send():
    with socket.create_connection(server.getsockname()) as one: one.sendall(bytes(sent))
threading.Thread(target=send).start()
taken, got = server.accept()[0], 0
while piece := taken.recv(1 << 20): got += len(piece)
print(got == sent)
"""
    assert (await box.python(script)).stdout == b"True\n"


def _socket_bytes() -> int:
    """Return how much the machine holds in TCP and UDP buffers, of all network namespaces."""
    lines = Path("/proc/net/sockstat").read_text().splitlines()
    fields = [line.split() for line in lines if line.startswith(("TCP:", "UDP:"))]
    return sum(int(line[line.index("mem") + 1]) for line in fields) * os.sysconf("SC_PAGE_SIZE")
