"""Evaluation: samples every task, trains nothing, reports what the rollouts were like."""

import json
from collections.abc import Sequence
from pathlib import Path

from learner.facts import Policy
from learner.jobs.context import JobContext
from learner.ledger import StepLedger
from learner.plan import slots_of_step
from learner.runs import write_atomically
from learner.statistics import rollout_metrics
from trajectory.types import Phase, Task


async def evaluate(
    context: JobContext,
    tasks: Sequence[Task],
    policy: Policy,
    *,
    step: int,
    after_sequence: int,
) -> tuple[dict[str, float], int]:
    """Measures a policy; returns its figures and the log position up to which facts were read."""
    limit = context.spec.eval.max_tasks
    chosen = list(tasks[:limit] if limit else tasks)
    samples = context.spec.eval.samples
    slots = slots_of_step(context.run_id, Phase.EVALUATE, step, chosen, samples)
    ledger = StepLedger(slots, context.budget())
    await context.log.planned(Phase.EVALUATE, step, [task.task_id for task in chosen], samples)
    collector = context.collector({task.task_id: task for task in chosen})
    position = await collector.fill(
        ledger,
        policy,
        after_sequence=after_sequence,
        progress=context.report.progress(step, "evaluating"),
    )
    context.check_losses(ledger)
    return rollout_metrics(ledger), position


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
    began = context.monotonic()
    metrics, _ = await evaluate(context, tasks, policy, step=0, after_sequence=cursor)
    metrics["time/evaluate_seconds"] = context.monotonic() - began
    return metrics
