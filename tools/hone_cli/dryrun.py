"""What --dry-run prints: the run as it would start, and what it amounts to."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from hone_cli.estimate import Estimate, Range
from hone_cli.jobs import Job
from hone_cli.text import number, span
from runspec.schema import LoraSpec, RunSpec


def figures(job: Job) -> dict[str, object]:
    """How much work the run is."""
    spec = job.run.spec
    found: dict[str, object] = {}
    if job.train is not None:
        found["train_rows"] = job.train.row_count
    if job.eval is not None:
        found["eval_rows"] = job.eval.row_count
    if spec.reinforces:
        per_step = spec.train.batch_size * spec.train.group_size
        found["rollouts_per_step"] = per_step
        found["rollouts"] = per_step * spec.train.max_steps
        resampled = spec.train.max_resampled_groups * spec.train.group_size
        if resampled:
            found["max_resampled_rollouts_per_step"] = resampled
        found["max_rollouts_in_flight"] = (per_step + resampled) * (spec.train.max_staleness + 1)
    if not spec.rolls_out and job.train is not None:
        seen = spec.train.batch_size * spec.train.max_steps
        found["rows_seen"] = seen
        found["epochs"] = round(seen / job.train.row_count, 2)
    if job.eval is not None and spec.rolls_out:
        tasks = job.eval.row_count
        tasks = min(tasks, spec.eval.max_tasks) if spec.eval.max_tasks else tasks
        found["rollouts_per_evaluation"] = tasks * spec.eval.samples
    return found


def warnings(job: Job) -> list[str]:
    """What is allowed but most likely not meant."""
    spec = job.run.spec
    found = [f"agreement: {text}" for text in job.agreement.warnings] if job.agreement else []
    if spec.reinforces and job.train is not None:
        if job.train.row_count < spec.train.batch_size:
            found.append(
                f"data.train has {job.train.row_count} tasks, fewer than train.batch_size "
                f"({spec.train.batch_size}): tasks repeat within a step"
            )
        if job.train.row_count < 50:
            found.append(
                f"data.train has {job.train.row_count} tasks; with fewer than 50 every estimate is noisy"
            )
    if spec.rolls_out and spec.rollout.max_turns > 1 and not spec.rollout.tools:
        found.append(
            "rollout.max_turns is above 1, but rollout.tools is empty: the first turn is the last"
        )
    return found


def as_json(job: Job, grader: str, estimate: Estimate, missing: Sequence[str]) -> str:
    """For programs."""
    return json.dumps(
        {
            "spec": _whole(job.run.spec),
            "figures": figures(job),
            "estimate": asdict(estimate) | {"assumptions": [*estimate.assumptions, *missing]},
            "grader": grader,
            "agreement": job.agreement.summary if job.agreement else None,
            "warnings": warnings(job),
        },
        indent=2,
    )


def as_text(job: Job, grader: str, estimate: Estimate, missing: Sequence[str]) -> str:
    """For people: the whole run file with its defaults filled in, then what it amounts to."""
    lines = [
        yaml.safe_dump(
            _whole(job.run.spec), sort_keys=False, allow_unicode=True, width=100
        ).rstrip(),
        "",
    ]
    for name, value in figures(job).items():
        lines.append(f"# {name.replace('_', ' ')}: {value}")
    lines.append(f"# grader: {grader}")
    if job.agreement is not None:
        lines.append(f"# agreement: {job.agreement.summary}")
    lines += [f"# {text}" for text in _estimated(estimate)]
    assumed = [*estimate.assumptions, *missing]
    lines += [f"# assumed: {text}".replace("\n", "\n#") for text in assumed]
    lines += [f"# warning: {text}".replace("\n", "\n#") for text in warnings(job)]
    lines.append("# nothing was started (--dry-run)")
    return "\n".join(lines)


def _estimated(found: Estimate) -> list[str]:
    lines = []
    if found.rollouts:
        of = f", {found.evaluations} evaluations included" if found.evaluations > 1 else ""
        lines.append(f"estimate of rollouts in all: {found.rollouts}{of}")
    if found.tokens is not None:
        lines.append(f"estimate of tokens: {_range(found.tokens)}")
    if found.sampled_tokens is not None:
        lines.append(f"estimate of sampled tokens: {_range(found.sampled_tokens)}")
    if found.seconds is not None:
        lines.append(f"estimate of time: {span(found.seconds)}")
    if found.memory_bytes is not None:
        lines.append(f"estimate of memory: {number(found.memory_bytes / 1e9)} GB")
    if found.cost is not None:
        lines.append(f"estimate of money: {found.cost:.2f}")
    return lines


def _range(found: Range) -> str:
    return f"{found.expected:,.0f}, from {found.least:,.0f} to {found.most:,.0f}"


def _whole(spec: RunSpec) -> dict[str, Any]:
    """The run with its defaults; the shape of an adapter that it goes on with is the learner's to say."""
    if not spec.model.adapter and spec.train.weights == "lora":
        spec = spec.model_copy(update={"lora": spec.lora.filled()})
    unsaid = {"lora"} if spec.lora == LoraSpec() else set()
    return spec.model_dump(mode="json", exclude_none=True, exclude=unsaid)
