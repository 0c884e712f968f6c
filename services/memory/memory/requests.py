"""What callers ask of the memories; each request checks itself when it is made and raises InvalidArgument."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from memory import checks

MAX_INTENT_BYTES = 8 * 1024
MAX_EXPERIENCE_BYTES = 64 * 1024
MAX_CANDIDATES = 1000
DEFAULT_CANDIDATES = 10
DEFAULT_RETURNED = 3
DEFAULT_MIN_SIMILARITY = 0.5
"""Suits WordLlama: of intents picked at random from one domain, one pair in thirty is that alike (README)."""
DEFAULT_UTILITY_WEIGHT = 0.5
MAX_RETURNED = 100
"""Memories in one answer: at their largest they fit into one gRPC message of 8 MiB."""
MAX_UTILITY = 1e6
"""Of rewards and utilities, by amount: far from where sums overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remember:
    """A memory to add."""

    namespace: str
    intent: str
    experience: str
    utility: float = 0.0

    def __post_init__(self) -> None:
        """Check."""
        checks.name("namespace", self.namespace)
        checks.text("intent", self.intent, MAX_INTENT_BYTES)
        checks.text("experience", self.experience, MAX_EXPERIENCE_BYTES)
        checks.number("utility", self.utility, -MAX_UTILITY, MAX_UTILITY)

    @property
    def memory_id(self) -> str:
        """The id: derived, so that equal content in a namespace is one memory."""
        parts = (self.namespace, self.intent, self.experience)
        # No part holds NUL, so no two triples join alike.
        return "mem_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What is to be done, and how to choose."""

    namespace: str
    query: str
    max_candidate_count: int = DEFAULT_CANDIDATES
    """k1."""
    min_similarity: float = DEFAULT_MIN_SIMILARITY
    """delta."""
    utility_weight: float = DEFAULT_UTILITY_WEIGHT
    """lambda."""
    max_memory_count: int = DEFAULT_RETURNED
    """k2."""
    rollout_id: str = ""
    """Who uses what is returned; empty records nothing."""
    snapshot_name: str = ""
    """Empty means the memories as they are."""
    exploration_rate: float = 0.0
    """epsilon."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check."""
        checks.name("namespace", self.namespace)
        checks.text("query", self.query, MAX_INTENT_BYTES)
        checks.count("max_candidate_count", self.max_candidate_count, 1, MAX_CANDIDATES)
        checks.number("min_similarity", self.min_similarity, -1, 1)
        checks.number("utility_weight", self.utility_weight, 0, 1)
        checks.count("max_memory_count", self.max_memory_count, 1, MAX_RETURNED)
        checks.number("exploration.rate", self.exploration_rate, 0, 1)
        if self.snapshot_name:
            checks.name("snapshot_name", self.snapshot_name)
        if self.rollout_id:
            checks.name("rollout_id", self.rollout_id)
            if self.snapshot_name:
                found = "found one beside snapshot_name, and a snapshot learns nothing"
                raise checks.wrong("rollout_id", f"{found}; one of the two is right")

    @property
    def key(self) -> str:
        """Tells apart the recalls of one rollout."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """A reward for what a rollout recalled, or for memories named."""

    credit_id: str
    source: Literal["call", "event"] = "call"
    """Ids of callers and of events are told apart."""
    reward: float
    learning_rate: float | None = None
    """alpha; None means the memories' own."""
    discount: float = 0.0
    """gamma."""
    max_next_utility: float = 0.0
    """max Q'."""
    rollout_id: str = ""
    namespace: str = ""
    """Of memory_ids; only without a rollout_id."""
    memory_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check."""
        checks.name("credit_id", self.credit_id)
        checks.number("reward", self.reward, -MAX_UTILITY, MAX_UTILITY)
        if self.learning_rate is not None:
            checks.number("learning_rate", self.learning_rate, 0, 1)
        if self.learning_rate == 0:
            raise checks.wrong("learning_rate", "found 0; above 0 and at most 1 is right")
        checks.number("discount", self.discount, 0, 1)
        checks.number("max_next_utility", self.max_next_utility, -MAX_UTILITY, MAX_UTILITY)
        if self.rollout_id:
            checks.name("rollout_id", self.rollout_id)
            return
        checks.name("memories.namespace", self.namespace)
        checks.count("memories.memory_ids", len(self.memory_ids), 1, MAX_CANDIDATES)
        for memory_id in self.memory_ids:
            checks.name("memories.memory_ids", memory_id)
        if len(set(self.memory_ids)) < len(self.memory_ids):
            twice = next(i for i in self.memory_ids if self.memory_ids.count(i) > 1)
            raise checks.wrong("memories.memory_ids", f"found {twice} twice; each once is right")

    @property
    def digest(self) -> str:
        """Tells whether a repeated id repeats the credit."""
        return hashlib.sha256(repr(self).encode()).hexdigest()
