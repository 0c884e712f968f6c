"""Evaluation: samples every task, trains nothing, reports what the rollouts were like."""

import json
from collections.abc import Sequence
from pathlib import Path

from learner.collect import Collector
from learner.facts import Policy
from learner.jobs.context import JobContext
from learner.ledger import StepLedger
from learner.plan import slots_of_step
from learner.runs import write_atomically
from learner.statistics import rollout_metrics
from trajectory.types import Phase, Task


async def evaluate(
    context: JobContext, collector: Collector, tasks: Sequence[Task], *, step: int
) -> dict[str, float]:
    """Measures the policy that the collector serves; returns its figures."""
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
    return rollout_metrics(ledger) | {"time/evaluate_seconds": context.monotonic() - began}


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
        return await evaluate(context, collector, tasks, step=0)
