"""What the log tells the run controller, free of protobuf."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.rollouts.ledger import Wanted
from learner.runs.checkpoints import RolledBack
from trajectory.types import Outcome, RolloutRecord, Slot, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """An attempt was asked for."""

    sequence: int
    slot: Slot
    rollout_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The agent of an attempt stopped."""

    sequence: int
    rollout_id: str
    record: RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt was judged, or failed."""

    sequence: int
    rollout_id: str
    outcome: Outcome
    context: object
    """Trace context of the event."""


Fact = Requested | Finished | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Weights that rollouts may act with; `adapter` is an opaque reference to the stored blob.

    The blob holds an adapter, or with full weights a whole model.
    """

    version: int
    adapter: object | None


class RunLog(Protocol):
    """The run controller's view of the event log of one run."""

    async def request(self, wanted: Wanted, task: Task, policy: Policy, seed: int) -> str:
        """Asks for an attempt and returns its new rollout_id."""
        ...

    async def has_room(self) -> bool:
        """Says whether the log takes further work; beyond its admission limit it only takes results."""
        ...

    async def abandon(self, slot: Slot, rollout_id: str, attempt: int, reason: str) -> None:
        """Ends an attempt that nobody will wait for any longer."""
        ...

    async def store_adapter(self, version: int, folder: Path) -> object:
        """Puts an adapter or a whole model into the object store and returns its reference."""
        ...

    async def publish_policy(self, policy: Policy) -> None:
        """Tells that a version serves from now on."""
        ...

    def facts(self, after_sequence: int, *, follow: bool) -> AsyncGenerator[Fact, None]:
        """Yields what the log tells of this run after a position, in order.

        Raises:
            LogGone: the log no longer reaches back that far.
        """
        ...

    async def started(self) -> int:
        """Tells that the run began; returns the position of the event."""
        ...

    async def planned(self, phase: str, step: int, task_ids: Sequence[str], group: int) -> None:
        """Tells which tasks a step samples."""
        ...

    async def trained(
        self, step: int, version: int, rollout_ids: Sequence[str], metrics: Mapping[str, float]
    ) -> None:
        """Tells that an update is done and saved."""
        ...

    async def rolled_back(self, rolled: RolledBack) -> None:
        """Tells that the weights of an earlier version are the run's again."""
        ...

    async def finished(
        self, end: str, detail: str, metrics: Mapping[str, float], life: int
    ) -> None:
        """Tells how the run ended: completed, stopped or failed; each life of a run ends once."""
        ...
