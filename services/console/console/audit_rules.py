"""The audit's rules by name; each reads the index of a log and yields what violates it.

To add one: write a function `RunLog -> Iterator[Violation]`, put it into `RULES`, and add to the tests a log
that violates it and nothing else.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from console.audit_log import Attempt, RunLog
from console.facts import RolloutFinished
from console.wording import step_number
from trajectory.types import Phase, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What is wrong, with the ids."""

    detail: str
    rollout_ids: tuple[str, ...] = ()


def _name(slot: Slot) -> str:
    """phase/step/group/sample, each as the log has it: from 0."""
    return f"{slot.phase.value}/{slot.step}/{slot.group_index}/{slot.sample_index}"


def _slot_without_outcome(log: RunLog) -> Iterator[Violation]:
    if log.end != "completed":
        return
    for slot in log.slots:
        current = log.current(slot)
        if current.outcome == "open":
            yield Violation(
                detail=f"slot {_name(slot)}: attempt {current.attempt} has neither a judgement nor "
                "a failure, and the run is completed",
                rollout_ids=(current.rollout_id,),
            )


def _planned_slot_not_requested(log: RunLog) -> Iterator[Violation]:
    if log.end != "completed":
        return
    requested = Counter((slot.phase, slot.step) for slot in log.slots)
    for plan in log.planned:
        found = requested[plan.phase, plan.step]
        if found < plan.num_slots:
            yield Violation(
                detail=f"{plan.phase.value} step {step_number(plan.step, plan.phase)} planned "
                f"{plan.num_slots} slots, {found} were requested"
            )


def _attempts_not_consecutive(log: RunLog) -> Iterator[Violation]:
    for slot, attempts in log.slots.items():
        numbers = [a.attempt for a in attempts]
        if numbers != list(range(len(numbers))):
            yield Violation(
                detail=f"slot {_name(slot)}: attempts were requested as {numbers}; "
                f"{list(range(len(numbers)))} would be right",
                rollout_ids=tuple(a.rollout_id for a in attempts),
            )


def _rollout_never_requested(log: RunLog) -> Iterator[Violation]:
    if log.started is None:
        # Single rollouts asked for over gRPC have no learner, and so no request event.
        return
    for attempt in log.attempts.values():
        if attempt.request_sequence is None:
            yield Violation(
                detail=f"rollout {attempt.rollout_id} appears in the log but nobody requested it",
                rollout_ids=(attempt.rollout_id,),
            )


def _started_twice(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        if len(attempt.start_owners) > 1:
            yield Violation(
                detail=f"rollout {attempt.rollout_id} was started {len(attempt.start_owners)} "
                f"times, by {', '.join(attempt.start_owners)}",
                rollout_ids=(attempt.rollout_id,),
            )


def _ended_twice(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        if len(attempt.endings) > 1:
            told = [
                "finished" if isinstance(e.fact, RolloutFinished) else f"failed ({e.fact.kind})"
                for e in attempt.endings
            ]
            yield Violation(
                detail=f"rollout {attempt.rollout_id} ended {len(told)} times: {', '.join(told)}",
                rollout_ids=(attempt.rollout_id,),
            )


def _judged_twice(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        for version, count in Counter(r.grader_version for _, r in attempt.rewards).items():
            if count > 1:
                yield Violation(
                    detail=f"rollout {attempt.rollout_id} was judged {count} times by grader "
                    f"version {version or '(not said)'}",
                    rollout_ids=(attempt.rollout_id,),
                )


def _reward_for_failed_attempt(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        if attempt.rewards and attempt.failures:
            kinds = ", ".join(failure.kind for _, failure in attempt.failures)
            yield Violation(
                detail=f"rollout {attempt.rollout_id} failed ({kinds}) and has a reward as well",
                rollout_ids=(attempt.rollout_id,),
            )


def _reward_without_record(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        if attempt.rewards and not attempt.endings:
            yield Violation(
                detail=f"rollout {attempt.rollout_id} has a reward but never finished",
                rollout_ids=(attempt.rollout_id,),
            )


def _record_unreadable(log: RunLog) -> Iterator[Violation]:
    for attempt, finish in _finishes(log):
        if finish.policy_versions is None:
            yield Violation(
                detail=f"rollout {attempt.rollout_id}: its record cannot be read: "
                f"{finish.record_error}",
                rollout_ids=(attempt.rollout_id,),
            )


def _commit_of_old_epoch(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        for ending in attempt.finishes:
            if ending.epoch < ending.newest_epoch:
                yield Violation(
                    detail=f"rollout {attempt.rollout_id} was finished under epoch {ending.epoch} "
                    f"when epoch {ending.newest_epoch} was known",
                    rollout_ids=(attempt.rollout_id,),
                )


def _slot_trained_twice(log: RunLog) -> Iterator[Violation]:
    steps_of: dict[Slot | str, list[tuple[int, str]]] = {}
    for _, fact in log.trained:
        for rollout_id in fact.rollout_ids:
            attempt = log.attempts.get(rollout_id)
            key = attempt.slot if attempt is not None and attempt.slot is not None else rollout_id
            steps_of.setdefault(key, []).append((fact.step, rollout_id))
    for key, uses in steps_of.items():
        if len(uses) > 1:
            what = f"slot {_name(key)}" if isinstance(key, Slot) else f"rollout {key}"
            yield Violation(
                detail=f"{what} was trained {len(uses)} times, in steps "
                f"{', '.join(str(step_number(step)) for step, _ in uses)}",
                rollout_ids=tuple(dict.fromkeys(rollout_id for _, rollout_id in uses)),
            )


def _trained_without_score(log: RunLog) -> Iterator[Violation]:
    for sequence, step, rollout_id, attempt in _uses(log):
        scored = attempt is not None and any(
            reward.outcome == "scored" and at < sequence for at, reward in attempt.rewards
        )
        if not scored:
            outcome = attempt.outcome if attempt is not None else "unknown to the log"
            yield Violation(
                detail=f"step {step_number(step)} trained on rollout {rollout_id}, which had no score by then "
                f"(it is {outcome})",
                rollout_ids=(rollout_id,),
            )


def _trained_old_attempt(log: RunLog) -> Iterator[Violation]:
    for _, step, rollout_id, attempt in _uses(log):
        if attempt is None or attempt.slot is None:
            continue
        current = log.current(attempt.slot)
        if current.attempt > attempt.attempt:
            yield Violation(
                detail=f"step {step_number(step)} trained on rollout {rollout_id}, attempt {attempt.attempt} of "
                f"slot {_name(attempt.slot)}, whose current attempt is {current.attempt}",
                rollout_ids=(rollout_id, current.rollout_id),
            )


def _trained_evaluation_rollout(log: RunLog) -> Iterator[Violation]:
    for _, step, rollout_id, attempt in _uses(log):
        if attempt and attempt.slot and attempt.slot.phase is Phase.EVALUATE:
            yield Violation(
                detail=f"step {step_number(step)} trained on rollout {rollout_id}, which was made to evaluate",
                rollout_ids=(rollout_id,),
            )


def _steps_not_consecutive(log: RunLog) -> Iterator[Violation]:
    for before, after in pairwise(fact.step for _, fact in log.trained):
        if after != before + 1:
            detail = f"step {step_number(after)} was trained after step {step_number(before)}"
            yield Violation(detail=detail)


def _policy_version_not_monotone(log: RunLog) -> Iterator[Violation]:
    for before, after in pairwise(fact.policy_version for _, fact in log.published):
        if after < before:
            yield Violation(detail=f"policy version {after} was published after {before}")
    for earlier, later in pairwise(fact for _, fact in log.trained):
        if later.policy_version <= earlier.policy_version:
            yield Violation(
                detail=f"step {step_number(later.step)} made policy version {later.policy_version} "
                f"after step {step_number(earlier.step)} had made {earlier.policy_version}"
            )


def _policy_version_rewritten(log: RunLog) -> Iterator[Violation]:
    first: dict[int, str] = {}
    for _, fact in log.published:
        known = first.setdefault(fact.policy_version, fact.sha256)
        if known != fact.sha256:
            yield Violation(
                detail=f"policy version {fact.policy_version} was published with weights "
                f"{known[:12] or '(none)'} and again with {fact.sha256[:12] or '(none)'}"
            )


def _acted_with_unpublished_version(log: RunLog) -> Iterator[Violation]:
    first: dict[int, int] = {}
    for sequence, fact in log.published:
        first.setdefault(fact.policy_version, sequence)
    for attempt in log.attempts.values():
        for ending in attempt.finishes:
            versions = _versions(ending.fact)
            # Version 0 is the policy that the run starts with; it needs no publishing.
            unknown = [
                v for v in versions if v and first.get(v, ending.sequence) >= ending.sequence
            ]
            if unknown:
                yield Violation(
                    detail=f"rollout {attempt.rollout_id} acted with policy version "
                    f"{', '.join(map(str, unknown))}, not published by then",
                    rollout_ids=(attempt.rollout_id,),
                )


def _acted_outside_staleness(log: RunLog) -> Iterator[Violation]:
    if log.started is None:
        return
    for attempt, finish in _finishes(log):
        if attempt.request_sequence is None:
            continue
        oldest = attempt.requested_version - log.started.max_staleness
        stale = [v for v in _versions(finish) if v < oldest]
        if stale:
            yield Violation(
                detail=f"rollout {attempt.rollout_id} was requested with policy version "
                f"{attempt.requested_version} and acted with {', '.join(map(str, stale))}; "
                f"max_staleness {log.started.max_staleness} allows {max(oldest, 0)} and newer",
                rollout_ids=(attempt.rollout_id,),
            )


def _trained_beyond_staleness(log: RunLog) -> Iterator[Violation]:
    if log.started is None:
        return
    made = [(s, f.policy_version) for s, f in log.published]
    made += [(s, f.policy_version) for s, f in log.trained]
    allowed = log.started.max_staleness
    for sequence, fact in log.trained:
        # What this step itself made may be published just before the step is told.
        known = (v for at, v in made if at < sequence and v < fact.policy_version)
        current = max(known, default=0)
        for rollout_id in fact.rollout_ids:
            attempt = log.attempts.get(rollout_id)
            acted = [v for e in (attempt.finishes if attempt else []) for v in _versions(e.fact)]
            if acted and min(acted) < current - allowed:
                yield Violation(
                    detail=f"step {step_number(fact.step)} trained on rollout {rollout_id}, which acted with "
                    f"policy version {min(acted)} when {current} was current; max_staleness is "
                    f"{allowed}",
                    rollout_ids=(rollout_id,),
                )


def _asked_ahead_of_staleness(log: RunLog) -> Iterator[Violation]:
    if log.started is None:
        return
    allowed = log.started.max_staleness + 1
    moments: list[tuple[int, int, str]] = [(at, fact.step, "") for at, fact in log.trained]
    for attempt in log.attempts.values():
        if attempt.slot and attempt.slot.phase is Phase.TRAIN and attempt.request_sequence:
            moments.append((attempt.request_sequence, attempt.slot.step, attempt.rollout_id))
    untrained: set[int] = set()
    trained: set[int] = set()
    for _, step, rollout_id in sorted(moments):
        if not rollout_id:
            trained.add(step)
            untrained.discard(step)
            continue
        if step not in trained:
            untrained.add(step)
        if len(untrained) > allowed:
            yield Violation(
                detail=f"rollout {rollout_id} of step {step_number(step)} was requested while steps "
                f"{', '.join(str(step_number(other)) for other in sorted(untrained))} were asked for "
                "and not trained; "
                f"max_staleness {allowed - 1} allows {allowed} such steps",
                rollout_ids=(rollout_id,),
            )


def _second_agent_sandbox(log: RunLog) -> Iterator[Violation]:
    for attempt in log.attempts.values():
        if len(attempt.sandboxes_before_finish) > 1:
            yield Violation(
                detail=f"rollout {attempt.rollout_id} had {len(attempt.sandboxes_before_finish)} "
                f"agent sandboxes: {', '.join(attempt.sandboxes_before_finish)}",
                rollout_ids=(attempt.rollout_id,),
            )


def _sandbox_not_destroyed(log: RunLog) -> Iterator[Violation]:
    if not log.end:
        return
    for box in log.sandboxes.values():
        owner = log.attempts.get(box.rollout_id)
        # Rollouts of a run that was stopped go on, and so do their boxes.
        at_work = log.end != "completed" and owner is not None and owner.outcome == "open"
        if box.num_created and not box.num_destroyed and not at_work:
            yield Violation(
                detail=f"sandbox {box.sandbox_id} was created and never destroyed, and the run "
                f"has ended ({log.end})",
                rollout_ids=(box.rollout_id,) if box.rollout_id else (),
            )


def _sandbox_destroyed_twice(log: RunLog) -> Iterator[Violation]:
    for box in log.sandboxes.values():
        if box.num_destroyed > 1:
            yield Violation(
                detail=f"sandbox {box.sandbox_id} was destroyed {box.num_destroyed} times",
                rollout_ids=(box.rollout_id,) if box.rollout_id else (),
            )


def _finishes(log: RunLog) -> Iterator[tuple[Attempt, RolloutFinished]]:
    for attempt in log.attempts.values():
        for ending in attempt.endings:
            if isinstance(ending.fact, RolloutFinished):
                yield attempt, ending.fact


def _uses(log: RunLog) -> Iterator[tuple[int, int, str, Attempt | None]]:
    """Yields each training use: sequence of the step's event, step, rollout_id, attempt."""
    for sequence, fact in log.trained:
        for rollout_id in fact.rollout_ids:
            yield sequence, fact.step, rollout_id, log.attempts.get(rollout_id)


def _versions(fact: object) -> tuple[int, ...]:
    if not isinstance(fact, RolloutFinished) or fact.policy_versions is None:
        return ()
    return fact.policy_versions


def _event_id_conflict(log: RunLog) -> Iterator[Violation]:
    for row in log.conflicts:
        of = f" of rollout {row.rollout_id}" if row.rollout_id else ""
        yield Violation(
            detail=f"{row.type}{of} at sequence {row.sequence} has the id {row.event_id} of an "
            f"earlier event and tells another fact: {'; '.join(row.differences)}",
            rollout_ids=(row.rollout_id,) if row.rollout_id else (),
        )


RULES: Mapping[str, Callable[[RunLog], Iterator[Violation]]] = {
    "slot_without_outcome": _slot_without_outcome,
    "planned_slot_not_requested": _planned_slot_not_requested,
    "attempts_not_consecutive": _attempts_not_consecutive,
    "rollout_never_requested": _rollout_never_requested,
    "started_twice": _started_twice,
    "ended_twice": _ended_twice,
    "judged_twice": _judged_twice,
    "reward_for_failed_attempt": _reward_for_failed_attempt,
    "reward_without_record": _reward_without_record,
    "record_unreadable": _record_unreadable,
    "commit_of_old_epoch": _commit_of_old_epoch,
    "slot_trained_twice": _slot_trained_twice,
    "trained_without_score": _trained_without_score,
    "trained_old_attempt": _trained_old_attempt,
    "trained_evaluation_rollout": _trained_evaluation_rollout,
    "steps_not_consecutive": _steps_not_consecutive,
    "policy_version_not_monotone": _policy_version_not_monotone,
    "policy_version_rewritten": _policy_version_rewritten,
    "acted_with_unpublished_version": _acted_with_unpublished_version,
    "acted_outside_staleness": _acted_outside_staleness,
    "trained_beyond_staleness": _trained_beyond_staleness,
    "asked_ahead_of_staleness": _asked_ahead_of_staleness,
    "second_agent_sandbox": _second_agent_sandbox,
    "sandbox_not_destroyed": _sandbox_not_destroyed,
    "sandbox_destroyed_twice": _sandbox_destroyed_twice,
    "event_id_conflict": _event_id_conflict,
}
"""Every rule by its stable name."""

SETTLING = frozenset({"slot_without_outcome", "sandbox_not_destroyed"})
"""Rules that the last events of a run can still mend, shortly after its end."""
