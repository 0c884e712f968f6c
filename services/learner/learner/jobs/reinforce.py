"""Reinforcement fine-tuning: rollouts, rewards, one update, new weights, again.

What makes a restart exact: a checkpoint holds the log position up to which it has read. The step after it is rebuilt
from the log, so that a slot is requested once and trained once. A checkpoint is written after every update, because the
next rollouts act with those weights. An update counts from the moment its checkpoint is on disk; the announcements
that follow are repeated after a restart, and their derived ids make the repetition one event.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span

from learner.facts import Policy
from learner.jobs.context import JobContext
from learner.jobs.evaluate import evaluate
from learner.ledger import Attempt, StepLedger
from learner.plan import slots_of_step, tasks_of_step
from learner.ports import Restored, ScoredRollout, TrainingCore
from learner.statistics import rollout_metrics
from servicekit import attributes
from trajectory.types import Phase, Scored, StopReason, Task

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Progressed:
    """Where the run stands between steps."""

    step: int
    version: int
    cursor: int
    quarantined: list[str] = field(default_factory=list)
    last: dict[str, Any] | None = None
    """The announcement of the step before, repeated after a restart."""

    def checkpoint(self) -> Restored:
        """Returns what goes into a checkpoint."""
        state = {"cursor": self.cursor, "quarantined": self.quarantined, "last": self.last}
        return Restored(step=self.step, policy_version=self.version, state=state)

    @classmethod
    def from_checkpoint(cls, restored: Restored) -> "Progressed":
        """Reads a checkpoint."""
        return cls(step=restored.step, version=restored.policy_version, **restored.state)


class ReinforcementJob:
    """One reinforcement run."""

    def __init__(
        self,
        context: JobContext,
        core: TrainingCore,
        tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
    ) -> None:
        """Runs over `tasks`; `eval_tasks` are measured on where the spec asks for it."""
        self._context = context
        self._core = core
        self._tasks = tasks
        self._eval_tasks = eval_tasks
        self._collector = context.collector({task.task_id: task for task in tasks})
        self._tracer = trace.get_tracer("hone.learner")

    async def run(self) -> dict[str, float]:
        """Runs to the last step; returns the figures of that step.

        Raises:
            Stopped: someone asked for it; the last checkpoint stands.
        """
        at = await self._begin()
        policy = await self._publish(at.version)
        metrics: dict[str, float] = dict(at.last["metrics"]) if at.last else {}
        while at.step < self._context.spec.train.max_steps:
            self._context.check_stop()
            metrics = await self._step(at, policy)
            policy = await self._publish(at.version)
        return metrics | await self._evaluate_if_due(at, policy, last=True)

    async def _begin(self) -> Progressed:
        restored = await self._core.restore()
        if restored is None:
            at = Progressed(step=0, version=0, cursor=await self._context.log.started())
            await self._core.save(at.checkpoint())
            return at
        at = Progressed.from_checkpoint(restored)
        if at.last is not None:
            await self._announce(at)
        return at

    async def _publish(self, version: int) -> Policy:
        """Stores and announces the weights; version 0 without a starting adapter is the model alone."""
        stored = None
        if version > 0 or self._context.spec.model.adapter:
            with tempfile.TemporaryDirectory() as folder:
                await self._core.export(Path(folder))
                stored = await self._context.log.store_adapter(version, Path(folder))
        policy = Policy(version=version, adapter=stored)
        await self._context.log.publish_policy(policy)
        return policy

    async def _step(self, at: Progressed, policy: Policy) -> dict[str, float]:
        began = self._context.monotonic()
        metrics = await self._evaluate_if_due(at, policy)
        ledger = await self._roll_out(at, policy)
        self._context.check_losses(ledger)
        rolled_out = self._context.monotonic()
        metrics |= rollout_metrics(ledger)
        groups, trained = training_batch(ledger)
        metrics |= await self._train(at.step, groups, trained)
        metrics["time/rollout_seconds"] = rolled_out - began
        metrics["time/train_seconds"] = self._context.monotonic() - rolled_out
        at.quarantined += ledger.poison_tasks()
        metrics["tasks/quarantined"] = float(len(at.quarantined))
        at.last = {"rollout_ids": [a.rollout_id for a in trained], "metrics": metrics}
        at.step += 1
        at.version += 1
        await self._core.save(at.checkpoint())
        await self._announce(at)
        shown = ("reward/mean", "rollouts/ok", "time/rollout_seconds", "time/train_seconds")
        figures = {name: round(metrics[name], 4) for name in shown if name in metrics}
        log.info(
            "step trained", extra={"run_id": self._context.run_id, "step": at.step - 1, **figures}
        )
        return metrics

    async def _roll_out(self, at: Progressed, policy: Policy) -> StepLedger:
        spec = self._context.spec
        tasks = tasks_of_step(
            self._tasks,
            step=at.step,
            groups=spec.train.batch_size,
            seed=spec.seed,
            quarantined=at.quarantined,
        )
        group = spec.train.group_size
        slots = slots_of_step(self._context.run_id, Phase.TRAIN, at.step, tasks, group)
        ledger = StepLedger(slots, self._context.budget())
        await self._context.log.planned(Phase.TRAIN, at.step, [t.task_id for t in tasks], group)
        at.cursor = await self._collector.fill(
            ledger,
            policy,
            after_sequence=at.cursor,
            progress=self._context.report.progress(at.step, "rolling_out"),
        )
        return ledger

    async def _evaluate_if_due(
        self, at: Progressed, policy: Policy, *, last: bool = False
    ) -> dict[str, float]:
        every = self._context.spec.eval.every_steps
        if not every or not self._eval_tasks or (at.step % every and not last):
            return {}
        figures, at.cursor = await evaluate(
            self._context, self._eval_tasks, policy, step=at.step, after_sequence=at.cursor
        )
        return {f"eval/{name}": value for name, value in figures.items()}

    async def _train(
        self, step: int, groups: list[list[ScoredRollout]], trained: list[Attempt]
    ) -> dict[str, float]:
        """Updates the weights inside a trace of the step's own, linked with the traces of its rollouts."""
        context = self._context
        with self._tracer.start_as_current_span(
            attributes.SPAN_LEARNER_STEP,
            context=Context(),
            attributes={attributes.RUN_ID: context.run_id, attributes.STEP: step},
        ) as step_span:
            spans = [self._train_span(attempt, step, step_span) for attempt in trained]
            try:
                return await self._core.rollout_step(
                    groups, context.report.progress(step, "training")
                )
            finally:
                for span in spans:
                    span.end()

    def _train_span(self, attempt: Attempt, step: int, step_span: Span) -> Span:
        assert isinstance(attempt.judged_in, Context)
        span = self._tracer.start_span(
            attributes.SPAN_LEARNER_TRAIN,
            context=attempt.judged_in,
            links=[Link(step_span.get_span_context())],
            attributes={attributes.ROLLOUT_ID: attempt.rollout_id, attributes.STEP: step},
        )
        step_span.add_link(span.get_span_context())
        return span

    async def _announce(self, at: Progressed) -> None:
        assert at.last is not None
        step, metrics = at.step - 1, at.last["metrics"]
        await self._context.log.trained(step, at.version, at.last["rollout_ids"], metrics)
        self._context.report.step_done(step, at.version, metrics)


def training_batch(ledger: StepLedger) -> tuple[list[list[ScoredRollout]], list[Attempt]]:
    """Returns the scored members by group, and the attempts among them."""
    groups: list[list[ScoredRollout]] = []
    trained: list[Attempt] = []
    for states in ledger.groups():
        group: list[ScoredRollout] = []
        for state in states:
            attempt = state.current
            if attempt is None or attempt.record is None or not isinstance(attempt.outcome, Scored):
                continue
            record = attempt.record
            group.append(
                ScoredRollout(
                    rollout_id=attempt.rollout_id,
                    rows=record.tokens.rows,
                    score=attempt.outcome.score,
                    turn_rewards=attempt.outcome.step_rewards,
                    truncated=record.stop_reason is not StopReason.COMPLETED,
                )
            )
            trained.append(attempt)
        groups.append(group)
    return groups, trained
