"""Settings of the sandbox service; environment prefix HONE_SANDBOX_."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class SandboxSettings(ServiceSettings):
    """What the sandbox service needs to know. `token_key_file` is required: every call is checked."""

    model_config = SettingsConfigDict(env_prefix="HONE_SANDBOX_", frozen=True, extra="ignore")

    backend: Literal["local"] = "local"
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
