"""Reinforcement fine-tuning: rollouts, rewards, one update, new weights, again.

What makes a restart exact: a checkpoint holds a log position after which the log tells all of the steps that are not
trained yet. They are rebuilt from the log, so that a slot is requested once and trained once. A checkpoint is written
after every update, because the next rollouts act with those weights. An update counts from the moment its checkpoint
is on disk; the announcements that follow are repeated after a restart, and their derived ids make the repetition one
event.

Rollouts of the steps to come may go on while a step trains; `window` says of how many.
"""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from learner.figures.statistics import rollout_metrics
from learner.health.run_health import alarm_figures
from learner.jobs.batch import StepBatch, step_batch
from learner.jobs.context import JobContext
from learner.jobs.evaluate import evaluate
from learner.jobs.nonfinite import NonFinite
from learner.jobs.progressed import Progressed
from learner.jobs.tracing import training_spans
from learner.jobs.watch import Watch, unpacked
from learner.jobs.window import Window
from learner.ports import TrainingCore
from learner.rollouts.collect import Filling
from learner.rollouts.facts import Policy
from learner.runs.checkpoints import rollbacks_of
from learner.training.errors import NonFiniteStep
from trajectory.types import Task

log = logging.getLogger(__name__)

SHOWN = ("reward/mean", "rollouts/ok", "time/rollout_wait_seconds", "time/train_seconds")
"""Figures of a step in the service's own log."""


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
        self._eval_tasks = eval_tasks
        self._collector = context.collector()
        self._window = Window(context, self._collector, tasks)
        self._watch = Watch(context, core)
        self._non_finite = NonFinite(context.folder, context.life)

    async def run(self) -> dict[str, float]:
        """Runs to the last step; returns the figures of that step.

        Raises:
            Stopped: someone asked for it; the last checkpoint stands.
        """
        at = await self._begin()
        await self._publish(at.version)
        metrics: dict[str, float] = dict(at.last["metrics"]) if at.last else {}
        async with self._collector.listening(at.cursor, first_step=at.step):
            while at.step < self._context.spec.train.max_steps:
                self._context.check_stop()
                metrics = await self._step(at)
                await self._publish(at.version)
            final = await self._measure(at, last=True)
            self._watch.tell(at.step, self._watch.judge(at.version, final))
            return metrics | final

    async def _begin(self) -> Progressed:
        restored = await self._core.restore()
        if restored is None:
            at = Progressed(step=0, version=0, cursor=await self._context.log.started())
            await self._core.save(at.checkpoint())
            return at
        at = Progressed.from_checkpoint(restored)
        if at.last is not None:
            await self._announce(at)
        if at.rolled_back is not None:
            await self._context.log.rolled_back(at.rolled_back)
        self._watch.begin(rollbacks_of(restored.state))
        if at.last is not None:
            self._watch.check_again(at.step - 1, at.last)
        return at

    async def _publish(self, version: int) -> None:
        """Stores and announces the weights; version 0 without a starting adapter is the model alone."""
        stored = None
        if version > 0 or self._context.spec.model.adapter:
            with tempfile.TemporaryDirectory() as folder:
                await self._core.export(Path(folder))
                stored = await self._context.log.store_adapter(version, Path(folder))
        policy = Policy(version=version, adapter=stored)
        await self._context.log.publish_policy(policy)
        self._collector.serve(policy)

    async def _step(self, at: Progressed) -> dict[str, float]:
        context = self._context
        metrics = await self._measure(at)
        filling = await self._window.advance(at)
        metrics |= await self._await_rollouts(filling, at.step)
        context.check_losses(filling.ledger)
        metrics |= rollout_metrics(filling.ledger)
        batch = step_batch(
            filling.ledger,
            version=at.version,
            left_out=self._non_finite.left_out(at.step),
        )
        metrics |= batch.metrics | await self._train(at.step, batch)
        poison = filling.ledger.poison_tasks()
        at.quarantined += [task for task in poison if task not in at.quarantined]
        metrics["tasks/quarantined"] = float(len(at.quarantined))
        alarms = self._watch.judge(at.version, metrics)
        metrics |= alarm_figures(alarms)
        self._window.trained(at)
        at.step += 1
        at.version += 1
        at.last = {
            "rollout_ids": [attempt.rollout_id for attempt in batch.attempts],
            "metrics": metrics,
            "version": at.version,
        } | self._watch.packed(alarms)
        await self._core.save(at.checkpoint())
        await self._announce(at)
        figures = {name: round(metrics[name], 4) for name in SHOWN if name in metrics}
        log.info("step trained", extra={"run_id": context.run_id, "step": at.step - 1, **figures})
        self._watch.check(at.step - 1, alarms)
        return metrics

    async def _await_rollouts(self, filling: Filling, step: int) -> dict[str, float]:
        """Returns when the step's rollouts are there, with how long they took and how much of it was waited for."""
        context = self._context
        began = context.monotonic()
        await self._collector.filled(filling, context.report.progress(step, "rolling_out"))
        took = filling.closed_at - filling.opened_at
        waited = max(0.0, filling.closed_at - began)
        return {
            "time/rollout_seconds": took,
            "time/rollout_wait_seconds": waited,
            "overlap/share": max(0.0, 1.0 - waited / took) if took > 0 else 0.0,
        }

    async def _train(self, step: int, batch: StepBatch) -> dict[str, float]:
        context = self._context
        began = context.monotonic()
        with training_spans(context.run_id, step, batch.attempts):
            try:
                metrics = await self._core.rollout_step(
                    batch.groups, context.report.progress(step, "training")
                )
            except NonFiniteStep as error:
                ids = [attempt.rollout_id for attempt in batch.attempts]
                raise self._non_finite.failure(step, "rollouts", ids, error) from error
        return metrics | {"time/train_seconds": context.monotonic() - began}

    async def _measure(self, at: Progressed, *, last: bool = False) -> dict[str, float]:
        """Returns figures of the policy on held-out tasks and off-task rows, where they are due."""
        evaluated = await self._evaluate_if_due(at, last=last)
        return evaluated | await self._watch.off_task(at.step, last=last)

    async def _evaluate_if_due(self, at: Progressed, *, last: bool = False) -> dict[str, float]:
        every = self._context.spec.eval.every_steps
        if not every or not self._eval_tasks or (at.step % every and not last):
            return {}
        if at.rolled_back is not None:
            # The slots of this step's evaluation belong to the weights that were given up; those that came back were
            # measured when they were new.
            return {}
        figures = await evaluate(self._context, self._collector, self._eval_tasks, step=at.step)
        seconds = figures.pop("time/evaluate_seconds")
        return {f"eval/{name}": value for name, value in figures.items()} | {
            "time/evaluate_seconds": seconds
        }

    async def _announce(self, at: Progressed) -> None:
        assert at.last is not None
        step, metrics = at.step - 1, at.last["metrics"]
        # The run has another version after a rollback; older checkpoints hold neither version nor alarms.
        version = at.last.get("version", at.version)
        await self._context.log.trained(step, version, at.last["rollout_ids"], metrics)
        self._watch.tell(step, unpacked(at.last.get("alarms", ())))
        self._context.report.step_done(step, version, metrics)
