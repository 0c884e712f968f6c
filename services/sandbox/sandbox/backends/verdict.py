"""What became of something that holds one sandbox (a pod, a runtime's process); if it is dead, whose doing that was."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where it is."""

    STARTING = "starting"
    READY = "ready"
    UNSCHEDULABLE = "unschedulable"
    """No node has room at present."""
    NO_IMAGE = "no_image"
    """Its image cannot be had, or is not valid."""
    OOM_KILLED = "oom_killed"
    """Its memory ran out: the workload's doing."""
    OVER_DISK = "over_disk"
    """Evicted for what it wrote: the workload's doing."""
    BROKEN = "broken"
    """Wrecked by its commands."""
    LOST = "lost"
    """Anything else that ends it: ours."""


BY_WORKLOAD = frozenset({State.OOM_KILLED, State.OVER_DISK, State.BROKEN})
DEAD = BY_WORKLOAD | {State.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A state and why."""

    state: State
    text: str = ""
