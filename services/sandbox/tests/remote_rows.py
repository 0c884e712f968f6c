"""What it takes to put the remote backend under the shared tests: see `backends_under_test.py`."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import hostile_cases
import pytest
from remote_service import API_KEY, FakeService, running_service

from sandbox.backends.remote.backend import RemoteBackend
from sandbox.settings import RemoteOptions
from sandbox.types import BoxSpec
from servicekit.errors import FailedPrecondition

VECTORS = frozenset(hostile_cases.CASES) - {"01", "01b", "04d", "09", "10", "12b", "16"}
"""Not the rows of limits, which are the service's own (01, 01b, 04d, 16); nor those of one file system for all paths
(09) and of processes (10, 12b), where the daemon is in the sandbox. `remote/test_remote_commands.py` has what holds
instead."""

_SERVICES: "WeakKeyDictionary[RemoteBackend, FakeService]" = WeakKeyDictionary()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[RemoteBackend]:
    """Give a backend over a service of its own, whose sandboxes are the embedded backend's."""
    try:
        async with running_service(folder / "service") as service:
            backend = _backend(folder, service)
            _SERVICES[backend] = service
            yield backend
            assert service.complaints == []
    except FailedPrecondition as error:
        if error.reason != "ISOLATION_UNAVAILABLE":
            raise
        pytest.skip(f"no sandboxes on this machine: {error.message}")


async def lose(backend: Any, box: Any) -> None:
    """Have the service lose a sandbox, and notice it as the reaper does."""
    await _SERVICES[backend].vanish(box.remote_id)
    await backend.reap(frozenset(backend._boxes))


def census(backend: Any, folder: Path) -> frozenset[str]:
    """List the service's own table."""
    return frozenset(_SERVICES[backend].vms)


async def leave_remains(backend: Any, folder: Path, count: int) -> None:
    """Leave sandboxes of a manager that is gone; the service does not notice that."""
    service = _SERVICES[backend]
    first = _backend(folder, service)
    await first.start()
    for number in range(count):
        await first.create(BoxSpec(sandbox_id=f"sbx_left_{number:027x}"), lambda _: None)
    first._folder.release()  # as the kernel does when the process dies
    assert first._session is not None
    await first._session.close()


def _backend(folder: Path, service: FakeService) -> RemoteBackend:
    key = folder / "key"
    key.write_text(f"{API_KEY}\n")
    options = RemoteOptions(
        api_key_file=key,
        api_url=service.url,
        envd_url=service.url + "/vm/{sandbox_id}",
        creates_per_second=10_000.0,
    )
    return RemoteBackend(folder, options, random_source=random.Random(5))
