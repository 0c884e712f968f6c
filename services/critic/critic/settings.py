"""Settings of the critic; environment prefix HONE_CRITIC_."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class CriticSettings(ServiceSettings):
    """Where the judge is and how it is asked."""

    model_config = SettingsConfigDict(env_prefix="HONE_CRITIC_", frozen=True, extra="ignore")

    endpoint_url: str = ""
    """Base URL of an OpenAI-compatible endpoint, for example http://127.0.0.1:8000/v1; empty: nothing can be judged."""
    model: str = ""
    """For questions that name none."""
    api_key_file: Path | None = None
    """File with the endpoint's key, read for every question; unset sends the word none."""
    max_in_flight: int = Field(default=16, ge=1, le=4096)
    """Questions that the endpoint is asked at once by this process."""
    max_waiting: int = Field(default=4096, ge=0)
    """Questions that wait for their turn; further ones are turned away."""
    max_tries: int = Field(default=4, ge=1, le=20)
    """Tries of one question, as far as its deadline allows."""
    default_timeout_seconds: float = Field(default=60.0, gt=0)
    """For calls without a deadline."""
    default_max_tokens: int = Field(default=1024, ge=1)
    """For questions that say none, thinking included."""

    @field_validator("endpoint_url")
    @classmethod
    def _without_slash(cls, value: str) -> str:
        # Whether it is a URL is the endpoint's to say: an error from here would quote a secret in it.
        return value.rstrip("/")
