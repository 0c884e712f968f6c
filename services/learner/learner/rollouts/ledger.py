"""What became of every slot of one step, folded from the events of the log.

The log is the checkpoint: whoever folds the same events holds the same ledger, so a learner that was killed rebuilds
the step under way by reading again. This file knows no transport; `fold_*` take plain values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from trajectory.types import (
    Attribution,
    Failure,
    FailureKind,
    Masked,
    Outcome,
    RolloutRecord,
    Scored,
    Slot,
)

DATA_KINDS = frozenset({FailureKind.BAD_TASK, FailureKind.GRADER})
"""Kinds that speak of the task row; only they can put a task into quarantine."""

NO_SPREAD = 1e-6
"""Scores of a group that differ by no more than this are taken for equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """New attempts per slot, counted apart so that a sick cluster can be told from a sick data set."""

    infra: int
    data: int


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One rollout that was asked for in a slot."""

    rollout_id: str
    attempt: int
    record: RolloutRecord | None = None
    outcome: Outcome | None = None
    judged_in: object | None = None
    """The trace context of the event that ended the attempt, for the span that continues it."""


@dataclass(slots=True, kw_only=True)
class SlotState:
    """All attempts of one slot, oldest first."""

    slot: Slot
    task_id: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def current(self) -> Attempt | None:
        """The attempt that alone may fill the slot."""
        return self.attempts[-1] if self.attempts else None

    @property
    def outcome(self) -> Outcome | None:
        """How the current attempt ended; None while it is open."""
        return self.current.outcome if self.current else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An attempt that should be requested next."""

    slot: Slot
    task_id: str
    attempt: int


class StepLedger:
    """The slots of one step and what the log says of them."""

    def __init__(
        self,
        slots: Mapping[Slot, str],
        budget: RetryBudget,
        *,
        reserve: Mapping[Slot, str] | None = None,
        versions: range | None = None,
        by_turn: bool = False,
    ) -> None:
        """Starts with every slot (and its task_id) unrequested.

        The groups of `reserve`, whose indices follow on, join in order: one for each group that closes without spread.
        An attempt counts only if every token of it was sampled by one of the policy `versions`; None means by any.
        `by_turn` says that members learn from the rewards of their turns, and not from the score alone.
        """
        self._budget = budget
        self.slots = _states(slots)
        self._reserve = _by_group(_states(reserve or {}).values())
        self._silent: set[int] = set()
        self._by_rollout: dict[str, tuple[SlotState, Attempt]] = {}
        self._pending_outcomes: dict[str, tuple[Outcome, object | None]] = {}
        self.late_ignored = 0
        self.resampled_groups = 0
        """Groups of the reserve that joined."""
        self._versions = versions
        self._by_turn = by_turn
        self.too_stale = 0
        """Attempts that were scored and do not count, because an older policy acted than may be learned from."""
        self.unknown_version = 0
        """The same for a newer policy than there will be when the step is trained."""

    def fold_requested(self, slot: Slot, rollout_id: str, attempt: int) -> None:
        """An attempt was requested; repeats of the same event change nothing."""
        if slot not in self.slots:
            # Another life saw groups without spread and asked for more.
            joining = (
                n
                for n, group in enumerate(self._reserve, 1)
                if group[0].slot.group_index == slot.group_index
            )
            self._join_reserve(next(joining, 0))
        state = self.slots.get(slot)
        if state is None or rollout_id in self._by_rollout:
            return
        if attempt != len(state.attempts):
            self.late_ignored += 1
            return
        made = Attempt(rollout_id=rollout_id, attempt=attempt)
        state.attempts.append(made)
        self._by_rollout[rollout_id] = (state, made)

    def fold_finished(self, rollout_id: str, record: RolloutRecord) -> None:
        """The agent of an attempt stopped; its record waits for the judgement."""
        known = self._by_rollout.get(rollout_id)
        if known is not None and known[1].record is None:
            known[1].record = record
            pending = self._pending_outcomes.pop(rollout_id, None)
            if pending is not None:
                self.fold_outcome(rollout_id, *pending)

    def fold_outcome(
        self, rollout_id: str, outcome: Outcome, context: object | None = None
    ) -> None:
        """An attempt ended. The first end counts; an old attempt's end is recorded and ignored."""
        known = self._by_rollout.get(rollout_id)
        if known is None:
            return
        state, attempt = known
        if attempt.outcome is not None or state.current is not attempt:
            self.late_ignored += 1
            return
        if isinstance(outcome, Scored | Masked) and attempt.record is None:
            # A judgement can overtake the record only within one fetch; it counts once the record is there.
            self._pending_outcomes[rollout_id] = (outcome, context)
            return
        if isinstance(outcome, Scored) and attempt.record is not None:
            outcome = self._refused(attempt.record) or outcome
        attempt.outcome = outcome
        attempt.judged_in = context
        if self._reserve:
            self._replace_if_silent(state.slot.group_index)

    def _refused(self, record: RolloutRecord) -> Failure | None:
        """Returns a failure of ours where the policy that acted does not count; the slot is tried again."""
        acted = {span.policy_version for row in record.tokens.rows for span in row.spans}
        odd = sorted(acted - set(self._versions)) if self._versions is not None else []
        if self._versions is None or not odd:
            return None
        if odd[0] < self._versions.start:
            self.too_stale += 1
        else:
            self.unknown_version += 1
        return Failure(
            kind=FailureKind.INTERNAL,
            retryable=True,
            attributable=Attribution.INFRA,
            detail=f"policy version {odd[0]} acted; {self._versions.start} to {self._versions[-1]} count",
        )

    def _replace_if_silent(self, group_index: int) -> None:
        group = [s for s in self.slots.values() if s.slot.group_index == group_index]
        if all(self.is_closed(state) for state in group) and self.is_silent(group):
            self._silent.add(group_index)
            self._join_reserve(len(self._silent))

    def _join_reserve(self, count: int) -> None:
        """Lets groups of the reserve join until there are `count` of them, or none is left."""
        for group in self._reserve[self.resampled_groups : count]:
            self.slots.update({state.slot: state for state in group})
            self.resampled_groups += 1

    def is_silent(self, group: Iterable[SlotState]) -> bool:
        """Says whether a group was scored and carries no signal."""
        return is_silent(group, by_turn=self._by_turn)

    def wanted(self) -> list[Wanted]:
        """Returns the attempts to request now: first ones, and retries that the budgets allow."""
        found = []
        for slot, state in self.slots.items():
            current = state.current
            if current is None or self._may_retry(state):
                attempt = 0 if current is None else current.attempt + 1
                found.append(Wanted(slot=slot, task_id=state.task_id, attempt=attempt))
        return found

    def _may_retry(self, state: SlotState) -> bool:
        if not isinstance(state.outcome, Failure) or not state.outcome.retryable:
            return False
        failures = [a.outcome for a in state.attempts if isinstance(a.outcome, Failure)]
        data = sum(1 for f in failures if f.attributable is Attribution.CLIENT)
        infra = len(failures) - data
        if state.outcome.attributable is Attribution.CLIENT:
            return data <= self._budget.data
        return infra <= self._budget.infra

    def is_closed(self, state: SlotState) -> bool:
        """Says whether nothing more will happen in the slot."""
        return state.outcome is not None and not self._may_retry(state)

    @property
    def closed(self) -> bool:
        """Whether every slot is final."""
        return all(self.is_closed(state) for state in self.slots.values())

    @property
    def closed_count(self) -> int:
        """How many slots are final."""
        return sum(self.is_closed(state) for state in self.slots.values())

    @property
    def in_flight(self) -> list[Attempt]:
        """Current attempts whose end the log does not tell yet."""
        states = self.slots.values()
        return [s.current for s in states if s.current is not None and s.outcome is None]

    def groups(self) -> list[list[SlotState]]:
        """Returns the slots by group, in order."""
        return _by_group(self.slots.values())

    def scored(self) -> list[tuple[SlotState, Attempt, Scored]]:
        """Returns the slots that were scored, with the attempt that fills each."""
        return [
            (state, state.current, state.current.outcome)
            for state in self.slots.values()
            if state.current is not None and isinstance(state.current.outcome, Scored)
        ]

    def failures(self) -> list[Failure]:
        """Returns every failed attempt's failure, retried or not."""
        return [
            attempt.outcome
            for state in self.slots.values()
            for attempt in state.attempts
            if isinstance(attempt.outcome, Failure)
        ]

    def lost_to_infrastructure(self) -> list[Failure]:
        """Returns the last failure of every slot that infrastructure faults closed."""
        return [
            state.outcome
            for state in self.slots.values()
            if isinstance(state.outcome, Failure)
            and state.outcome.attributable is Attribution.INFRA
            and self.is_closed(state)
        ]

    def poison_tasks(self) -> dict[str, FailureKind]:
        """Returns tasks that failed in the same way in every attempt of every slot, with that way.

        Only failures of the data count, with all attempts spent: a sick cluster must not quarantine good tasks.
        """
        by_task: dict[str, list[SlotState]] = {}
        for state in self.slots.values():
            by_task.setdefault(state.task_id, []).append(state)
        return {
            task: kinds.pop()
            for task, states in by_task.items()
            if all(self.is_closed(state) for state in states)
            and len(kinds := _data_failure_kinds(states)) == 1
        }


def is_silent(group: Iterable[SlotState], *, by_turn: bool = False) -> bool:
    """Says whether a group was scored and its scores do not differ, nor, `by_turn`, what its members earned in any."""
    earned = [
        _earned(state.outcome, by_turn=by_turn)
        for state in group
        if isinstance(state.outcome, Scored)
    ]
    turns = zip_longest(*earned, fillvalue=0.0)
    return len(earned) >= 2 and all(max(turn) - min(turn) <= NO_SPREAD for turn in turns)


def _earned(outcome: Scored, *, by_turn: bool) -> list[float]:
    """Returns the rewards by turn; what the score has beyond them belongs to the last."""
    before = outcome.step_rewards[:-1] if by_turn else ()
    return [*before, outcome.score - sum(before)]


def _states(slots: Mapping[Slot, str]) -> dict[Slot, SlotState]:
    return {slot: SlotState(slot=slot, task_id=task) for slot, task in slots.items()}


def _by_group(states: Iterable[SlotState]) -> list[list[SlotState]]:
    by_group: dict[int, list[SlotState]] = {}
    for state in states:
        by_group.setdefault(state.slot.group_index, []).append(state)
    return [
        sorted(by_group[index], key=lambda state: state.slot.sample_index)
        for index in sorted(by_group)
    ]


def _data_failure_kinds(states: Iterable[SlotState]) -> set[FailureKind]:
    """Returns the kinds if every attempt failed through the data, else the empty set."""
    outcomes = [attempt.outcome for state in states for attempt in state.attempts]
    failures = [o for o in outcomes if isinstance(o, Failure)]
    if len(failures) != len(outcomes) or not failures:
        return set()
    if any(f.attributable is not Attribution.CLIENT or f.kind not in DATA_KINDS for f in failures):
        return set()
    return {f.kind for f in failures}
