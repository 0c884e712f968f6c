"""What the run controller needs of the training core: `workers/torch_core.py` has it over torch, tests over nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runspec.preferences import PreferenceRow
from runspec.sft_rows import SftRow
from trajectory.types import TokenRow, ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """One scored member of a group: its rows (forks are further rows) and its episode score."""

    rollout_id: str
    rows: tuple[TokenRow, ...]
    score: float
    turn_rewards: tuple[float, ...] = ()
    """By turn, from 0, where the grader rewards turns; what the score has beyond them belongs to the last token."""
    truncated: bool = False
    """It ran out of turns, tokens or time, rather than end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where a checkpoint stands, and what the controller had put beside the weights."""

    step: int
    policy_version: int
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowData:
    """Rows that the core reads: to learn from without rollouts, and to watch."""

    conversations: Sequence[SftRow] = ()
    """To imitate."""
    pairs: Sequence[PreferenceRow] = ()
    """To compare."""
    held_out: Sequence[PreferenceRow] = ()
    """To measure on."""
    off_task: Sequence[SftRow] = ()
    """Of which the likelihood is watched."""
    tools: Mapping[str, ToolDefinition] = field(default_factory=dict)
    """Those that the run file names, for rows that bring none."""


class Stopped(Exception):
    """Someone asked the run to stop; what is saved stays and can be resumed."""


class LogGone(Exception):
    """The log no longer reaches back to the position that was asked for."""

    def __init__(self, restart_after: int) -> None:
        """Says after which position it can be read."""
        super().__init__(f"the event log can be read only after position {restart_after}")
        self.restart_after = restart_after


class TrainingCore(Protocol):
    """Weights, optimiser and checkpoints. Every method runs on one worker thread and may take long."""

    async def restore(self) -> Restored | None:
        """Loads the newest whole checkpoint, if there is one."""
        ...

    async def rollout_step(
        self, groups: Sequence[Sequence[ScoredRollout]], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Updates the policy by one batch of groups.

        Raises:
            NonFiniteStep: loss or gradient is not finite; the weights are unchanged.
        """
        ...

    async def sft_step(
        self, rows: Sequence[int], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Updates the policy by the supervised rows at these indices."""
        ...

    async def preference_step(
        self, rows: Sequence[int], progress: Callable[[int, int], None]
    ) -> dict[str, float]:
        """Updates the policy by the pairs at these indices."""
        ...

    async def measure(self, progress: Callable[[int, int], None]) -> dict[str, float]:
        """Returns figures of the held-out pairs."""
        ...

    async def off_task(self, progress: Callable[[int, int], None]) -> float:
        """Returns the mean log-probability of the off-task rows under the policy, in nats a token."""
        ...

    async def save(self, restored: Restored) -> None:
        """Writes a checkpoint, whole or not at all."""
        ...

    async def export(self, folder: Path) -> None:
        """Writes what the run made as others open it: an adapter, a whole model, or a reward model."""
        ...

    def interrupt(self) -> None:
        """Lets the update under way end at its next safe point by raising Stopped; weights stay as they were."""
        ...

    async def close(self) -> None:
        """Waits for the worker and frees the weights."""
        ...
