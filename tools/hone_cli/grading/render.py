"""What a grading found, for people and as plain values for --json."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from grader.analysis.errors import ERRORS, TRAINED, ErrorReport, Result
from grader.analysis.lint import LintWarning
from hone_cli.grading.session import Validated
from hone_cli.grading.summary import Mean, Summary
from hone_cli.text import number, safe, shortened, table


def summary_text(summary: Summary) -> str:
    """Lays the figures out."""
    lines = [
        f"{summary.num_rows} graded: {summary.num_scored} scored ({summary.num_success} successes), "
        f"{sum(summary.masked.values())} masked, {summary.num_failed} failed"
    ]
    if summary.score is not None:
        rows = [("score", "", *_cells(summary.score), str(summary.num_scored))]
        rows += [
            (safe(r.name), number(r.weight), *_cells(r.mean), str(r.num_rows))
            for r in summary.rewards
        ]
        headings = ("", "weight", "mean", "95% interval", "tasks", "rows")
        lines += ["", table(headings, rows, left=frozenset({""}))]
    counted = (
        ("not a success", summary.kinds),
        ("masked", summary.masked),
        ("flags", summary.flags),
        ("measured only, without a value", summary.errors),
        ("failed", summary.failed),
    )
    found = [f"{title}: {_counts(counts)}" for title, counts in counted if counts]
    for kind, examples in summary.failure_examples.items():
        found += [f"  {kind}, for example {safe(shortened(one, 300))}" for one in examples]
    return "\n".join([*lines, *([""] if found else []), *found])


def lint_text(warnings: Sequence[LintWarning]) -> str:
    """Lays warnings out, each with the rows that show it."""
    if not warnings:
        return "lint: nothing to warn of"
    lines = [f"lint: {len(warnings)} warning{'s' if len(warnings) > 1 else ''}"]
    for warning in warnings:
        lines.append(f"  {warning.check}: {safe(warning.text)}")
        lines.append(f"    for example {', '.join(map(safe, warning.rows))}")
    return "\n".join(lines)


def errors_text(report: ErrorReport) -> str:
    """Lays the error analysis out: counts, steps, examples, next steps."""
    lines = [f"errors of {report.num_attempts} rollouts"]
    if report.accuracy is not None:
        without = "-" if report.accuracy_read is None else f"{report.accuracy_read:.3f}"
        lines.append(
            f"  accuracy {report.accuracy:.3f}, without answers that could not be read {without} "
            f"({report.extraction_share:.1%} of the judged{', ALARM' if report.alarm else ''})"
        )
    shown = [Result.SUCCESS, *ERRORS, Result.UNJUDGED]
    rows = [
        (name, *(str(counts[result]) for result in shown))
        for name, counts in [
            ("all", report.counts),
            *((_step_name(name), counts) for name, counts in report.by_step.items()),
        ]
    ]
    headings = ("", *(str(result) for result in shown))
    lines += ["", table(headings, rows, left=frozenset({""})), ""]
    lines += [f"{kind}: {', '.join(map(safe, ids))}" for kind, ids in report.examples.items()]
    if report.causes:
        lines.append(f"causes of infrastructure errors: {_counts(report.causes)}")
    return "\n".join([*lines, *report.next_steps])


def _step_name(name: str) -> str:
    """Counts steps of training from 1; the step of an evaluation is a policy version, and stays."""
    phase, _, step = name.rpartition(" ")
    return f"{phase} {int(step) + 1}" if phase in TRAINED else name


def validation_text(found: Validated) -> str:
    """Lays out what the grader got wrong."""
    lines = [
        f"{safe(m.row_id)} ({safe(m.task_id)}): {m.check}: {safe(m.text)}" for m in found.mistakes
    ]
    wrong = len({mistake.row_id for mistake in found.mistakes})
    if not found.mistakes:
        verdict = "each gold answer scores at the top, no empty or other answer does"
    else:
        by_check = {check: 0 for check in ("gold", "empty", "other")}
        for mistake in found.mistakes:
            by_check[mistake.check] += 1
        verdict = f"{wrong} with a mistake ({_counts(by_check)})"
    return "\n".join([*lines, f"{found.num_tasks} tasks tried: {verdict}"])


def summary_plain(summary: Summary) -> dict[str, object]:
    """The figures as plain values."""
    return asdict(summary)


def lint_plain(warnings: Sequence[LintWarning]) -> list[dict[str, object]]:
    """The warnings as plain values."""
    return [asdict(warning) for warning in warnings]


def errors_plain(report: ErrorReport) -> dict[str, object]:
    """The error analysis as plain values."""
    return asdict(report)


def validation_plain(found: Validated) -> dict[str, object]:
    """The mistakes as plain values."""
    return asdict(found)


def _cells(mean: Mean) -> tuple[str, str, str]:
    unknown = mean.low is None or mean.high is None
    interval = "-" if unknown else f"[{mean.low:.3f}, {mean.high:.3f}]"
    return f"{mean.value:.3f}", interval, str(mean.num_tasks)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{safe(name)} {count}" for name, count in counts.items())
