"""What a rollout is asked to do, free of protobuf."""

import hashlib
from dataclasses import dataclass

from rollout.engines.base import ModelKey, PolicyKey
from trajectory.types import SamplingParams, Slot, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRef:
    """Where an adapter lies and how to know that it is whole."""

    bucket: str
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """How far the agent may go."""

    max_turns: int
    max_total_tokens: int
    """Prompt, sampled tokens and tool results of one row together; 0 means the model's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a rollout's tools work; empty for one without tools."""

    sandbox_id: str = ""
    isolation: str = ""
    """As the sandbox service says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """One attempt to fill a slot."""

    rollout_id: str
    slot: Slot
    attempt: int
    task: Task
    model: ModelKey
    policy: PolicyKey
    adapter: AdapterRef | None
    sampling: SamplingParams
    limits: AgentLimits
    tools: tuple[str, ...]
    tool_format: str
    system_prompt: str
    sandbox_template: str
    grader_json: str
    requested: float
    """Seconds since the epoch; the time budget runs from here to the deadline."""
    deadline: float
    """Seconds since the epoch; the rollout must have ended by then."""

    @property
    def run_id(self) -> str:
        """The run that asked."""
        return self.slot.run_id

    def turn_seed(self, turn: int) -> int | None:
        """Derives a seed of its own for each turn, so that no two turns draw alike."""
        if self.sampling.seed is None:
            return None
        digest = hashlib.blake2b(f"{self.sampling.seed}/{turn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")
