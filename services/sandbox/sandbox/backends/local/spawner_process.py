"""The manager's end of the spawner: starts it, sends it requests, notices its death."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sandbox
from sandbox.spawner import wire

log = logging.getLogger(__name__)

_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from sandbox.spawner.main import main; main(int(sys.argv[2]), sys.argv[3])"
)
"""The interpreter is isolated (-I -S), so it is told the one folder to import from, after the standard library."""

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0

_SEND_SECONDS = 10.0
"""How long the other side of a channel may take nothing before it is given up."""


class Channel:
    """A packet socket on the event loop: hands messages on as they come and tells when the other side is gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[dict[str, Any], list[int]], None],
        on_close: Callable[[], None],
    ) -> None:
        """Takes over the socket; must be called on the event loop."""
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)
        self._sending = asyncio.Lock()
        self._room = asyncio.Event()
        self.closed = False

    async def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message, in the order of the calls; waits while the other side has too much to read.

        Raises:
            OSError: the other side is gone, or takes nothing any more.
        """
        async with self._sending:
            while not self._sent(message, descriptors):
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._room.wait()

    def close(self) -> None:
        """Stop; the other side sees the end. Idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._writable()
            self._sock.close()

    def _sent(self, message: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Send a message if there is room for it; if not, have `_room` set when there is."""
        if self.closed:
            raise BrokenPipeError("the channel is closed")
        try:
            wire.send(self._sock, message, descriptors)
        except BlockingIOError:
            self._room.clear()
            self._loop.add_writer(self._sock.fileno(), self._writable)
            return False
        return True

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._room.set()

    def _readable(self) -> None:
        while not self.closed:
            try:
                received = wire.receive(self._sock)
            except BlockingIOError:
                return
            if received is None:
                self.close()
                self._on_close()
                return
            self._on_message(*received)


class SpawnerProcess:
    """One spawner, from start to end."""

    def __init__(self, devices: Path, on_death: Callable[[], None]) -> None:
        """`devices` is an empty folder for its use; `on_death` is called when it ends unasked."""
        self._devices = devices
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._up: asyncio.Future[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._channel is not None and not self._channel.closed

    async def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            TimeoutError: it did not come up.
            OSError: it could not be started, or ended at once.
        """
        self._up = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._channel = Channel(ours, self._on_message, self._on_close)
            try:
                self._process = self._open(theirs.fileno())
                theirs.close()
                async with asyncio.timeout(_START_SECONDS):
                    await self._up
            except BaseException:  # also when cancelled
                if self._process is not None:
                    self._process.kill()
                await self.stop()
                raise

    def _open(self, control: int) -> "subprocess.Popen[bytes]":
        folder = str(Path(next(iter(sandbox.__path__))).parent)
        arguments = [folder, str(control), str(self._devices)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[control],
            start_new_session=True,
        )

    async def request_box(self, spec: dict[str, Any], control: int) -> None:
        """Have a keeper forked that serves `control`.

        Raises:
            OSError: the spawner is gone.
        """
        if self._channel is None or self._channel.closed:
            raise ConnectionResetError("the spawner is gone")
        await self._channel.send(spec, [control])

    async def stop(self) -> None:
        """End it; sandboxes that still live die with it. Idempotent."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()  # it is stuck; its sandboxes die with it
                await asyncio.to_thread(self._process.wait)

    def must_answer(self, seconds: float) -> None:
        """Have it killed, with its sandboxes, unless it answers within this time."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check(seconds))

    async def _check(self, seconds: float) -> None:
        if self._channel is None or self._process is None:
            return
        self._up = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._channel.send({"op": "ping"})
                await self._up
        except TimeoutError:
            log.error("spawner does not answer and is killed")
            self._process.kill()
        except OSError:
            pass  # it is gone, which is told elsewhere

    def _on_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        if self._up is None or self._up.done():
            return
        if message["op"] == "up":
            self._up.set_result(None)
        elif message["op"] == "error":
            self._up.set_exception(OSError(message["detail"]))

    def _on_close(self) -> None:
        if self._up is not None and not self._up.done():
            self._up.set_exception(ConnectionResetError("the spawner ended before it was up"))
        self._on_death()
