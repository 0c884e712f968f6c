"""Settings of the tool gateway; environment prefix HONE_TOOL_GATEWAY_."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class ToolGatewaySettings(ServiceSettings):
    """How long tools may run and how much is remembered."""

    model_config = SettingsConfigDict(env_prefix="HONE_TOOL_GATEWAY_", frozen=True, extra="ignore")

    max_tool_seconds: float = Field(default=60.0, gt=0)
    """For one call, whatever the caller allows."""
    max_remembered_rollouts: int = Field(default=4096, ge=1)
    """Rollouts whose results are kept for repeated calls."""
    max_remembered_calls: int = Field(default=256, ge=1)
    """Results that are kept per rollout."""
    max_waiting_events: int = Field(default=10_000, ge=1)
    """tool.called events that may wait for the event log; more are dropped and counted in the log."""
