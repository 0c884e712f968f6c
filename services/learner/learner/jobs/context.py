"""What every kind of run is given."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.collect import Collector, Limits, Progress
from learner.facts import RunLog
from learner.ledger import RetryBudget
from learner.ports import Stopped
from runspec.schema import RunSpec
from trajectory.types import Task


class Reporter(Protocol):
    """Where a job tells how it goes."""

    def progress(self, step: int, stage: str) -> Progress:
        """Returns a function that takes done and total counts of a stage."""
        ...

    def step_done(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """Tells that a step is trained and saved."""
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

    def check_stop(self) -> None:
        """Ends the job where it is safe.

        Raises:
            Stopped: someone asked for it.
        """
        if self.stop.is_set():
            raise Stopped

    def budget(self) -> RetryBudget:
        """Returns how often a slot may be tried again."""
        return RetryBudget(infra=self.spec.retry.infra_attempts, data=self.spec.retry.data_attempts)

    def collector(self, tasks: Mapping[str, Task]) -> Collector:
        """Returns what fills slots of these tasks."""
        limits = Limits(
            group_timeout_seconds=self.spec.retry.group_timeout.total_seconds(),
            min_group_size=self.spec.train.min_group_size,
        )
        return Collector(
            self.log,
            tasks=tasks,
            run_seed=self.spec.seed,
            limits=limits,
            monotonic=self.monotonic,
            stop=self.stop,
        )
