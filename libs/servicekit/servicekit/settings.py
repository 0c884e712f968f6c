"""Settings that every service has; each service adds its own in one frozen class."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

SERVICES = (
    "learner",
    "rollout",
    "tool_gateway",
    "sandbox",
    "grader",
    "critic",
    "memory",
    "console",
)
"""Names of all services, in the order in which ports are given out."""

DEFAULT_PORT = 50051
"""The gRPC port in every pod."""


class ServiceSettings(BaseSettings):
    """What a process needs to know to be a service. Subclasses set `env_prefix`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", use_attribute_docstrings=True, cli_kebab_case=True
    )

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 in a pod."""
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    """gRPC port; 0 takes any free one."""
    data_dir: Path = Path(".hone/data")
    """Folder for this service's own state."""
    nats_url: str = "nats://127.0.0.1:4222"
    """Where the event log is."""
    otlp_endpoint: str = ""
    """host:port of an OTLP/gRPC collector (the console, Jaeger); empty exports nothing."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port on which Prometheus finds the metrics, 9464 in a pod; 0 serves none."""
    token_key_file: Path | None = None
    """Ed25519 keys of rollout tokens (PEM); needed by services that mint or check them."""
    endpoints_file: Path | None = None
    """JSON of service name to host:port, as written by `hone up`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    drain_seconds: float = Field(default=10.0, gt=0)
    """How long SIGTERM waits for work that has begun."""
    trace_sample_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of rollouts whose traces are kept; decided by the rollout_id alone, so all services agree."""
    max_message_bytes: int = Field(default=8 * 1024 * 1024, gt=0)
    """Largest gRPC message in either direction."""


def wrong_settings(service: str, error: ValueError) -> str:
    """Returns what is wrong with a service's settings, each by the name of its environment variable."""
    if not isinstance(error, ValidationError):
        return str(error)
    said = []
    for problem in error.errors():
        name = "__".join(str(part) for part in problem["loc"]).upper()
        said.append(f"HONE_{service.upper()}_{name}: {problem['msg']}; found {problem['input']!r}")
    return "\n".join(said)
