"""What the memories answer with."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Intent, experience and utility."""

    memory_id: str
    namespace: str
    intent: str
    experience: str
    utility: float
    recall_count: int
    """Recalls by rollouts that returned it."""
    credit_count: int
    """Credits that moved its utility."""
    create_time: datetime
    update_time: datetime
    """Of the last credit; create_time before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A memory that is there."""

    memory: Memory
    created: bool
    """False where it was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory and why it was chosen."""

    memory: Memory
    similarity: float
    """Cosine of query and intent."""
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """One memory's utility before and after a credit."""

    namespace: str
    memory_id: str
    previous_utility: float
    utility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of a namespace."""

    namespace: str
    snapshot_name: str
    memory_count: int
    create_time: datetime
    created: bool
    """False where it was made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPage:
    """Some memories of a scope, oldest first."""

    memories: tuple[Memory, ...]
    next_position: int
    """Where the next page begins; 0 on the last."""
