"""Evaluation: samples every task, trains nothing, reports what the rollouts were like and which tasks could teach."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from learner.figures.spread import MIN_SAMPLES, TaskSamples, spread_metrics, task_spread
from learner.figures.statistics import rollout_metrics
from learner.jobs.context import JobContext
from learner.rollouts.collect import Collector
from learner.rollouts.facts import Policy
from learner.rollouts.ledger import StepLedger
from learner.rollouts.plan import slots_of_step
from learner.runs.store import write_atomically
from trajectory.types import Phase, Scored, Task

TASKS_FILE = "tasks.jsonl"
"""What an evaluation found task by task, in the run's folder."""


async def evaluate(
    context: JobContext,
    collector: Collector,
    tasks: Sequence[Task],
    *,
    step: int,
    tasks_file: Path | None = None,
) -> dict[str, float]:
    """Measures the policy that the collector serves; returns its figures, and writes those of each task if asked to."""
    began = context.monotonic()
    limit = context.spec.eval.max_tasks
    chosen = list(tasks[:limit] if limit else tasks)
    samples = context.spec.eval.samples
    slots = slots_of_step(context.run_id, Phase.EVALUATE, step, chosen, samples)
    ledger = StepLedger(slots, context.budget())
    await context.log.planned(Phase.EVALUATE, step, [task.task_id for task in chosen], samples)
    by_id = {task.task_id: task for task in chosen}
    filling = collector.open((Phase.EVALUATE, step), ledger, by_id)
    await collector.filled(filling, context.report.progress(step, "evaluating"))
    context.check_losses(ledger)
    figures = rollout_metrics(ledger)
    measured = _samples_of_tasks(ledger)
    if samples >= MIN_SAMPLES:
        figures |= spread_metrics(measured, context.spec.train.group_size)
    if tasks_file is not None:
        lines = [json.dumps(_told(task)) + "\n" for task in measured]
        write_atomically(tasks_file, "".join(lines).encode())
    return figures | {"time/evaluate_seconds": context.monotonic() - began}


async def run_evaluate(
    context: JobContext, tasks: Sequence[Task], adapter: Path | None
) -> dict[str, float]:
    """Runs a whole evaluation run; returns its figures."""
    mark = context.folder / "evaluate.json"
    if mark.exists():
        cursor = int(json.loads(mark.read_text(encoding="utf-8"))["cursor"])
    else:
        cursor = await context.log.started()
        write_atomically(mark, json.dumps({"cursor": cursor}).encode())
    stored = await context.log.store_adapter(0, adapter) if adapter is not None else None
    policy = Policy(version=0, adapter=stored)
    await context.log.publish_policy(policy)
    collector = context.collector()
    collector.serve(policy)
    async with collector.listening(cursor, first_step=0):
        tasks_file = context.folder / TASKS_FILE
        return await evaluate(context, collector, tasks, step=0, tasks_file=tasks_file)


def _samples_of_tasks(ledger: StepLedger) -> list[TaskSamples]:
    """Returns what was scored of each task, in the order of the tasks."""
    found = []
    for group in ledger.groups():
        scored = [state.outcome for state in group if isinstance(state.outcome, Scored)]
        found.append(
            TaskSamples(
                task_id=group[0].task_id,
                scores=tuple(outcome.score for outcome in scored),
                num_right=sum(outcome.kind is None for outcome in scored),
            )
        )
    return found


def _told(task: TaskSamples) -> dict[str, object]:
    """Returns a line of the tasks' file; null is what too few samples cannot tell."""
    spread = task_spread(task.scores) if task.is_told else None
    return {
        "task_id": task.task_id,
        "scores": task.scores,
        "num_right": task.num_right,
        "mean": fmean(task.scores) if task.scores else None,
        "best": max(task.scores, default=None),
        "variance": spread.variance_population if spread else None,
        "variance_sample": spread.variance_sample if spread else None,
        "class": spread.name if spread else "too_few_samples",
    }
