"""What a logger is, and what it knows of its run.

The file metrics.jsonl is what counts; a logger shows it elsewhere. A logger is therefore brought up to date from the
steps of that file whenever a run begins or goes on, and after a crash nothing is missing there or there twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.runs.store import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The run whose figures are logged."""

    run_id: str
    project: str
    settings: Mapping[str, str | int | float | bool]
    """What the run file says, by dotted name."""
    folder: Path
    """The run's own."""
    shared: Path
    """Where all runs of the learner keep what is one for all of them."""


class MetricsLogger(Protocol):
    """Takes figures elsewhere. Called on a thread of its own, one call at a time; may raise whatever it likes."""

    def begin(self, steps: Sequence[Step]) -> None:
        """Makes the log hold exactly these steps: those that the run has taken so far."""
        ...

    def step(self, step: Step) -> None:
        """Adds a step that comes after all before."""
        ...

    def end(self, state: str) -> None:
        """Closes the log: completed, stopped or failed."""
        ...
