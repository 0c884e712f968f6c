"""Runs for people: the list, one run with its steps, and how a run ended."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from hone.console.v1 import console_pb2
from hone.learner.v1 import learner_pb2
from rich.console import Console
from rich.text import Text

from hone_cli.plain import enum_word
from hone_cli.potential import lines, potential_of
from hone_cli.runview import StepTable, alarm_text, num_steps_of
from hone_cli.text import number, safe, span, sparkline, table
from runspec.schema import PREFERENCE

_CURVES = ("reward/mean", "eval/reward/mean", "rewards/accuracies", "loss")


def console() -> Console:
    """A console that takes texts as they are."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def state_of(run: learner_pb2.Run) -> str:
    """The state in a word."""
    return enum_word(learner_pb2.Run.DESCRIPTOR.fields_by_name["state"], run.state) or "unknown"


def print_runs(runs: Sequence[learner_pb2.Run]) -> None:
    """Prints a table, newest first."""
    if not runs:
        console().print("no runs yet; start one with `hone train run.yaml`")
        return
    rows = []
    for run in runs:
        total = num_steps_of(run.spec)
        reward = reward_of(run.metrics)
        rows.append(
            (
                safe(run.run_id),
                safe(run.spec.algorithm),
                state_of(run) + (f" !{len(run.alarms)}" if run.alarms else ""),
                f"{run.step}/{total}" if total else "-",
                number(reward) if reward is not None else "-",
                moment(run.create_time),
                took(run),
            )
        )
    headings = ("run", "algorithm", "state", "step", "reward", "started", "took")
    left = frozenset({"run", "algorithm", "state", "started", "took"})
    console().print(table(headings, rows, left=left))


def print_run(reply: learner_pb2.GetRunResponse, counts: console_pb2.RunSummary | None) -> None:
    """Prints one run: what it was, how it stands, its steps and its figures."""
    run, out = reply.run, console()
    out.print(Text(safe(run.run_id), style="bold"))
    facts = [
        ("state", state_of(run) + (f": {safe(run.detail)}" if run.detail else "")),
        ("algorithm", safe(run.spec.algorithm)),
        ("model", safe(run.spec.model.path) + _adapter(run)),
        *_number_type(run),
        ("started", f"{moment(run.create_time)}, took {took(run)}"),
        ("policy version", str(run.policy_version)),
        ("output", safe(run.output_dir)),
    ]
    if counts is not None:
        facts.append(
            (
                "rollouts",
                f"{counts.rollouts_scored_count} scored, {counts.rollouts_masked_count} masked, "
                f"{counts.rollouts_failed_count} failed",
            )
        )
    for name, value in facts:
        out.print(f"  {name:<15} {value}")
    if reply.steps:
        out.print("")
        steps = StepTable(run.spec.algorithm, num_steps_of(run.spec))
        for step in reply.steps:
            for line in steps.rows(step):
                out.print(line)
        for line in _drawn(reply.steps):
            out.print(line)
    print_late_alarms(run)
    print_metrics(run.metrics)
    print_potential(run)


def print_outcome(run: learner_pb2.Run) -> None:
    """Prints how a run ended well and what can be done with it."""
    print_late_alarms(run)
    print_metrics(run.metrics)
    print_potential(run)
    out = console()
    out.print(f"run {run.run_id} is complete in {took(run)}; its files are in {run.output_dir}")
    if run.spec.algorithm not in ("sft", *PREFERENCE):
        out.print(f"  hone rollout --run {run.run_id}   lists its rollouts")
    if run.spec.algorithm == "evaluate":
        out.print(f"  {safe(run.output_dir)}/tasks.jsonl   has the scores of each task")
    out.print(f"  hone audit {run.run_id}   checks its log")
    if run.spec.algorithm not in ("evaluate", "reward_model"):
        out.print(f"  hone export {run.run_id} --out DIR   writes its weights for others")
    if run.spec.algorithm == "reward_model":
        model = safe(f"{run.output_dir}/reward_model")
        out.print(f"  {model}   is the model for graders of type reward_model")
    elif run.spec.algorithm != "evaluate":
        full = run.spec.train.weights == "full"
        weights = f"path={run.output_dir}/model" if full else f"adapter={run.run_id}"
        out.print(f"  model.{safe(weights)}   starts another run from its weights")


def print_late_alarms(run: learner_pb2.Run) -> None:
    """Prints the alarms of what was measured after the last step; those of steps stand with their steps."""
    for alarm in run.alarms:
        if alarm.step >= run.step:
            console().print(alarm_text(alarm))


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Prints the figures of a whole run."""
    if not metrics:
        return
    out = console()
    out.print("")
    width = max(len(name) for name in metrics)
    for name in sorted(metrics):
        out.print(f"  {name:<{width}}  {number(metrics[name])}")
    out.print("")


def print_potential(run: learner_pb2.Run) -> None:
    """Prints what an evaluation says of training on its tasks."""
    found = potential_of(run)
    if found is not None:
        out = console()
        for line in lines(found):
            out.print(line)
        out.print("")


def reward_of(metrics: Mapping[str, float]) -> float | None:
    """The figure that says best how good the policy is."""
    for name in ("eval/reward/mean", "reward/mean"):
        if name in metrics:
            return metrics[name]
    return None


def moment(time: Timestamp) -> str:
    """Local date and time; a dash where it is not set."""
    if not time.seconds:
        return "-"
    return time.ToDatetime(UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def took(run: learner_pb2.Run) -> str:
    """How long the run took, so far or in all."""
    end = run.end_time.ToDatetime(UTC) if run.end_time.seconds else datetime.now(UTC)
    return span((end - run.create_time.ToDatetime(UTC)).total_seconds())


def _drawn(steps: Sequence[learner_pb2.StepReport]) -> list[str]:
    """The figures that people look at first as curves, one a line; none for fewer than three steps."""
    if len(steps) < 3:
        return []
    names = [name for name in _CURVES if any(name in step.metrics for step in steps)]
    lines = [""] if names else []
    for name in names:
        values = [step.metrics.get(name) for step in steps]
        told = [value for value in values if value is not None]
        drawn = sparkline(values, encoding=sys.stdout.encoding)
        lines.append(f"  {name:<18}  {drawn}  {number(told[0])} to {number(told[-1])}")
    return lines


def _number_type(run: learner_pb2.Run) -> list[tuple[str, str]]:
    """What model.dtype auto stands for in the run; nothing where the run file says a type."""
    if run.HasField("dtype_choice"):
        choice = run.dtype_choice
        return [("dtype", f"auto: {safe(choice.dtype)} ({safe(choice.reason)})")]
    return [("dtype", "auto: not measured yet")] if run.spec.model.dtype == "auto" else []


def _adapter(run: learner_pb2.Run) -> str:
    return f" with adapter {safe(run.spec.model.adapter)}" if run.spec.model.adapter else ""
