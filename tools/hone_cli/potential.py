"""What an evaluation says of training on its tasks: shares of tasks with their intervals, and a verdict.

Pure; the learner measures, `render_run` and `runview` show. The limits are meant for 3 to 5 samples a task.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hone.learner.v1 import learner_pb2

from hone_cli.demo.statistics import Estimate, wilson
from hone_cli.text import number

GOOD_SHARE = 0.15
"""From this share of tasks with spread on, a set is worth training on."""
AMPLE_SHARE = 0.3
"""Above it there is more than a good sign asks for."""
POOR_SHARE = 0.1
"""Below this share of tasks with spread, a set is too easy or too hard."""
SMALL_GAIN = 0.05
"""Below this distance of best-of-k from the mean, there is little to gain."""
MIN_TASKS = 50
"""Below this number of tasks, estimates are noisy."""

_PASS = re.compile(r"pass@(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Potential:
    """Figures of the tasks that have two scored samples or more."""

    num_tasks: int
    num_too_few_samples: int
    """Tasks with fewer scored samples, which have no say in anything here."""
    samples: int
    """Asked for, per task."""
    group_size: int
    """Rollouts of a group in training."""
    spread: Estimate
    """Share of tasks whose scores differ, with its Wilson interval."""
    always_right: float
    always_wrong: float
    constant: float
    """Share of tasks that always get the same score in between."""
    pass_at: Mapping[int, float]
    mean: float
    best_of_k: float
    informative_groups: float
    """Expected share of groups whose rewards would differ."""
    verdict: str


def potential_of(run: learner_pb2.Run) -> Potential | None:
    """Reads the figures of a run; None where it is no evaluation, or one of single samples."""
    found = run.metrics
    if run.spec.algorithm != "evaluate" or not found.get("tasks/measured"):
        return None
    num_tasks = round(found["tasks/measured"])
    spread = wilson(round(found["tasks/spread_share"] * num_tasks), num_tasks)
    matches = ((_PASS.fullmatch(name), value) for name, value in found.items())
    return Potential(
        num_tasks=num_tasks,
        num_too_few_samples=round(found["tasks/too_few_samples"]),
        samples=run.spec.eval.samples,
        group_size=run.spec.train.group_size,
        spread=spread,
        always_right=found["tasks/always_right_share"],
        always_wrong=found["tasks/always_wrong_share"],
        constant=found["tasks/constant_share"],
        pass_at=dict(sorted((int(match[1]), value) for match, value in matches if match)),
        mean=found["reward/best_of_k"] - found["reward/potential_gain"],
        best_of_k=found["reward/best_of_k"],
        informative_groups=found["groups/informative_share"],
        verdict=_verdict(num_tasks, spread.value, found),
    )


def potential_plain(run: learner_pb2.Run) -> dict[str, object]:
    """The same for programs: `potential`, or nothing."""
    found = potential_of(run)
    return {} if found is None else {"potential": asdict(found)}


def lines(found: Potential) -> list[str]:
    """The same for people."""
    spread = found.spread
    told = [
        f"{_tasks(found.num_tasks)}, {found.samples} samples each",
        f"  with spread {_percent(spread.value)} (95% interval {_percent(spread.low)} to "
        f"{_percent(spread.high)})",
        f"  always right {_percent(found.always_right)}, always wrong {_percent(found.always_wrong)}, "
        f"always the same in between {_percent(found.constant)}",
        "  " + ", ".join(f"pass@{k} {number(value)}" for k, value in found.pass_at.items()),
        f"  mean reward {number(found.mean)}, best of {found.samples} {number(found.best_of_k)}; "
        f"about {_percent(found.informative_groups)} of groups of {found.group_size} would teach",
    ]
    if found.num_too_few_samples:
        told.append(
            f"  left out: {_tasks(found.num_too_few_samples)} with fewer than 2 scored samples"
        )
    return [*told, f"  verdict: {found.verdict}"]


def _verdict(num_tasks: int, share: float, found: Mapping[str, float]) -> str:
    parts = [f"{_percent(share)} of tasks with spread is {_judged(share, found)}"]
    if found["reward/potential_gain"] < SMALL_GAIN:
        parts.append("best-of-k is near the mean, so there is little potential")
    if num_tasks < MIN_TASKS:
        parts.append(f"fewer than {MIN_TASKS} tasks make noisy estimates")
    return "; ".join(parts)


def _judged(share: float, found: Mapping[str, float]) -> str:
    if share >= GOOD_SHARE:
        return "a good sign" if share <= AMPLE_SHARE else "plenty to learn from"
    if share >= POOR_SHARE:
        return "little to learn from"
    others = {
        "are too easy": found["tasks/always_right_share"],
        "are too hard": found["tasks/always_wrong_share"],
        "always get one score in between": found["tasks/constant_share"],
    }
    what, largest = max(others.items(), key=lambda item: item[1])
    if 2 * largest <= sum(others.values()):
        return "too few: the tasks are too easy or too hard"
    return f"too few: most of the others {what}"


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{share:.1%}"
