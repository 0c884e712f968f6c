"""Settings of the grader; environment prefix HONE_GRADER_."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from servicekit.settings import ServiceSettings


class GraderSettings(ServiceSettings):
    """How the grader grades and how long it tries."""

    model_config = SettingsConfigDict(env_prefix="HONE_GRADER_", frozen=True, extra="ignore")

    max_in_flight: int = Field(default=16, ge=1, le=1024)
    """Rollouts that are graded at once in this process."""
    max_grade_tries: int = Field(default=5, ge=1)
    """Tries of one record before rollout.failed of kind grader is told."""
    retry_delay_seconds: float = Field(default=2.0, gt=0)
    """Before a record is graded again after a fault of ours; times the number of tries so far."""
    symbolic_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """For one comparison of formulas; then the answer counts as not readable."""
    lease_renew_seconds: float = Field(default=15.0, gt=0)
    """The agent's sandbox is kept alive every this many seconds while its rollout is being graded."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """How long each renewal keeps the sandbox."""
