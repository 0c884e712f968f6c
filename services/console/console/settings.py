"""Settings of the console; environment prefix HONE_CONSOLE_."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class ConsoleSettings(ServiceSettings):
    """Where the console listens besides gRPC, and how long the stream keeps finished runs."""

    model_config = SettingsConfigDict(env_prefix="HONE_CONSOLE_", frozen=True, extra="ignore")

    otlp_port: int = Field(default=4317, ge=0, le=65535)
    """OTLP/gRPC port that spans are sent to; 0 takes any free one."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of the page and of the Jaeger-compatible API; 0 takes any free one."""
    seal_after_seconds: float = Field(default=3600.0, ge=0.0)
    """A completed run whose audit is clean leaves the event stream this long after its end; 0 keeps all runs there."""
