"""Learning from recorded text, a batch of rows per step: supervised fine-tuning, DPO and reward models."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.health.run_health import alarm_figures
from learner.jobs.context import JobContext
from learner.jobs.nonfinite import NonFinite
from learner.jobs.watch import Watch, unpacked
from learner.ports import Restored, Stopped, TrainingCore
from learner.rollouts.plan import rows_of_step
from learner.runs.checkpoints import rollbacks_of
from learner.training.errors import NonFiniteStep

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
        self._watch = Watch(context, core)
        self._non_finite = NonFinite(context.folder, context.life)

    async def run(self) -> dict[str, float]:
        """Runs to the last step; returns the figures of that step, and of the held-out rows after it.

        Raises:
            Stopped: someone asked for it; the last checkpoint stands.
        """
        at = await self._begin()
        max_steps = self._context.spec.train.max_steps
        try:
            while at.step < max_steps:
                await self._step(at)
                if at.step < max_steps:
                    self._context.check_stop()
        except Stopped:
            # What is done since the last checkpoint need not be done again.
            await self._save(at)
            raise
        final = await self._measure(at.step, last=True)
        self._watch.tell(at.step, self._watch.judge(at.version, final))
        return at.metrics | final

    async def _begin(self) -> "_Progressed":
        restored = await self._core.restore()
        if restored is None:
            await self._context.log.started()
            return _Progressed(step=0, version=0)
        at = _Progressed.from_checkpoint(restored)
        await self._announce(at.pending)
        rollbacks = rollbacks_of(restored.state)
        if rollbacks and rollbacks[-1].step == at.step:
            await self._context.log.rolled_back(rollbacks[-1])
        self._watch.begin(rollbacks)
        for entry in at.pending:
            self._watch.check_again(entry["step"], entry)
        at.pending = []
        return at

    async def _step(self, at: "_Progressed") -> None:
        """Takes a step, and saves it where a checkpoint is due."""
        context, train, step = self._context, self._context.spec.train, at.step
        every = context.spec.eval.every_steps
        due = step % every == 0 if every else step == 0
        measured = await self._measure(step, held_out=due)
        began = context.monotonic()
        rows = rows_of_step(
            self._steps.num_rows,
            step=step,
            batch_size=train.batch_size,
            seed=context.spec.seed,
            left_out={int(row) - 1 for row in self._non_finite.left_out(step)},
        )
        try:
            metrics = await self._steps.step(rows, context.report.progress(step, "training"))
        except NonFiniteStep as error:
            numbers = [str(row + 1) for row in sorted(set(rows))]
            raise self._non_finite.failure(
                step, "the rows of data.train", numbers, error
            ) from error
        metrics["time/train_seconds"] = context.monotonic() - began
        metrics |= measured
        alarms = self._watch.judge(at.version, metrics)
        metrics |= alarm_figures(alarms)
        at.step, at.version, at.metrics = step + 1, at.version + 1, metrics
        entry = {"step": step, "version": at.version, "metrics": metrics}
        at.pending.append(entry | self._watch.packed(alarms))
        if at.step % train.checkpoint_every_steps == 0 or at.step == train.max_steps:
            await self._save(at)
        self._watch.check(step, alarms)

    async def _save(self, at: "_Progressed") -> None:
        """Writes a checkpoint of the steps that none holds yet, and tells them."""
        if at.pending:
            await self._core.save(at.checkpoint())
            await self._announce(at.pending)
            at.pending = []

    async def _measure(
        self, step: int, *, held_out: bool = True, last: bool = False
    ) -> dict[str, float]:
        """Returns figures of the held-out rows where asked for, and of the off-task rows where they are due."""
        figures: dict[str, float] = {}
        if held_out and self._steps.measure is not None:
            began = self._context.monotonic()
            found = await self._steps.measure(self._context.report.progress(step, "evaluating"))
            figures = {f"eval/{name}": value for name, value in found.items()}
            figures["time/evaluate_seconds"] = self._context.monotonic() - began
        return figures | await self._watch.off_task(step, last=last)

    async def _announce(self, pending: list[dict[str, Any]]) -> None:
        """Tells the steps that a checkpoint now holds; told again after a restart, they stay one event each."""
        for entry in pending:
            step, metrics = entry["step"], entry["metrics"]
            # Checkpoints of older versions of this service hold neither a version nor alarms.
            version = entry.get("version", step + 1)
            await self._context.log.trained(step, version, [], metrics)
            self._watch.tell(step, unpacked(entry.get("alarms", ())))
            self._context.report.step_done(step, version, metrics)


@dataclass(slots=True, kw_only=True)
class _Progressed:
    """Where a run stands."""

    step: int
    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Steps that no checkpoint held before, to be told."""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    def checkpoint(self) -> Restored:
        """Returns what goes into a checkpoint."""
        state = {"metrics": self.metrics, "pending": self.pending, "rollbacks": self.rollbacks}
        return Restored(step=self.step, policy_version=self.version, state=state)

    @classmethod
    def from_checkpoint(cls, restored: Restored) -> "_Progressed":
        """Reads a checkpoint."""
        return cls(step=restored.step, version=restored.policy_version, **restored.state)
