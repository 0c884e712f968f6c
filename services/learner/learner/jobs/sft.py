"""Supervised fine-tuning: imitates recorded conversations; only assistant tokens count."""

from typing import Any

from learner.jobs.context import JobContext
from learner.plan import rows_of_step
from learner.ports import Restored, TrainingCore


class SftJob:
    """One supervised run."""

    def __init__(self, context: JobContext, core: TrainingCore, row_count: int) -> None:
        """Runs over `row_count` rows that the core knows by index."""
        self._context = context
        self._core = core
        self._row_count = row_count

    async def run(self) -> dict[str, float]:
        """Runs to the last step; returns the figures of that step.

        Raises:
            Stopped: someone asked for it; the last checkpoint stands.
        """
        context, train = self._context, self._context.spec.train
        restored = await self._core.restore()
        step = restored.step if restored else 0
        metrics: dict[str, float] = dict(restored.state.get("metrics", {})) if restored else {}
        if restored is None:
            await context.log.started()
        else:
            await self._announce(step, restored.state.get("pending", []))
        pending: list[dict[str, Any]] = []
        while step < train.max_steps:
            began = context.monotonic()
            rows = rows_of_step(
                self._row_count, step=step, batch_size=train.batch_size, seed=context.spec.seed
            )
            metrics = await self._core.sft_step(rows, context.report.progress(step, "training"))
            metrics["time/train_seconds"] = context.monotonic() - began
            step += 1
            pending.append({"step": step - 1, "metrics": metrics})
            stopping = context.stop.is_set()
            if stopping or step % train.checkpoint_every_steps == 0 or step == train.max_steps:
                state = {"metrics": metrics, "pending": pending}
                await self._core.save(Restored(step=step, policy_version=step, state=state))
                await self._announce(step, pending)
                pending = []
            if step < train.max_steps:
                context.check_stop()
        return metrics

    async def _announce(self, step: int, pending: list[dict[str, Any]]) -> None:
        """Tells the steps that a checkpoint now holds; told again after a restart, they stay one event each."""
        for entry in pending:
            index, metrics = entry["step"], entry["metrics"]
            await self._context.log.trained(index, index + 1, [], metrics)
            self._context.report.step_done(index, index + 1, metrics)
