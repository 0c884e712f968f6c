"""Which backends there are. Each is imported only when it is chosen: some bring heavy packages."""

from collections.abc import Callable

from sandbox.backends.protocol import Backend
from sandbox.settings import SandboxSettings


def _local(settings: SandboxSettings) -> Backend:
    from sandbox.backends.local import LocalBackend

    return LocalBackend(settings.data_dir)


def _state(settings: SandboxSettings) -> Backend:
    from sandbox.backends.state import StateBackend

    return StateBackend(settings.data_dir, settings.state)


BACKENDS: dict[str, Callable[[SandboxSettings], Backend]] = {"local": _local, "state": _state}
