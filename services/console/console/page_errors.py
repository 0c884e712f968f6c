"""The part of a run's page that says why rollouts did not succeed, step by step, each count with an example."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from console.archive_reader import ResultCount
from console.markup import Child, tag
from console.page_layout import table
from console.wording import step_number

RESULTS = (
    "success",
    "reasoning",
    "format",
    "extraction",
    "tool_use",
    "budget",
    "infrastructure",
    "unjudged",
)
"""In the order of the columns."""
READ = ("success", "reasoning", "format", "tool_use", "budget")
"""Responses whose answer could be read, and judged."""
EXTRACTION_ALARM = 0.02
"""Share of answers that could not be read above which the grader needs mending."""
MAX_STEPS = 20


def errors_section(found: Sequence[ResultCount], link: Callable[[str], str]) -> Child:
    """Shows both accuracies and the counts of the last steps; nothing while no rollout has ended.

    Args:
        found: counts in the order of the log.
        link: the address of a rollout's page.
    """
    if not found:
        return None
    by_step: dict[str, list[ResultCount]] = {}
    for count in found:
        step = step_number(count.step, count.phase)
        name = f"{count.phase} {step}" if count.phase else "not said"
        by_step.setdefault(name, []).append(count)
    shown = list(by_step.items())[-MAX_STEPS:]
    rows = [_row(name, counts, link) for name, counts in [("all", found), *shown]]
    heads = [("Step", "t"), *((result.replace("_", " "), "n") for result in RESULTS)]
    return (
        tag("h2", "Why rollouts did not succeed"),
        _accuracy(_totals(found)),
        table(heads, rows, ""),
    )


def _accuracy(total: Mapping[str, int]) -> Child:
    num_read = sum(total[result] for result in READ)
    num_judged = num_read + total["extraction"]
    if not num_judged:
        return None
    share = total["extraction"] / num_judged
    without = f"{total['success'] / num_read:.3f}" if num_read else "unknown"
    text = (
        f"Accuracy {total['success'] / num_judged:.3f}, without answers that could not be read "
        f"{without}; {share:.1%} could not be read"
    )
    if share > EXTRACTION_ALARM:
        alarm = f"{text}: above {EXTRACTION_ALARM:.0%} the grader needs mending."
        return tag("p", alarm, class_="note bad")
    return tag("p", f"{text}.", class_="quiet")


def _totals(counts: Sequence[ResultCount]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total[count.result] += count.num
    return total


def _row(name: str, counts: Sequence[ResultCount], link: Callable[[str], str]) -> list[Child]:
    total = _totals(counts)
    examples = {count.result: count.example for count in counts}
    return [
        name,
        *(
            tag("a", str(total[result]), href=link(examples[result])) if total[result] else ""
            for result in RESULTS
        ),
    ]
