"""Settings of the sandbox service; environment prefix HONE_SANDBOX_."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class RemoteOptions(BaseModel):
    """Of the backend remote: micro-VMs of a service with the E2B API."""

    model_config = ConfigDict(frozen=True)

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
    call_seconds: float = Field(default=20.0, gt=0)
    """How long one call may take."""
    create_seconds: float = Field(default=60.0, gt=0)
    """How long a creation may take at the service."""
    grant_seconds: float = Field(default=300.0, ge=60)
    """A sandbox ends by itself this long after the manager last extended it."""


class StateOptions(BaseModel):
    """Of the backend state: a database per rollout."""

    model_config = ConfigDict(frozen=True)

    parallel_statements: int = Field(default=32, ge=1)
    """Statements under way at once; more wait in order."""
    heap_mib: int = Field(default=2048, ge=64)
    """Most memory that SQLite may use for all databases together."""
    reserve_mib: int = Field(default=512, ge=1)
    """Free disk below which statements are undone instead of going on."""


class OptimisticOptions(BaseModel):
    """Of the backend optimistic: environments that rollouts share."""

    model_config = ConfigDict(frozen=True)

    inner: str = "local"
    """The backend that makes the shared environments."""
    share: int = Field(default=8, ge=1)
    """Most rollouts in one environment at a time."""
    max_archive_mib: int = Field(default=256, ge=1)
    """Of the files of an environment; one with more counts as changed."""


class SandboxSettings(ServiceSettings):
    """What the sandbox service needs to know. `token_key_file` is required: every call is checked."""

    model_config = SettingsConfigDict(
        env_prefix="HONE_SANDBOX_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    backend: Literal["local", "remote", "state", "optimistic"] = "local"
    """Which backend makes the sandboxes."""
    templates_file: Path | None = None
    """YAML: what sandboxes start from, by name; see `templates.py`. `host` is always there."""
    default_template: str = "host"
    """Template of a sandbox whose creator names none."""
    warm_max: int = Field(default=32, ge=0)
    """Most sandboxes kept ready for the steps that runs announce; 0 keeps none but those of the templates."""
    warm_seconds: float = Field(default=120.0, gt=0)
    """How long after its announcement a step's sandboxes are kept ready."""
    parallel_creates: int = Field(default=4 * (os.cpu_count() or 1), ge=1)
    """Creations under way at once; more wait in order."""
    queue_seconds: float = Field(default=10.0, gt=0)
    """How long a creation may wait for its turn."""
    provision_seconds: float = Field(default=10.0, gt=0)
    """How long one sandbox may take to become ready."""
    max_sandboxes: int = Field(default=1000, ge=1)
    """Most sandboxes at once."""
    memory_overcommit: float = Field(default=4.0, gt=0)
    """The sandboxes' memory limits may sum up to this many times the machine's memory."""
    reserve_mib: int = Field(default=512, ge=0)
    """Free memory below which no sandbox is made."""
    default_idle_seconds: float = Field(default=60.0, gt=0)
    """Idle lease of a sandbox whose creator asked for none."""
    default_lifetime_seconds: float = Field(default=3600.0, gt=0)
    """Lifetime of a sandbox whose creator asked for none."""
    remote: RemoteOptions = RemoteOptions()
    state: StateOptions = StateOptions()
    optimistic: OptimisticOptions = OptimisticOptions()
