"""The pages of runs: all of them, one with its curves and rollouts, and the audit of one."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from console.archive_reader import (
    ResultCount,
    RolloutEntry,
    RolloutFilter,
    RunEntry,
    StepEntry,
)
from console.audit import AuditReport
from console.audit_rules import RULES
from console.charts import curve
from console.markup import Child, Markup, tag
from console.page_errors import errors_section
from console.page_layout import badge, page, strip, table
from console.wording import duration, number, step_number, when
from trajectory.types import Phase

PREFERRED = ("reward", "score", "accuracy", "kl", "length", "tokens", "tool", "variance", "loss")
"""What curves to show first, by a word in their names."""

MAX_CURVES = 12
ALARM_PREFIX = "alarms/"
"""Figures of a step that say that it raised an alarm."""

OUTCOMES = ("scored", "masked", "failed", "open")


def run_path(run_id: str) -> str:
    """Returns the address of a run's page."""
    return f"/runs/{quote(run_id, safe='')}"


def trace_path(rollout_id: str) -> str:
    """Returns the address of a rollout's page, which is that of its trace."""
    return f"/trace/{quote(rollout_id.replace('-', ''), safe='')}"


def runs_page(runs: Sequence[RunEntry], next_href: str) -> bytes:
    """Lists runs, newest first."""
    heads = [
        ("Run", ""), ("State", ""), ("Algorithm", ""), ("Started (UTC)", "t"), ("Steps", "n"), ("Alarms", "n"),
        ("Scored", "n"), ("Masked", "n"), ("Failed", "n"), ("Open", "n"), ("Mean score", "n"),
    ]  # fmt: skip
    rows: list[list[Child]] = [
        [
            tag("a", run.run_id, href=run_path(run.run_id)),
            badge(run.end or "active"),
            run.algorithm,
            when(run.start_us),
            str(run.num_steps),
            str(run.num_alarmed or ""),
            str(run.num_scored),
            str(run.num_masked),
            str(run.num_failed),
            str(run.num_open),
            number(run.mean_score),
        ]
        for run in runs
    ]
    return page(
        "Runs",
        tag("h1", "Runs"),
        tag("p", "Newest first, as the event log tells them.", class_="quiet"),
        table(heads, rows, "No run has told an event yet. Start one with: hone train run.yaml"),
        _pager(next_href),
        refresh=any(not run.end for run in runs),
    )


def run_page(
    run: RunEntry,
    steps: Sequence[StepEntry],
    results: Sequence[ResultCount],
    counts: Mapping[tuple[str, str], int],
    where: RolloutFilter,
    rollouts: Sequence[RolloutEntry],
    next_href: str,
) -> bytes:
    """Shows one run: its figures step by step, why rollouts did not succeed, and its rollouts through a filter."""
    return page(
        run.run_id,
        tag("h1", run.run_id, " ", badge(run.end or "active")),
        tag("p", run.end_detail, class_="quiet") if run.end_detail else None,
        strip(
            ("Algorithm", run.algorithm),
            ("Started (UTC)", when(run.start_us)),
            ("Ended (UTC)", when(run.end_us)),
            ("Steps trained", str(run.num_steps)),
            ("Mean score", number(run.mean_score)),
            ("Scored", str(run.num_scored)),
            ("Masked", str(run.num_masked)),
            ("Failed", str(run.num_failed)),
            ("Open", str(run.num_open)),
            ("Log", tag("a", "audit", href=f"{run_path(run.run_id)}/audit")),
        ),
        _alarms(steps),
        _curves(steps),
        errors_section(results, trace_path),
        tag("h2", "Rollouts"),
        _chips(where, counts),
        _rollout_table(rollouts),
        _pager(next_href),
        crumbs=[("Runs", "/")],
        refresh=not run.end,
    )


def _alarms(steps: Sequence[StepEntry]) -> Child:
    """Says which steps raised alarms; the learner has the sentences."""
    raised = [
        f"{name.removeprefix(ALARM_PREFIX).replace('_', ' ')} in step {step_number(step.step)}"
        for step in steps
        for name in sorted(step.metrics)
        if name.startswith(ALARM_PREFIX)
    ]
    return tag("p", f"Alarms: {'; '.join(raised)}", class_="note bad") if raised else None


def audit_page(run_id: str, report: AuditReport) -> bytes:
    """Shows what the audit of a run found."""
    clean = not report.findings
    verdict = (
        f"All {len(RULES)} rules hold over {report.counts['events']} events."
        if clean
        else f"{len(report.findings)} findings. Each names an invariant that the log violates."
    )
    findings: list[list[Child]] = [
        [
            tag("code", finding.rule),
            finding.detail,
            [
                (tag("a", r, href=trace_path(r), class_="mono"), " ")
                for r in finding.rollout_ids[:20]
            ],
        ]
        for finding in report.findings[:1000]
    ]
    counts: list[list[Child]] = [
        [name.replace("_", " "), str(value)] for name, value in report.counts.items()
    ]
    heads = [("Rule", "t"), ("What is wrong", "w"), ("Rollouts", "")]
    return page(
        f"Audit of {run_id}",
        tag("h1", "Audit"),
        tag("p", verdict, class_="note good" if clean else "note bad"),
        None if clean else (tag("h2", "Findings"), table(heads, findings, "")),
        tag("h2", "Counts"),
        table([("What", ""), ("Count", "n")], counts, ""),
        crumbs=[("Runs", "/"), (run_id, run_path(run_id))],
    )


def _curves(steps: Sequence[StepEntry]) -> Child:
    names = {name for step in steps for name in step.metrics if not name.startswith(ALARM_PREFIX)}
    if not names:
        return None
    cards = []
    for name in sorted(names, key=_rank)[:MAX_CURVES]:
        points = [
            (step_number(step.step), step.metrics[name]) for step in steps if name in step.metrics
        ]
        cards.append(
            tag(
                "div",
                tag("div", name, class_="k"),
                tag("div", number(points[-1][1]), class_="v"),
                curve(points),
                class_="card",
            )
        )
    return tag("h2", "Step by step"), tag("div", cards, class_="charts")


def _rank(name: str) -> tuple[int, str]:
    place = next((i for i, word in enumerate(PREFERRED) if word in name.lower()), len(PREFERRED))
    return place, name


def _chips(where: RolloutFilter, counts: Mapping[tuple[str, str], int]) -> Markup:
    phases = list(dict.fromkeys(phase for phase, _ in counts if phase))
    chips = [_chip("all outcomes", where, outcome="", phase=where.phase)]
    for outcome in OUTCOMES:
        count = sum(
            num
            for (phase, kind), num in counts.items()
            if kind == outcome and where.phase in ("", phase)
        )
        chips.append(_chip(f"{outcome} {count}", where, outcome=outcome, phase=where.phase))
    if len(phases) > 1:
        chips.append(_chip("all phases", where, outcome=where.outcome, phase=""))
        chips += [_chip(phase, where, outcome=where.outcome, phase=phase) for phase in phases]
    if where.step is not None:
        href = _rollouts_href(where.run_id, outcome=where.outcome, phase=where.phase)
        step = step_number(where.step, where.phase or Phase.TRAIN)
        chips.append(tag("a", f"step {step} x", href=href, class_="on"))
    return tag("div", chips, class_="chips")


def _chip(label: str, where: RolloutFilter, *, outcome: str, phase: str) -> Markup:
    href = _rollouts_href(where.run_id, outcome=outcome, phase=phase, step=where.step)
    is_on = outcome == where.outcome and phase == where.phase
    return tag("a", label, href=href, class_="on" if is_on else None)


def _rollouts_href(run_id: str, *, outcome: str, phase: str, step: int | None = None) -> str:
    asked = {"outcome": outcome, "phase": phase, "step": "" if step is None else str(step)}
    query = urlencode({key: value for key, value in asked.items() if value})
    return f"{run_path(run_id)}?{query}" if query else run_path(run_id)


def _rollout_table(rollouts: Sequence[RolloutEntry]) -> Markup:
    heads = [
        ("Rollout", "t"), ("Outcome", ""), ("Score", "n"), ("Why", ""), ("Task", ""), ("Slot", "t"),
        ("Turns", "n"), ("Calls", "n"), ("Tokens", "n"), ("Version", "n"), ("Took", "n"),
        ("Trained", "n"),
    ]  # fmt: skip
    rows: list[list[Child]] = [
        [
            tag("a", f"...{r.rollout_id[-12:]}", href=trace_path(r.rollout_id), class_="mono"),
            badge(r.outcome),
            number(r.score),
            r.failure_kind or r.kind,
            r.task_id,
            slot_text(r),
            str(r.turn_count),
            str(r.tool_call_count),
            str(r.sampled_token_count),
            str(r.policy_version),
            duration(r.seconds),
            "" if r.trained_in_step is None else f"step {step_number(r.trained_in_step)}",
        ]
        for r in rollouts
    ]
    return table(heads, rows, "No rollout passes this filter.")


def slot_text(entry: RolloutEntry) -> str:
    """Writes a rollout's slot and, past the first, its attempt; each number as the log has it, from 0."""
    if not entry.phase:
        return "not said"
    text = f"{entry.phase} {entry.step} / {entry.group_index} / {entry.sample_index}"
    return f"{text}, attempt {entry.attempt}" if entry.attempt else text


def _pager(next_href: str) -> Child:
    if not next_href:
        return None
    return tag("div", tag("span"), tag("a", "Next page", href=next_href), class_="pager")
