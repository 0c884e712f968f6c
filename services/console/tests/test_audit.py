import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from console.audit import AuditReport, audit_run
from console.audit_rules import RULES
from console.facts import (
    DeadLettered,
    Fact,
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
from trajectory.types import Phase, Slot


class Log:
    """Writes a run's log the way the services do."""

    def __init__(self, max_staleness: int = 0) -> None:
        self.rows: list[LogRow] = []
        self.tell(RunStarted(algorithm="grpo", max_staleness=max_staleness), source="learner")

    def tell(
        self,
        fact: Fact,
        *,
        source: str,
        rollout: str = "",
        slot: Slot | None = None,
        attempt: int = 0,
        epoch: int = 0,
    ) -> None:
        sequence = len(self.rows) + 1
        row = LogRow(
            sequence=sequence,
            event_id=str(uuid.UUID(int=sequence)),
            type=type(fact).__name__,
            create_time=datetime(2026, 1, 1, tzinfo=UTC),
            source=source,
            run_id="run",
            rollout_id=rollout,
            slot=slot,
            attempt=attempt,
            epoch=epoch,
            fact=fact,
        )
        self.rows.append(row)

    def slot(self, sample: int = 0, *, step: int = 0, phase: Phase = Phase.TRAIN) -> Slot:
        return Slot(run_id="run", phase=phase, step=step, group_index=0, sample_index=sample)

    def publish(self, version: int, sha256: str = "") -> None:
        fact = PolicyPublished(policy_version=version, sha256=sha256 or f"sha-{version}")
        self.tell(fact, source="learner")

    def request(self, rollout: str, slot: Slot, *, attempt: int = 0, version: int = 0) -> None:
        fact = RolloutRequested(task_id="t", policy_version=version)
        self.tell(fact, source="learner", rollout=rollout, slot=slot, attempt=attempt)

    def start(self, rollout: str, *, epoch: int = 1, owner: str = "replica-a") -> None:
        box = f"sbx_{rollout}"
        self.tell(SandboxCreated(sandbox_id=box), source="sandbox", rollout=rollout)
        fact = RolloutStarted(owner=owner, sandbox_id=box)
        self.tell(fact, source="rollout", rollout=rollout, epoch=epoch)

    def finish(self, rollout: str, *, epoch: int = 1, versions: tuple[int, ...] = (0,)) -> None:
        fact = RolloutFinished(policy_versions=versions, sandbox_id=f"sbx_{rollout}")
        self.tell(fact, source="rollout", rollout=rollout, epoch=epoch)

    def fail(
        self,
        rollout: str,
        *,
        kind: str = "executor_lost",
        source: str = "rollout",
        epoch: int = 1,
        destroys: bool = True,
    ) -> None:
        fact = RolloutFailed(kind=kind, retryable=True)
        self.tell(fact, source=source, rollout=rollout, epoch=epoch)
        if destroys:
            self.destroy(rollout)

    def judge(
        self, rollout: str, *, outcome: str = "scored", grader: str = "g1", destroys: bool = True
    ) -> None:
        score = 1.0 if outcome == "scored" else None
        fact = RewardAssigned(grader_version=grader, outcome=outcome, score=score)
        self.tell(fact, source="grader", rollout=rollout)
        if destroys:
            self.destroy(rollout)

    def destroy(self, rollout: str, cause: str = "outcome") -> None:
        fact = SandboxDestroyed(sandbox_id=f"sbx_{rollout}", cause=cause)
        self.tell(fact, source="sandbox", rollout=rollout)

    def roll(self, rollout: str, slot: Slot, *, version: int = 0, outcome: str = "scored") -> None:
        self.request(rollout, slot, version=version)
        self.start(rollout)
        self.finish(rollout, versions=(version,))
        self.judge(rollout, outcome=outcome)

    def plan(self, step: int, num_slots: int, phase: Phase = Phase.TRAIN) -> None:
        self.tell(StepPlanned(phase=phase, step=step, num_slots=num_slots), source="learner")

    def train(self, step: int, *rollouts: str, version: int | None = None) -> None:
        version = step + 1 if version is None else version
        fact = StepTrained(step=step, policy_version=version, rollout_ids=rollouts)
        self.tell(fact, source="learner")

    def end(self, end: str = "completed") -> None:
        self.tell(RunFinished(end=end), source="learner")

    def audit(self) -> AuditReport:
        return audit_run(iter(self.rows))


def good_log() -> Log:
    """Two steps with a retry, a late result, a masked and an abandoned slot, and a learner that crashed."""
    log = Log()
    log.publish(0)
    log.plan(0, 4)
    log.roll("a", log.slot(0))
    # Replica dies: the attempt fails, a second one fills the slot, and the first one's record comes late.
    log.request("b0", log.slot(1))
    log.start("b0")
    log.fail("b0", epoch=2)
    log.request("b1", log.slot(1), attempt=1)
    log.start("b1")
    log.finish("b1")
    log.judge("b1")
    log.roll("c", log.slot(2), outcome="masked")
    # The learner gives one up without hearing of it; what comes then is late and ignored.
    log.request("d0", log.slot(3))
    log.start("d0")
    log.request("d1", log.slot(3), attempt=1)
    log.start("d1")
    log.finish("d0")
    log.judge("d0")
    log.fail("d1", kind="engine")
    log.train(0, "a", "b1")
    # The learner crashes here and resumes; it asks only for slots that were never requested.
    log.publish(1)
    log.plan(1, 2)
    log.roll("e", log.slot(0, step=1), version=1)
    log.roll("f", log.slot(1, step=1), version=1)
    log.tell(DeadLettered(consumer="grader", reason="poison"), source="eventbus")
    log.train(1, "e", "f")
    log.publish(2)
    log.plan(2, 1, Phase.EVALUATE)
    log.roll("g", log.slot(0, step=2, phase=Phase.EVALUATE), version=2)
    log.end()
    return log


def test_audit_of_a_good_log_with_retries_late_results_and_a_crash_finds_nothing() -> None:
    report = good_log().audit()
    assert report.findings == ()
    assert report.counts == {
        "events": len(good_log().rows),
        "slots": 7,
        "scored": 5,
        "masked": 1,
        "abandoned": 1,
        "open": 0,
        "attempts": 9,
        "attempts_failed": 2,
        "late_ignored": 1,
        "steps_trained": 2,
        "rollouts_trained": 4,
        "policy_versions": 3,
        "sandboxes_created": 9,
        "sandboxes_destroyed": 9,
        "sandboxes_open": 0,
        "dead_lettered": 1,
    }
    assert report.last_sequence == len(good_log().rows)


def test_audit_of_an_empty_log_finds_nothing() -> None:
    report = audit_run([])
    assert (report.findings, report.last_sequence) == ((), 0)


def test_audit_of_an_active_run_counts_open_slots_and_sandboxes() -> None:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    report = log.audit()
    assert report.findings == ()
    assert (report.counts["open"], report.counts["sandboxes_open"]) == (1, 1)


def test_audit_of_a_stopped_and_resumed_run_is_that_of_an_active_one() -> None:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.end("stopped")
    log.request("b", log.slot(1))
    assert log.audit().findings == ()


def test_audit_of_a_stopped_run_leaves_rollouts_at_work_their_boxes() -> None:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.end("stopped")
    report = log.audit()
    assert (report.findings, report.counts["sandboxes_open"]) == ((), 1)


def test_audit_allows_a_grading_box_after_the_agent_has_finished() -> None:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.finish("a")
    log.tell(SandboxCreated(sandbox_id="sbx_grade"), source="sandbox", rollout="a")
    log.tell(SandboxDestroyed(sandbox_id="sbx_grade", cause="requested"), source="sandbox")
    log.judge("a")
    log.end()
    assert log.audit().findings == ()


def test_audit_allows_a_newer_grader_to_judge_again() -> None:
    log = Log()
    log.roll("a", log.slot(0))
    log.judge("a", grader="g2", destroys=False)
    assert log.audit().findings == ()


def test_audit_allows_staleness_within_the_bound() -> None:
    log = Log(max_staleness=1)
    log.publish(1)
    log.request("a", log.slot(0), version=1)
    log.start("a")
    log.publish(2)
    log.finish("a", versions=(1, 2))
    log.judge("a")
    log.train(0, "a", version=3)
    assert log.audit().findings == ()


def test_audit_allows_rollouts_of_as_many_further_steps_as_staleness_does() -> None:
    log = Log(max_staleness=2)
    for step in range(3):
        log.roll(f"r{step}", log.slot(step=step))
    for step in range(4):
        log.train(step, f"r{step}")
        log.publish(step + 1)
        log.roll(f"r{step + 3}", log.slot(step=step + 3), version=step + 1)
    assert log.audit().findings == ()


def test_audit_allows_weights_to_be_published_before_their_step_is_told() -> None:
    log = Log()
    for step in range(3):
        log.roll(f"r{step}", log.slot(step=step), version=step)
        log.publish(step + 1)
        log.train(step, f"r{step}")
    assert log.audit().findings == ()


def _open_slot() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.end()
    return log


def _plan_short() -> Log:
    log = Log()
    log.plan(0, 2)
    log.roll("a", log.slot(0))
    log.end()
    return log


def _attempt_gap() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.fail("a")
    log.request("b", log.slot(0), attempt=2)
    return log


def _attempt_repeated() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.request("b", log.slot(0))
    return log


def _unrequested() -> Log:
    log = Log()
    log.start("a")
    log.finish("a")
    return log


def _started_twice() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    fact = RolloutStarted(owner="replica-b", sandbox_id="sbx_a")
    log.tell(fact, source="rollout", rollout="a", epoch=1)
    return log


def _ended_twice() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.finish("a")
    log.fail("a")
    return log


def _judged_twice() -> Log:
    log = Log()
    log.roll("a", log.slot(0))
    log.judge("a", destroys=False)
    return log


def _failed_and_rewarded() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.fail("a")
    log.judge("a", destroys=False)
    return log


def _grading_failed_and_rewarded() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.finish("a")
    log.fail("a", kind="grader", source="grader")
    log.judge("a", destroys=False)
    return log


def _rewarded_without_record() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.judge("a", destroys=False)
    return log


def _record_gone() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    fact = RolloutFinished(policy_versions=None, record_error="blob gone")
    log.tell(fact, source="rollout", rollout="a", epoch=1)
    return log


def _old_epoch() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a", epoch=2)
    log.finish("a", epoch=1)
    return log


def _trained_twice() -> Log:
    log = Log()
    log.roll("a", log.slot(0))
    log.train(0, "a", "a")
    return log


def _slot_trained_in_two_steps() -> Log:
    log = Log(max_staleness=1)
    log.roll("a", log.slot(0))
    log.train(0, "a")
    log.train(1, "a")
    return log


def _trained_masked() -> Log:
    log = Log()
    log.roll("a", log.slot(0), outcome="masked")
    log.train(0, "a")
    return log


def _trained_before_the_reward() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.finish("a")
    log.train(0, "a")
    log.judge("a")
    return log


def _trained_unknown() -> Log:
    log = Log()
    log.train(0, "nobody")
    return log


def _trained_old_attempt() -> Log:
    log = Log()
    log.roll("a", log.slot(0))
    log.request("b", log.slot(0), attempt=1)
    log.train(0, "a")
    return log


def _trained_evaluation() -> Log:
    log = Log()
    log.roll("a", log.slot(0, phase=Phase.EVALUATE))
    log.train(0, "a")
    return log


def _step_skipped() -> Log:
    log = Log()
    log.train(0, version=1)
    log.train(2, version=2)
    return log


def _step_repeated() -> Log:
    log = Log()
    log.train(0, version=1)
    log.train(0, version=2)
    return log


def _version_went_back() -> Log:
    log = Log()
    log.publish(2)
    log.publish(1)
    return log


def _step_kept_its_version() -> Log:
    log = Log()
    log.train(0, version=1)
    log.train(1, version=1)
    return log


def _version_rewritten() -> Log:
    log = Log()
    log.publish(1, "one")
    log.publish(1, "other")
    return log


def _acted_too_new() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.finish("a", versions=(7,))
    log.publish(7)
    return log


def _acted_too_old() -> Log:
    log = Log(max_staleness=1)
    log.publish(1)
    log.publish(2)
    log.publish(3)
    log.request("a", log.slot(0), version=3)
    log.start("a")
    log.finish("a", versions=(1, 3))
    return log


def _trained_too_stale() -> Log:
    log = Log(max_staleness=1)
    log.roll("a", log.slot(0))
    log.publish(1)
    log.publish(2)
    log.train(0, "a", version=3)
    return log


def _asked_too_far_ahead() -> Log:
    log = Log(max_staleness=1)
    for step in range(3):
        log.roll(f"r{step}", log.slot(step=step))
    return log


def _two_boxes() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.tell(SandboxCreated(sandbox_id="sbx_other"), source="sandbox", rollout="a")
    return log


def _box_of_a_zombie() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.fail("a")
    log.tell(SandboxCreated(sandbox_id="sbx_other"), source="sandbox", rollout="a")
    return log


def _box_left() -> Log:
    log = Log()
    log.request("a", log.slot(0))
    log.start("a")
    log.fail("a", destroys=False)
    log.end("stopped")
    return log


def _box_destroyed_twice() -> Log:
    log = Log()
    log.roll("a", log.slot(0))
    log.destroy("a")
    return log


def _id_taken() -> Log:
    log = Log()
    log.tell(DeadLettered(consumer="grader", reason="poison"), source="eventbus")
    log.rows[-1] = replace(log.rows[-1], differences=("dead_lettered.subject was 'a' and is 'b'",))
    return log


BROKEN: list[tuple[str, Callable[[], Log]]] = [
    ("slot_without_outcome", _open_slot),
    ("planned_slot_not_requested", _plan_short),
    ("attempts_not_consecutive", _attempt_gap),
    ("attempts_not_consecutive", _attempt_repeated),
    ("rollout_never_requested", _unrequested),
    ("started_twice", _started_twice),
    ("ended_twice", _ended_twice),
    ("judged_twice", _judged_twice),
    ("reward_for_failed_attempt", _failed_and_rewarded),
    ("reward_for_failed_attempt", _grading_failed_and_rewarded),
    ("reward_without_record", _rewarded_without_record),
    ("record_unreadable", _record_gone),
    ("commit_of_old_epoch", _old_epoch),
    ("slot_trained_twice", _trained_twice),
    ("slot_trained_twice", _slot_trained_in_two_steps),
    ("trained_without_score", _trained_masked),
    ("trained_without_score", _trained_before_the_reward),
    ("trained_without_score", _trained_unknown),
    ("trained_old_attempt", _trained_old_attempt),
    ("trained_evaluation_rollout", _trained_evaluation),
    ("steps_not_consecutive", _step_skipped),
    ("steps_not_consecutive", _step_repeated),
    ("policy_version_not_monotone", _version_went_back),
    ("policy_version_not_monotone", _step_kept_its_version),
    ("policy_version_rewritten", _version_rewritten),
    ("acted_with_unpublished_version", _acted_too_new),
    ("acted_outside_staleness", _acted_too_old),
    ("trained_beyond_staleness", _trained_too_stale),
    ("asked_ahead_of_staleness", _asked_too_far_ahead),
    ("second_agent_sandbox", _two_boxes),
    ("second_agent_sandbox", _box_of_a_zombie),
    ("sandbox_not_destroyed", _box_left),
    ("sandbox_destroyed_twice", _box_destroyed_twice),
    ("event_id_conflict", _id_taken),
]


@pytest.mark.parametrize(("rule", "broken"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_audit_of_a_broken_log_finds_exactly_its_rule(rule: str, broken: Callable[[], Log]) -> None:
    findings = broken().audit().findings
    assert [f.rule for f in findings] == [rule]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_step_skipped, "step 3 was trained after step 1"),
        (_asked_too_far_ahead, "of step 3 was requested while steps 1, 2, 3 were asked for"),
        (_trained_evaluation, "step 1 trained on rollout a"),
    ],
)
def test_what_is_said_counts_steps_from_1(broken: Callable[[], Log], said: str) -> None:
    (finding,) = broken().audit().findings
    assert said in finding.detail


def test_every_rule_has_a_broken_log() -> None:
    assert {rule for rule, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize("lost", range(len(good_log().rows)))
def test_losing_any_event_that_carries_an_effect_is_noticed(lost: int) -> None:
    rows = good_log().rows
    gone = rows[lost]
    # Some events may be missing without any invariant being broken: what they say is told elsewhere too.
    harmless = (RunStarted, RolloutStarted, StepPlanned, DeadLettered, RunFinished)
    report = audit_run([*rows[:lost], *rows[lost + 1 :]])
    whole = good_log().audit()
    assert report.findings or report.counts != whole.counts or isinstance(gone.fact, harmless)


@pytest.mark.parametrize("kind", [SandboxDestroyed, RolloutFinished, StepTrained])
def test_telling_an_event_twice_under_another_id_is_noticed(kind: type) -> None:
    rows = good_log().rows
    index = next(i for i, row in enumerate(rows) if isinstance(row.fact, kind))
    again = replace(rows[index], event_id="another", sequence=10_000)
    assert audit_run([*rows, again]).findings
