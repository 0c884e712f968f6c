"""What every kind of run is given."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.health.alarms import Alarm
from learner.ports import Stopped
from learner.rollouts.collect import Collector, Limits, Progress
from learner.rollouts.facts import RunLog
from learner.rollouts.ledger import RetryBudget, StepLedger
from learner.runs.store import Step
from runspec.schema import RunSpec
from servicekit.errors import FailedPrecondition, Unavailable


class Reporter(Protocol):
    """Where a job tells how it goes."""

    def progress(self, step: int, stage: str) -> Progress:
        """Returns a function that takes done and total counts of a stage."""
        ...

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Tells that a step is trained and saved."""
        ...

    def alarmed(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Tells of alarms that a step raised; told again, they stay one each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """A run's surroundings."""

    run_id: str
    spec: RunSpec
    log: RunLog
    report: Reporter
    stop: asyncio.Event
    folder: Path
    """The run's own folder."""
    monotonic: Callable[[], float]
    history: Callable[[], Sequence[Step]] = tuple
    """Reads the steps that are done and told."""
    life: int = 0
    """How often someone resumed the run."""
    retry_seconds: float = 2.0
    """Wait before the first retry after an infrastructure fault; each further one waits twice as long."""

    def check_stop(self) -> None:
        """Ends the job where it is safe.

        Raises:
            Stopped: someone asked for it.
        """
        if self.stop.is_set():
            raise Stopped

    def budget(self) -> RetryBudget:
        """Returns how often a slot may be tried again; someone who resumes a run grants the budgets anew."""
        retry, lives = self.spec.retry, self.life + 1
        return RetryBudget(infra=retry.infra_attempts * lives, data=retry.data_attempts * lives)

    def check_losses(self, ledger: StepLedger) -> None:
        """Refuses to go on with what is left when most of a step was lost to infrastructure.

        Raises:
            Unavailable: more than half of the slots are lost; the run can be resumed.
            FailedPrecondition: nothing was scored, through faults of the tasks.
        """
        failures = ledger.failures()
        if failures and not ledger.scored() and not ledger.lost_to_infrastructure():
            raise FailedPrecondition(
                f"none of {len(ledger.slots)} rollouts could be carried out, the last one: "
                f"{failures[-1].kind}: {failures[-1].detail}"
            )
        lost = ledger.lost_to_infrastructure()
        if len(lost) * 2 > len(ledger.slots):
            raise Unavailable(
                f"{len(lost)} of {len(ledger.slots)} rollouts were lost to infrastructure faults in every "
                f"attempt, the last one: {lost[-1].kind}: {lost[-1].detail}"
            )

    def collector(self) -> Collector:
        """Returns what fills the slots of this run."""
        limits = Limits(
            group_timeout_seconds=self.spec.retry.group_timeout.total_seconds(),
            min_group_size=self.spec.train.min_group_size,
            retry_seconds=self.retry_seconds,
        )
        return Collector(
            self.log,
            run_seed=self.spec.seed,
            limits=limits,
            monotonic=self.monotonic,
            stop=self.stop,
        )
