"""One rollout as the page and the servicer show it."""

from dataclasses import dataclass
from datetime import datetime

from console.archive_reader import RolloutEntry
from console.span_tree import SpanTree
from trajectory.types import Outcome, RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """An event of the rollout in a line."""

    time: datetime
    type: str
    source: str
    epoch: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One rollout whole."""

    entry: RolloutEntry
    record: RolloutRecord | None
    record_problem: str
    """Why there is no record; empty if there is one, or none is due yet."""
    outcome: Outcome | None
    grader_version: str
    timeline: tuple[TimelineEntry, ...]
    tree: SpanTree
