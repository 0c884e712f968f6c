"""Settings of the sandbox service; environment prefix HONE_SANDBOX_."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from sandbox.backends.kubernetes.options import KubernetesOptions
from servicekit.settings import ServiceSettings


class RemoteOptions(BaseModel):
    """Of the backend remote: micro-VMs of a service with the E2B API."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_key_file: Path | None = None
    """Holds the API key, alone; required."""
    api_url: str = "https://api.e2b.app"
    """Where sandboxes are made and ended."""
    envd_url: str = "https://{port}-{sandbox_id}.{domain}"
    """Where a sandbox itself is reached; the three names are filled in."""
    domain: str = "e2b.app"
    """Where the service names none of its own with a sandbox."""
    template: str = "base"
    """Of the service; where a template of ours names none in `image`."""
    user: str = "root"
    """Of the sandbox; runs every command."""
    creates_per_second: float = Field(default=5.0, gt=0)
    """What the service allows."""
    pace_seconds: float = Field(default=5.0, gt=0)
    """Longest wait for it; then RESOURCE_EXHAUSTED (REMOTE_PACE)."""
    call_seconds: float = Field(default=20.0, gt=0)
    """How long one call may take."""
    create_seconds: float = Field(default=60.0, gt=0)
    """How long a creation may take at the service."""
    grant_seconds: float = Field(default=300.0, ge=60)
    """A sandbox ends by itself this long after the manager last extended it."""


class StateOptions(BaseModel):
    """Of the backend state: a database per rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parallel_statements: int = Field(default=32, ge=1)
    """Statements under way at once; more wait in order."""
    heap_mib: int = Field(default=2048, ge=64)
    """Most memory that SQLite may use for all databases together."""
    reserve_mib: int = Field(default=512, ge=1)
    """Free disk below which statements are undone instead of going on."""


class OptimisticOptions(BaseModel):
    """Of the backend optimistic: environments that rollouts share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inner: Literal["local", "docker", "kubernetes", "remote"] = "local"
    """The backend that makes the shared environments."""
    share: int = Field(default=8, ge=1)
    """Most rollouts in one environment at a time."""
    skip: tuple[str, ...] = ("/proc", "/sys", "/dev", "/usr")
    """Not compared. The embedded backend's /usr cannot be written to; where it can, leave it out of this list."""
    max_archive_mib: int = Field(default=256, ge=1)
    """Of the files in one folder below the root; one with more counts as changed."""


class DockerOptions(BaseModel):
    """Of the backend docker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "unix:///var/run/docker.sock"
    """The daemon: unix:///PATH, or tcp://ADDRESS:PORT without TLS."""
    image: str = ""
    """What sandboxes start from where their template names no image; required, best by digest, with /bin/sh."""
    runtime: str = ""
    """For example runsc or kata; empty means the daemon's own default."""
    runtime_processes: int = Field(default=0, ge=0)
    """How many processes of the runtime's own count against a sandbox's; gVisor needs about 128."""
    user: str = Field(default="1000:1000", pattern=r"^\d{1,9}:\d{1,9}$")
    """User and group, as numbers, that every command runs as."""
    writable_root: bool = False
    """Whether the root can be written to; needs a storage driver that limits its size (overlay2 on XFS with pquota)."""
    seccomp_profile: Path | None = None
    """JSON, as `docker run --security-opt seccomp=` takes it; empty means the daemon's own."""
    networks: Mapping[str, str] = Field(default_factory=dict)
    """The daemon's network for each network profile but none."""
    parallel_calls: int = Field(default=16, ge=2)
    """Calls that the daemon is asked at once; more wait in order."""
    call_seconds: float = Field(default=20.0, gt=0)
    """How long one call may take."""

    def user_and_group(self) -> tuple[int, int]:
        """Return both as numbers."""
        user, _, group = self.user.partition(":")
        return int(user), int(group)


class RunscOptions(BaseModel):
    """Of the backend runsc: gVisor without a daemon."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str = "runsc"
    """A path, or a name to be found in PATH."""
    platform: str = Field(default="ptrace", pattern=r"^[a-z]+$")
    """How gVisor comes by the workload's calls: ptrace, kvm, or systrap with newer versions."""
    runtime_processes: int = Field(default=128, ge=1)
    """How many processes (and threads) of the host gVisor needs for itself."""
    processes_each: int = Field(default=16, ge=1)
    """How many of the host gVisor needs for each process of the sandbox; at most one for each thread of its own."""
    runtime_mib: int = Field(default=96, ge=1)
    """How much memory gVisor and the agent get beside the sandbox's."""
    start_seconds: float = Field(default=30.0, gt=0)
    """How long a sandbox may take to answer."""
    user: str = Field(default="1000:1000", pattern=r"^[1-9]\d{0,8}:[1-9]\d{0,8}$")
    """User and group, as numbers, that commands run as; 0 is the agent's."""

    def user_and_group(self) -> tuple[int, int]:
        """Return both as numbers."""
        user, _, group = self.user.partition(":")
        return int(user), int(group)


class SandboxSettings(ServiceSettings):
    """What the sandbox service needs to know. `token_key_file` is required: every call is checked."""

    model_config = SettingsConfigDict(
        env_prefix="HONE_SANDBOX_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    backend: Literal["local", "remote", "state", "optimistic", "docker", "kubernetes", "runsc"] = (
        "local"
    )
    """Which backend makes the sandboxes."""
    templates_file: Path | None = None
    """YAML: what sandboxes start from, by name; see `templates.py`. `host` is always there."""
    default_template: str = "host"
    """Template of a sandbox whose creator names none."""
    warm_max: int = Field(default=32, ge=0)
    """Most sandboxes kept ready for the steps that runs announce; 0 keeps none but those of the templates."""
    warm_seconds: float = Field(default=120.0, gt=0)
    """How long after its announcement a step's sandboxes are kept ready."""
    snapshots_mib: int = Field(default=8192, ge=0)
    """Most that all snapshots may take of the disk."""
    parallel_creates: int = Field(default=4 * (os.cpu_count() or 1), ge=1)
    """Creations under way at once; more wait in order."""
    queue_seconds: float = Field(default=10.0, gt=0)
    """How long a creation may wait for its turn."""
    provision_seconds: float = Field(default=10.0, gt=0)
    """How long one sandbox may take to become ready."""
    max_sandboxes: int = Field(default=1000, ge=1)
    """Most sandboxes at once."""
    memory_overcommit: float = Field(default=12.0, gt=0)
    """The sandboxes' memory limits may sum up to this many times the machine's memory: most sandboxes wait for a model
    and use next to nothing. Where the memory does run out, the kernel's kills are told as faults of the service."""
    reserve_mib: int = Field(default=1024, ge=0)
    """Free memory below which no sandbox is made."""
    default_idle_seconds: float = Field(default=60.0, gt=0)
    """Idle lease of a sandbox whose creator asked for none."""
    default_lifetime_seconds: float = Field(default=3600.0, gt=0)
    """Lifetime of a sandbox whose creator asked for none."""
    remote: RemoteOptions = RemoteOptions()
    state: StateOptions = StateOptions()
    optimistic: OptimisticOptions = OptimisticOptions()
    docker: DockerOptions = DockerOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
    runsc: RunscOptions = RunscOptions()

    def network_profiles(self) -> tuple[str, ...]:
        """Return the network profiles that sandboxes may ask for; of the backends docker alone can have others."""
        return ("none", *(self.docker.networks if self._maker() == "docker" else ()))

    def starts_from(self) -> Literal["rootfs", "image"]:
        """Return the field of a template that says what the backend's sandboxes start from."""
        return "image" if self._maker() in ("docker", "kubernetes", "remote") else "rootfs"

    def _maker(self) -> str:
        return self.optimistic.inner if self.backend == "optimistic" else self.backend
