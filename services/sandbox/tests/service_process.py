"""The whole service as a process, for tests that need one."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from servicekit.channels import connect
from servicekit.tokens import TokenMinter, generate_key_file

ROLLOUT = "01890000-0000-7000-8000-00000000000a"


class Service:
    """`python -m sandbox` in a folder."""

    def __init__(self, folder: Path, nats_url: str, **settings: object) -> None:
        self.folder = folder
        self.key_file = folder / "key.pem"
        generate_key_file(self.key_file)
        self.settings = {
            "HONE_SANDBOX_PORT": "0",
            "HONE_SANDBOX_DATA_DIR": str(folder / "data"),
            "HONE_SANDBOX_NATS_URL": nats_url,
            "HONE_SANDBOX_TOKEN_KEY_FILE": str(self.key_file),
        } | {f"HONE_SANDBOX_{name.upper()}": str(value) for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.said: list[dict[str, object]] = []

    async def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandbox"],
            env={**os.environ, **self.settings},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )
        while True:
            assert self.process.stderr is not None
            line = await asyncio.to_thread(self.process.stderr.readline)
            assert line, f"the service ended: {self.said}"
            said = json.loads(line)
            self.said.append(said)
            if "cannot start" in said["message"]:
                if "does not let" in said["message"]:
                    pytest.skip(said["message"])
                raise AssertionError(said)
            if said["message"] == "serving":
                self.port = said["port"]
                return

    async def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        _, rest = await asyncio.to_thread(self.process.communicate)
        self.said += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode

    def loud(self) -> list[dict[str, object]]:
        """Return warnings and errors, but not what it says of remains of other managers that were killed here.

        Remains of its own it would find after a minute, and those of its folder's managers where there were some.
        """
        loud = [said for said in self.said if said["level"] in ("WARNING", "ERROR")]
        return [said for said in loud if said["message"] != "orphans reaped"]

    def connect(self, rollout_id: str = ROLLOUT) -> grpc.aio.Channel:
        minter = TokenMinter(self.key_file, time.time)
        return connect(
            f"127.0.0.1:{self.port}", token=lambda: minter.mint(rollout_id, 1, "agent", 60)
        )


def control_groups(service: Service) -> list[str]:
    """List the control groups of this service's own managers; others of the machine may have theirs."""
    instance = (service.folder / "data" / "instance").read_text()
    found = []
    for top, names, _ in os.walk("/sys/fs/cgroup"):
        if Path(top).name == "hone-sandbox":
            found += [name for name in names if name.startswith(f"{instance}.")]
            names.clear()
    return found
