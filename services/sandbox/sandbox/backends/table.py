"""Which backends there are. Each is imported only when it is chosen: some bring heavy packages."""

from collections.abc import Callable

from sandbox.backends.protocol import Backend
from sandbox.settings import SandboxSettings


def _local(settings: SandboxSettings) -> Backend:
    from sandbox.backends.local.backend import LocalBackend

    return LocalBackend(settings.data_dir, roots=_roots(settings))


def _runsc(settings: SandboxSettings) -> Backend:
    from sandbox.backends.runsc.backend import RunscBackend

    return RunscBackend(settings.data_dir, settings.runsc, roots=_roots(settings))


def _roots(settings: SandboxSettings) -> list[str]:
    """Return what root file systems the templates name, to be imported at start."""
    from sandbox.rootfs import HOST_ROOT
    from sandbox.templates import load_templates

    templates = load_templates(settings.templates_file, settings.default_template)
    return sorted({template.rootfs for template in templates.values()} - {HOST_ROOT})


def _remote(settings: SandboxSettings) -> Backend:
    import random

    from sandbox.backends.remote.backend import RemoteBackend

    return RemoteBackend(settings.data_dir, settings.remote, random_source=random.Random())


def _state(settings: SandboxSettings) -> Backend:
    from sandbox.backends.state.backend import StateBackend

    return StateBackend(settings.data_dir, settings.state)


def _docker(settings: SandboxSettings) -> Backend:
    from sandbox.backends.docker.backend import DockerBackend

    return DockerBackend(settings.data_dir, settings.docker)


def _kubernetes(settings: SandboxSettings) -> Backend:
    import random

    from sandbox.backends.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(settings.data_dir, settings.kubernetes, rng=random.Random())


def _optimistic(settings: SandboxSettings) -> Backend:
    from sandbox.backends.optimistic.backend import OptimisticBackend

    options = settings.optimistic
    return OptimisticBackend(BACKENDS[options.inner](settings), settings.data_dir, options)


BACKENDS: dict[str, Callable[[SandboxSettings], Backend]] = {
    "local": _local,
    "remote": _remote,
    "state": _state,
    "optimistic": _optimistic,
    "docker": _docker,
    "kubernetes": _kubernetes,
    "runsc": _runsc,
}
