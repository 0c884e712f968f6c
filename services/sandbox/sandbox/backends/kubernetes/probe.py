"""Looks whether the cluster enforces the NetworkPolicy of the sandboxes: a sandbox tries to reach the API server.

Many clusters accept NetworkPolicy objects and enforce none; nothing but trying tells.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Protocol

from sandbox.backends.protocol import Box, BoxLost
from sandbox.rootfs import DEFAULT_ENV
from sandbox.types import BoxSpec, Command
from servicekit.errors import HoneError

_SECONDS = 60.0
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
    print("open")
except OSError as error:
    print("closed", error)
"""


class Creator(Protocol):
    """Makes sandboxes."""

    async def create(self, spec: BoxSpec, on_lost: Callable[[str], None]) -> Box:
        """Make one; see `Backend.create`."""
        ...


async def check_network(creator: Creator, address: tuple[str, int]) -> str:
    """Return what is wrong with the sandboxes' network, empty if they reach nothing at this address."""
    host, port = address
    spec = BoxSpec(sandbox_id=f"probe-{uuid.uuid4().hex}", lifetime_seconds=_SECONDS)
    try:
        async with asyncio.timeout(_SECONDS):
            box = await creator.create(spec, lambda _: None)
    except (HoneError, TimeoutError) as error:
        return f"the network of sandboxes could not be checked: {error}"
    try:
        argv = ("python3", "-I", "-c", _CONNECT, host, str(port))
        outcome = await box.run(Command(exec_id="probe", argv=argv), DEFAULT_ENV, None)
    except BoxLost as error:
        return f"the network of sandboxes could not be checked: {error}"
    finally:
        await box.destroy()
    if outcome.stdout.startswith(b"closed"):
        return ""
    if outcome.stdout.startswith(b"open"):
        return (
            f"sandboxes reach the API server at {host}:{port}: there is no NetworkPolicy in the "
            "namespace, or the cluster's network does not enforce it"
        )
    return (
        f"the network of sandboxes could not be checked: {outcome.stderr.decode(errors='replace')}"
    )
