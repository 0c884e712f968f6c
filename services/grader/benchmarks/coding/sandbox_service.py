"""A sandbox service of a benchmark's own, in a process, and rooms over it."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eventbus.testing import start_nats
from grader.clients.boxes import IDEMPOTENT_METHODS, SandboxRooms
from servicekit.channels import connect
from servicekit.tokens import TokenMinter, generate_key_file

_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxService:
    """A running service."""

    address: str
    key_file: Path

    def rooms(self) -> SandboxRooms:
        """Return rooms over it, for the event loop that runs."""
        minter = TokenMinter(self.key_file, time.time)
        return SandboxRooms(
            lambda: connect(self.address, idempotent_methods=IDEMPOTENT_METHODS),
            lambda rollout_id, epoch: minter.mint(rollout_id, epoch, "grader", 600),
            clock=time.time,
            rng=random.Random(),
        )


@contextmanager
def running_sandbox() -> Iterator[SandboxService]:
    """Run a nats-server and a sandbox service in a folder that goes at the end.

    Raises:
        RuntimeError: it does not serve, for example because this machine cannot isolate.
    """
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as name:
        folder = Path(name)
        key_file = folder / "key.pem"
        generate_key_file(key_file)
        with start_nats(folder) as nats, (folder / "log").open("wb") as log:
            settings = {
                "PORT": "0",
                "DATA_DIR": str(folder / "data"),
                "NATS_URL": nats.url,
                "TOKEN_KEY_FILE": str(key_file),
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "sandbox"],
                env=os.environ | {f"HONE_SANDBOX_{key}": value for key, value in settings.items()},
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
            )
            try:
                port = _port(process, folder / "log")
                yield SandboxService(address=f"127.0.0.1:{port}", key_file=key_file)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            said = json.loads(line)
            if said["message"] == "serving":
                return int(said["port"])
        time.sleep(0.05)
    raise RuntimeError(f"the sandbox service does not serve:\n{log.read_text()[-2000:]}")
