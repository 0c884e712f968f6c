"""Settings of the memory service; environment prefix HONE_MEMORY_."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class MemorySettings(ServiceSettings):
    """How memories learn, and how many are searched from RAM."""

    model_config = SettingsConfigDict(env_prefix="HONE_MEMORY_", frozen=True, extra="ignore")

    learning_rate: float = Field(default=0.3, gt=0, le=1)
    """alpha of credits that say none, those of reward.assigned among them."""
    max_loaded_memories: int = Field(default=2_000_000, ge=1)
    """Vectors kept in RAM, 1 KiB each; beyond them the namespace or snapshot that was used longest ago is left out."""
