"""Hands the facts of the log to the steps that they belong to, in whatever order steps are opened.

After a restart the log tells of steps that the job opens only later; what it tells of them waits until then.
"""

from learner.rollouts.facts import Ended, Fact, Finished, Requested
from learner.rollouts.ledger import StepLedger
from trajectory.types import Phase

StepKey = tuple[Phase, int]
"""A step is told apart from the evaluation at the same step."""


class Inbox:
    """The facts of one run by step; knows no log."""

    def __init__(self, position: int, *, first_step: int) -> None:
        """Starts after a log position; facts of steps before `first_step` are late and change nothing."""
        self.position = position
        """Log position up to which facts were taken."""
        self._first_step = first_step
        self._ledgers: dict[StepKey, StepLedger] = {}
        self._waiting: dict[StepKey, list[Fact]] = {}
        self._closed: set[StepKey] = set()
        self._key_of: dict[str, StepKey] = {}

    def take(self, fact: Fact) -> None:
        """Adds one fact to the ledger of its step, or keeps it until the step is opened."""
        self.position = max(self.position, fact.sequence)
        if isinstance(fact, Requested):
            key = (fact.slot.phase, fact.slot.step)
            if key in self._closed or fact.slot.step < self._first_step:
                return
            self._key_of[fact.rollout_id] = key
        found = self._key_of.get(fact.rollout_id)
        if found is None:
            return
        if found in self._ledgers:
            fold(self._ledgers[found], fact)
        else:
            self._waiting.setdefault(found, []).append(fact)

    def open(self, key: StepKey, ledger: StepLedger) -> int:
        """Folds what waited for the step; returns a position after which the log tells all of it."""
        waiting = self._waiting.pop(key, [])
        for fact in waiting:
            fold(ledger, fact)
        self._ledgers[key] = ledger
        return waiting[0].sequence - 1 if waiting else self.position

    def close(self, key: StepKey) -> None:
        """Forgets a step whose slots are final; what comes of it after that is late."""
        ledger = self._ledgers.pop(key)
        self._closed.add(key)
        for state in ledger.slots.values():
            for attempt in state.attempts:
                self._key_of.pop(attempt.rollout_id, None)


def fold(ledger: StepLedger, fact: Fact) -> None:
    """Adds one fact to a ledger."""
    match fact:
        case Requested():
            ledger.fold_requested(fact.slot, fact.rollout_id, fact.attempt)
        case Finished():
            ledger.fold_finished(fact.rollout_id, fact.record)
        case Ended():
            ledger.fold_outcome(fact.rollout_id, fact.outcome, fact.context)
