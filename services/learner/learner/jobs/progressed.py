"""Where a reinforcement run stands between steps; goes into every checkpoint."""

from dataclasses import dataclass, field
from typing import Any

from learner.ports import Restored
from learner.runs.checkpoints import RolledBack


@dataclass(slots=True, kw_only=True)
class Progressed:
    """Where the run stands between steps."""

    step: int
    version: int
    cursor: int
    """The log tells everything about the steps that are not trained yet after this position."""
    quarantined: list[str] = field(default_factory=list)
    planned: dict[str, list[str]] = field(default_factory=dict)
    """By step that is open: its tasks. Chosen before the steps ahead of it had put tasks into quarantine."""
    last: dict[str, Any] | None = None
    """The announcement of the step before, repeated after a restart."""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    """As `runs/checkpoints.py` writes them."""

    def checkpoint(self) -> Restored:
        """Returns what goes into a checkpoint."""
        state = {
            "cursor": self.cursor,
            "quarantined": list(self.quarantined),
            "planned": dict(self.planned),
            "last": self.last,
            "rollbacks": self.rollbacks,
        }
        return Restored(step=self.step, policy_version=self.version, state=state)

    @property
    def rolled_back(self) -> RolledBack | None:
        """That the weights of the next step came back, where no step was trained since."""
        found = [RolledBack(**entry) for entry in self.rollbacks]
        return found[-1] if found and found[-1].step == self.step else None

    @classmethod
    def from_checkpoint(cls, restored: Restored) -> "Progressed":
        """Reads a checkpoint, also one that was written before steps could be planned ahead."""
        return cls(step=restored.step, version=restored.policy_version, **restored.state)
