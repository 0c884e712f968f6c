"""Learning from recorded text, a batch of rows per step: supervised fine-tuning, DPO and reward models."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from learner.jobs.context import JobContext
from learner.plan import rows_of_step
from learner.ports import Restored, TrainingCore

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """What the core does with rows."""

    num_rows: int
    """The core knows them by index."""
    step: Callable[[Sequence[int], Progress], Awaitable[dict[str, float]]]
    """Takes an update by the rows at these indices."""
    measure: Callable[[Progress], Awaitable[dict[str, float]]] | None = None
    """Measures on held-out rows; None where there are none."""


class RowJob:
    """One run over rows."""

    def __init__(self, context: JobContext, core: TrainingCore, steps: RowSteps) -> None:
        """Runs `steps`, which the core takes."""
        self._context = context
        self._core = core
        self._steps = steps

    async def run(self) -> dict[str, float]:
        """Runs to the last step; returns the figures of that step, and of the held-out rows after it.

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
            metrics = await self._step(step)
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
        return metrics | await self._measure(step)

    async def _step(self, step: int) -> dict[str, float]:
        context, train = self._context, self._context.spec.train
        every = context.spec.eval.every_steps
        due = step % every == 0 if every else step == 0
        measured = await self._measure(step) if due else {}
        began = context.monotonic()
        rows = rows_of_step(
            self._steps.num_rows, step=step, batch_size=train.batch_size, seed=context.spec.seed
        )
        metrics = await self._steps.step(rows, context.report.progress(step, "training"))
        metrics["time/train_seconds"] = context.monotonic() - began
        return metrics | measured

    async def _measure(self, step: int) -> dict[str, float]:
        """Returns figures of the held-out rows, if there are any."""
        if self._steps.measure is None:
            return {}
        began = self._context.monotonic()
        found = await self._steps.measure(self._context.report.progress(step, "evaluating"))
        figures = {f"eval/{name}": value for name, value in found.items()}
        return figures | {"time/evaluate_seconds": self._context.monotonic() - began}

    async def _announce(self, step: int, pending: list[dict[str, Any]]) -> None:
        """Tells the steps that a checkpoint now holds; told again after a restart, they stay one event each."""
        for entry in pending:
            index, metrics = entry["step"], entry["metrics"]
            await self._context.log.trained(index, index + 1, [], metrics)
            self._context.report.step_done(index, index + 1, metrics)
