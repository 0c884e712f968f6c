"""The index of a run's log that the audit's rules read: attempts, slots, training, weights, sandboxes.

Built in one pass in the order of the stream. Each entry keeps its stream sequence, so that rules can ask what
was known when something happened. Holds no rule itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from console.facts import (
    DeadLettered,
    LogRow,
    PolicyPublished,
    RewardAssigned,
    RolloutFailed,
    RolloutFinished,
    RolloutRequested,
    RolloutStarted,
    RunFinished,
    RunStarted,
    SandboxCreated,
    SandboxDestroyed,
    StepPlanned,
    StepTrained,
)
from trajectory.types import Slot

GRADER = "grader"
"""Source of judgements, and of failures to judge."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """How the rollout service ended an attempt."""

    sequence: int
    epoch: int
    newest_epoch: int
    """Newest epoch that the log knew for the rollout when this was told."""
    fact: RolloutFinished | RolloutFailed


@dataclass(slots=True, kw_only=True)
class Judgement:
    """What the grader said of an attempt."""

    sequence: int
    fact: RewardAssigned | RolloutFailed


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Everything that the log says of one rollout_id."""

    rollout_id: str
    slot: Slot | None = None
    attempt: int = 0
    request_sequence: int | None = None
    requested_version: int = 0
    newest_epoch: int = 0
    start_owners: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    sandboxes_before_finish: list[str] = field(default_factory=list)

    @property
    def finishes(self) -> list[Ending]:
        """Its finished events."""
        return [e for e in self.endings if isinstance(e.fact, RolloutFinished)]

    @property
    def rewards(self) -> list[tuple[int, RewardAssigned]]:
        """Its rewards with their sequences."""
        return [(j.sequence, j.fact) for j in self.judgements if isinstance(j.fact, RewardAssigned)]

    @property
    def failures(self) -> list[tuple[int, RolloutFailed]]:
        """Its failures, of acting and of grading, with their sequences."""
        told: list[Ending | Judgement] = [*self.endings, *self.judgements]
        return [(t.sequence, t.fact) for t in told if isinstance(t.fact, RolloutFailed)]

    @property
    def outcome(self) -> str:
        """Returns scored, masked, failed or open."""
        if self.failures:
            return "failed"
        rewards = self.rewards
        return rewards[-1][1].outcome if rewards else "open"

    @property
    def end_sequence(self) -> int | None:
        """When the log first knew a final outcome."""
        known = [s for s, _ in self.rewards] + [s for s, _ in self.failures]
        return min(known) if known else None


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """One environment from creation to destruction."""

    sandbox_id: str
    rollout_id: str = ""
    num_created: int = 0
    num_destroyed: int = 0


@dataclass(slots=True, kw_only=True)
class RunLog:
    """A run's log, indexed."""

    num_events: int = 0
    last_sequence: int = 0
    started: RunStarted | None = None
    end: str = ""
    """completed, stopped or failed; empty while the run is active."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    slots: dict[Slot, list[Attempt]] = field(default_factory=dict)
    """Attempts of each requested slot, in the order of their requests."""
    planned: list[StepPlanned] = field(default_factory=list)
    trained: list[tuple[int, StepTrained]] = field(default_factory=list)
    published: list[tuple[int, PolicyPublished]] = field(default_factory=list)
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    num_dead_lettered: int = 0
    conflicts: list[LogRow] = field(default_factory=list)
    """Events that tell another fact than an earlier one of their id; they are indexed like all others as well."""

    def current(self, slot: Slot) -> Attempt:
        """Returns the attempt of a slot that counts: the highest."""
        return max(self.slots[slot], key=lambda a: a.attempt)


def index_log(rows: Iterable[LogRow]) -> RunLog:
    """Reads a run's events, in the order of the stream, into an index."""
    log = RunLog()
    for row in rows:
        log.num_events += 1
        log.last_sequence = max(log.last_sequence, row.sequence)
        if row.differences:
            log.conflicts.append(row)
        _index_run(log, row)
        _index_sandbox(log, row)
        if row.rollout_id:
            _index_attempt(log, row)
    return log


def _index_run(log: RunLog, row: LogRow) -> None:
    match row.fact:
        case RunStarted() as fact:
            log.started = fact
        case StepPlanned() as fact:
            log.planned.append(fact)
            log.end = ""
        case StepTrained() as fact:
            log.trained.append((row.sequence, fact))
            log.end = ""
        case RolloutRequested():
            # A run that was stopped and resumed is active again.
            log.end = ""
        case PolicyPublished() as fact:
            log.published.append((row.sequence, fact))
        case RunFinished() as fact:
            log.end = fact.end
        case DeadLettered():
            log.num_dead_lettered += 1
        case _:
            pass


def _index_sandbox(log: RunLog, row: LogRow) -> None:
    match row.fact:
        case SandboxCreated(sandbox_id=sandbox_id):
            box = log.sandboxes.setdefault(sandbox_id, Sandbox(sandbox_id=sandbox_id))
            box.rollout_id = row.rollout_id
            box.num_created += 1
        case SandboxDestroyed(sandbox_id=sandbox_id):
            log.sandboxes.setdefault(sandbox_id, Sandbox(sandbox_id=sandbox_id)).num_destroyed += 1
        case _:
            pass


def _index_attempt(log: RunLog, row: LogRow) -> None:
    attempt = log.attempts.setdefault(row.rollout_id, Attempt(rollout_id=row.rollout_id))
    match row.fact:
        case RolloutRequested() as fact if attempt.request_sequence is None:
            attempt.slot, attempt.attempt = row.slot, row.attempt
            attempt.request_sequence = row.sequence
            attempt.requested_version = fact.policy_version
            if row.slot is not None:
                log.slots.setdefault(row.slot, []).append(attempt)
        case RolloutStarted() as fact:
            attempt.start_owners.append(fact.owner)
        case RolloutFailed() as fact if row.source == GRADER:
            attempt.judgements.append(Judgement(sequence=row.sequence, fact=fact))
        case RolloutFinished() | RolloutFailed() as fact:
            ending = Ending(
                sequence=row.sequence,
                epoch=row.epoch,
                newest_epoch=attempt.newest_epoch,
                fact=fact,
            )
            attempt.endings.append(ending)
        case RewardAssigned() as fact:
            attempt.judgements.append(Judgement(sequence=row.sequence, fact=fact))
        case SandboxCreated(sandbox_id=sandbox_id) if not attempt.finishes:
            # Graders work in boxes of their own, and only once the agent has finished.
            attempt.sandboxes_before_finish.append(sandbox_id)
        case _:
            pass
    attempt.newest_epoch = max(attempt.newest_epoch, row.epoch)
