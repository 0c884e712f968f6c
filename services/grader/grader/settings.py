"""Settings of the grader; environment prefix HONE_GRADER_."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from grader.clients.addresses import check_allow
from servicekit.settings import ServiceSettings


class GraderSettings(ServiceSettings):
    """How the grader grades and how long it tries."""

    model_config = SettingsConfigDict(env_prefix="HONE_GRADER_", frozen=True, extra="ignore")

    max_in_flight: int = Field(default=16, ge=1, le=1024)
    """Rollouts that are graded at once in this process."""
    grade_patience_seconds: float = Field(default=600.0, ge=0, le=14400)
    """How long a record is graded again while something that it needs is away, since its rollout.finished was told;
    then rollout.failed of kind grader is told. The log redelivers an event 1,000 times."""
    max_grade_tries: int = Field(default=5, ge=1)
    """Tries that a record gets even past its patience, and all that it gets where grading itself breaks."""
    retry_delay_seconds: float = Field(default=2.0, gt=0)
    """Before a record is graded again the first time; doubles with each try, up to 30 s."""
    symbolic_timeout_seconds: float = Field(default=3.0, gt=0, le=60)
    """For one comparison of formulas; then the answer counts as not readable."""
    symbolic_workers: int = Field(default=2, ge=1, le=64)
    """Comparisons of formulas at once that exact arithmetic cannot decide; a process of about 80 MB each."""
    lease_renew_seconds: float = Field(default=15.0, gt=0)
    """The agent's sandbox is kept alive every this many seconds while its rollout is being graded."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """How long each renewal keeps the sandbox."""
    function_workers: int = Field(default=2, ge=1, le=64)
    """Reward functions of installed packages that run at once, each in a process of its own."""
    endpoint_allow: tuple[str, ...] = ("loopback", "public")
    """Which endpoint graders may be called: loopback, public, private, networks (10.2.0.0/16), host names and patterns
    (*.graders.svc.cluster.local); as JSON in the environment."""
    endpoint_secrets_dir: Path | None = None
    """Folder of the keys that sign what endpoint graders are asked; a definition names a file in it."""

    @field_validator("endpoint_allow")
    @classmethod
    def _known_allow(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        check_allow(allow)
        return allow
