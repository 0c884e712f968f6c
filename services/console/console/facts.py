"""What the console needs to know of an event, as light rows without protobuf.

`convert` makes them from envelopes; the archive fills its listing columns from them and the audit reads
nothing else. Token ids, messages and other bulk stay in the stored bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trajectory.types import Phase, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequested:
    """The learner wants a slot filled."""

    task_id: str
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStarted:
    """A replica claimed the rollout."""

    owner: str
    sandbox_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished:
    """The agent stopped and its record is committed."""

    policy_versions: tuple[int, ...] | None
    """Versions that sampled its tokens, ascending; None where the record cannot be read."""
    sandbox_id: str = ""
    turn_count: int = 0
    tool_call_count: int = 0
    sampled_token_count: int = 0
    seconds: float = 0.0
    record_error: str = ""
    """Why the record cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFailed:
    """The attempt could not be carried out, or (source grader) not be graded."""

    kind: str
    retryable: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAssigned:
    """The grader judged the attempt."""

    grader_version: str
    outcome: str
    """scored or masked."""
    score: float | None = None
    kind: str = ""
    """Why a response did not succeed; empty for one that did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCreated:
    """An environment exists."""

    sandbox_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxDestroyed:
    """An environment is gone."""

    sandbox_id: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished:
    """Weights that rollouts may act with."""

    policy_version: int
    sha256: str = ""
    """Of the adapter; empty for the model alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run began."""

    algorithm: str
    max_staleness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanned:
    """Which slots a step will ask for."""

    phase: Phase
    step: int
    num_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained:
    """An optimiser update is done and its checkpoint is on disk."""

    step: int
    policy_version: int
    rollout_ids: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """A run ended: completed, stopped or failed."""

    end: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """A message that no consumer could handle."""

    consumer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFact:
    """Something that is kept and shown but that no listing and no rule reads."""


Fact = (
    RolloutRequested
    | RolloutStarted
    | RolloutFinished
    | RolloutFailed
    | RewardAssigned
    | SandboxCreated
    | SandboxDestroyed
    | PolicyPublished
    | RunStarted
    | StepPlanned
    | StepTrained
    | RunFinished
    | DeadLettered
    | OtherFact
)
"""What happened: exactly one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One event with its identity; rows come in the order of the stream."""

    sequence: int
    event_id: str
    type: str
    """Name of the payload field, for example rollout_failed."""
    create_time: datetime
    source: str
    """Service that told it."""
    run_id: str
    rollout_id: str = ""
    slot: Slot | None = None
    attempt: int = 0
    epoch: int = 0
    fact: Fact
    differences: tuple[str, ...] = ()
    """Of one that tells another fact than an earlier event of its id: what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedEvent:
    """An event as it is stored: the row, and the bytes that it came from."""

    row: LogRow
    envelope: bytes
    """The serialized envelope; an inline record is taken out and kept apart."""
    record: bytes | None = None
    """The serialized record of a finished event, wherever it lay."""
