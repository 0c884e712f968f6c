"""What a job does for the health of its run: off-task measurements, scores of versions, alarms.

Off-task rows are scored by their likelihood under the policy, as language models' forgetting is commonly followed: it
needs no rollouts and no grader, is the same number for the same weights, and moves before a benchmark does.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from learner.health.alarms import OFF_TASK, Alarm
from learner.health.run_health import RunHealth
from learner.jobs.context import JobContext
from learner.ports import TrainingCore
from learner.runs.checkpoints import RolledBack, Scores, standing_steps
from runspec.schema import HealthSpec, RunSpec


class Watch:
    """Watches one run."""

    def __init__(self, context: JobContext, core: TrainingCore) -> None:
        """Watches what `core` trains."""
        self._context = context
        self._core = core
        self._scores = Scores(context.folder / "checkpoints")
        self._limits = watched(context.spec)
        self._health = RunHealth(self._limits, [])
        self._first: float | None = None

    def begin(self, rollbacks: Sequence[RolledBack] = ()) -> None:
        """Takes up the steps that are done and told, but those that were given up."""
        steps = standing_steps(self._context.history(), rollbacks)
        self._health = RunHealth(self._limits, [step.metrics for step in steps])
        known = (step.metrics[OFF_TASK] for step in steps if OFF_TASK in step.metrics)
        self._first = next(known, None)

    async def off_task(self, step: int, *, last: bool = False) -> dict[str, float]:
        """Measures the off-task rows where it is due: before the first step, every so many, and after the last."""
        health = self._context.spec.health
        due = last or step == 0 or (health.every_steps and step % health.every_steps == 0)
        if not health.off_task or not due:
            return {}
        began = self._context.monotonic()
        value = await self._core.off_task(self._context.report.progress(step, "evaluating"))
        if self._first is None:
            self._first = value
        return {
            OFF_TASK: value,
            "health/off_task/perplexity": math.exp(min(-value, 700.0)),
            "health/off_task/change": (value - self._first) / abs(self._first or 1.0),
            "time/off_task_seconds": self._context.monotonic() - began,
        }

    def judge(self, version: int, figures: Mapping[str, float]) -> list[Alarm]:
        """Keeps the score of the version that acted in a step, and returns the alarms that the step raised."""
        spec = self._context.spec
        scored = figures
        if spec.compares and "eval/loss" in figures:
            scored = {spec.health.held_out: -figures["eval/loss"]}
        self._scores.note(version, scored, spec.health.held_out)
        return self._health.judge(figures)

    def tell(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Tells people of alarms; told again, they stay one each."""
        if alarms:
            self._context.report.alarmed(step, alarms)

    def check(self, step: int, alarms: Sequence[Alarm]) -> None:
        """Ends the run where its spec asks for it.

        Raises:
            AlarmStop: the step raised an alarm.
        """
        self._health.check(step, alarms)

    def packed(self, alarms: Sequence[Alarm]) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the alarms of a step until they are told and obeyed."""
        kept = [{"kind": alarm.kind, "detail": alarm.detail} for alarm in alarms]
        return {"alarms": kept, "life": self._context.life}

    def check_again(self, step: int, entry: Mapping[str, Any]) -> None:
        """Ends a run that was killed between the checkpoint of a step and the end that the step's alarms asked for.

        Raises:
            AlarmStop: the step raised an alarm, and no one has resumed the run since.
        """
        if entry.get("life") == self._context.life:
            self.check(step, unpacked(entry["alarms"]))


def watched(spec: RunSpec) -> HealthSpec:
    """Returns the limits of a run; one that learns from rows is meant to lose entropy, and does not explore."""
    return spec.health if spec.reinforces else spec.health.model_copy(update={"entropy_floor": 0.0})


def unpacked(entries: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    """Reads the alarms that `Watch.packed` wrote."""
    return [Alarm(kind=entry["kind"], detail=entry["detail"]) for entry in entries]
