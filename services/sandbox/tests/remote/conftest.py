"""Fixtures of the tests over the remote backend: a service whose sandboxes are real, and one of them."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from remote_service import API_KEY, FakeService, running_service

from sandbox.backends.remote.backend import RemoteBackend
from sandbox.settings import RemoteOptions
from servicekit.errors import FailedPrecondition


@pytest.fixture(scope="session")
def remote_options() -> Callable[[FakeService, Path], RemoteOptions]:
    """Make options by which a service on this machine is reached."""

    def make(service: FakeService, folder: Path) -> RemoteOptions:
        key = folder / "key"
        key.write_text(f"{API_KEY}\n")
        return RemoteOptions(
            api_key_file=key,
            api_url=service.url,
            envd_url=service.url + "/vm/{sandbox_id}",
            creates_per_second=10_000.0,
            call_seconds=10.0,
            create_seconds=10.0,
        )

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeService]:
    """A service that runs commands; skips where this machine cannot."""
    try:
        async with running_service(tmp_path_factory.mktemp("service")) as made:
            yield made
            assert made.complaints == []
    except FailedPrecondition as error:
        if error.reason != "ISOLATION_UNAVAILABLE":
            raise
        pytest.skip(f"no sandboxes on this machine: {error.message}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_backend(
    real_service: FakeService,
    remote_options: Callable[[FakeService, Path], RemoteOptions],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[RemoteBackend]:
    """A backend over it."""
    folder = tmp_path_factory.mktemp("remote")
    backend = RemoteBackend(
        folder, remote_options(real_service, folder), random_source=random.Random(1)
    )
    await backend.start()
    yield backend
    await backend.close()
