"""Settings of the sandbox service; environment prefix HONE_SANDBOX_."""

import os
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class SandboxSettings(ServiceSettings):
    """What the sandbox service needs to know. `token_key_file` is required: every call is checked."""

    model_config = SettingsConfigDict(env_prefix="HONE_SANDBOX_", frozen=True, extra="ignore")

    backend: Literal["local"] = "local"
    """Which backend makes the sandboxes."""
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
