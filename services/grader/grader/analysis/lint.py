"""Warnings about a grader, from responses that it graded: what may teach the policy something else than the task.

Each check is a function of graded rows alone; a warning names the rows that show it.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from grader.analysis.rows import GradedRow
from trajectory.types import Outcome, Scored

CONFLICT = -0.3
"""Pearson's correlation of two components below which they pull against each other."""
FEW_ROWS = 20
"""Below this many rows a correlation is uncertain, and the warning says so."""
MIN_SCORES = 3
"""That a check of the whole distribution needs."""
MIN_PAIRS = 5
"""Rows with both components that a correlation needs."""
SATURATED = 0.9
CLIPS_OFTEN = 0.05
MANY_TURNS = 3
TOLERANCE = 1e-9
NUM_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LintWarning:
    """One thing to look at."""

    check: str
    """constant, saturated, two_valued, final_only, conflict, clipping, uncounted_success, regrading_noise or
    unused_field."""
    text: str
    rows: tuple[str, ...]
    """Ids of rows that show it, at most NUM_EXAMPLES."""


def lint(
    rows: Sequence[GradedRow],
    *,
    regraded: Sequence[GradedRow] = (),
    read_fields: Collection[str] | None = None,
    result_names: Collection[str] = (),
) -> list[LintWarning]:
    """Return every warning.

    Args:
        rows: graded once.
        regraded: some of them graded a second time.
        read_fields: top-level reference fields that the grader reads; None if it reads the whole item.
        result_names: graders that say whether the task was done, and not only how.
    """
    found = (
        spread(rows)
        + final_only(rows)
        + conflicts(rows)
        + clipping(rows)
        + uncounted_success(rows, result_names)
        + regrading_noise(rows, regraded)
    )
    return found if read_fields is None else found + unused_fields(rows, read_fields)


def spread(rows: Sequence[GradedRow]) -> list[LintWarning]:
    """Warn of scores that are all equal, nearly all at the top, or only two."""
    scored = _scored(rows)
    if len(scored) < MIN_SCORES:
        return []
    by_value: dict[float, list[str]] = {}
    for row, judged in scored:
        by_value.setdefault(round(judged.score, 9), []).append(row.row_id)
    if len(by_value) == 1:
        (value,) = by_value
        text = f"all {len(scored)} scores are {value:g}: nothing to learn from"
        return [_warning("constant", text, [row.row_id for row, _ in scored])]
    found = []
    at_top = [row.row_id for row, judged in scored if judged.score >= row.high - TOLERANCE]
    share = len(at_top) / len(scored)
    if share > SATURATED:
        text = f"{share:.1%} of {len(scored)} scores are at the maximum: hardly anything to learn"
        found.append(_warning("saturated", text, at_top))
    if len(by_value) == 2:
        low, high = sorted(by_value)
        text = (
            f"the {len(scored)} scores take two values only, {low:g} and {high:g}: "
            "a component with degrees tells near misses from nonsense"
        )
        found.append(_warning("two_valued", text, [by_value[low][0], by_value[high][0]]))
    return found


def final_only(rows: Sequence[GradedRow]) -> list[LintWarning]:
    """Warn of rollouts of many turns whose only reward comes at the end."""
    scored = _scored(rows)
    shown = [
        row.row_id
        for row, judged in scored
        if row.turn_count > MANY_TURNS and not judged.step_rewards
    ]
    if not shown:
        return []
    text = (
        f"{len(shown)} of {len(scored)} scored rows have more than {MANY_TURNS} turns and one reward "
        "at the end: a step grader says which turn helped"
    )
    return [_warning("final_only", text, shown)]


def conflicts(rows: Sequence[GradedRow]) -> list[LintWarning]:
    """Warn of pairs of components, at least one of them counted, with Pearson's correlation below CONFLICT."""
    columns: dict[str, dict[str, float]] = {}
    counted: set[str] = set()
    for row, judged in _scored(rows):
        for reward in judged.rewards:
            columns.setdefault(reward.name, {})[row.row_id] = reward.value
            if reward.weight > 0:
                counted.add(reward.name)
    found = []
    for left, right in combinations(columns, 2):
        shared = [row_id for row_id in columns[left] if row_id in columns[right]]
        if len(shared) < MIN_PAIRS or not counted & {left, right}:
            continue
        xs = [columns[left][row_id] for row_id in shared]
        ys = [columns[right][row_id] for row_id in shared]
        correlation = pearson(xs, ys)
        if correlation is not None and correlation < CONFLICT:
            found.append(_conflict(left, right, correlation, shared, _products(xs, ys)))
    return found


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return the product-moment correlation (Pearson 1895); None where either side is constant up to rounding."""
    products = _products(xs, ys)
    spread_x, spread_y = math.fsum(_products(xs, xs)), math.fsum(_products(ys, ys))
    if min(spread_x, spread_y) <= len(xs) * TOLERANCE**2:
        return None
    return math.fsum(products) / (math.sqrt(spread_x) * math.sqrt(spread_y))


def clipping(rows: Sequence[GradedRow]) -> list[LintWarning]:
    """Warn of a range that cuts off more than CLIPS_OFTEN of the combined scores."""
    placed = [row for row in rows if row.unbounded is not None]
    below = [row for row in placed if _value(row) < row.low - TOLERANCE]
    above = [row for row in placed if _value(row) > row.high + TOLERANCE]
    cut = below + above
    if not placed or len(cut) / len(placed) <= CLIPS_OFTEN:
        return []
    values = [_value(row) for row in placed]
    text = (
        f"{len(cut)} of {len(placed)} combined scores lie outside the range "
        f"[{placed[0].low:g}, {placed[0].high:g}] and are cut off ({len(below)} below, {len(above)} above; "
        f"found {min(values):g} to {max(values):g}): widen the range or use rule affine"
    )
    return [_warning("clipping", text, [row.row_id for row in cut])]


def uncounted_success(
    rows: Sequence[GradedRow], result_names: Collection[str]
) -> list[LintWarning]:
    """Warn of tasks that were done by a grader of weight 0 alone: everything that counts is 0 or less.

    Graders that say only how something was done, such as style, approve of wrong answers too and are not asked.
    """
    shown: dict[str, list[str]] = {}
    for row, judged in _scored(rows):
        counted = [reward.value for reward in judged.rewards if reward.weight > 0]
        if not counted or max(counted) > 0:
            continue
        for reward in judged.rewards:
            if reward.name in result_names and reward.weight == 0 and reward.value >= 1:
                shown.setdefault(reward.name, []).append(row.row_id)
    return [
        _warning(
            "uncounted_success",
            f"{name}, which has weight 0, takes {len(row_ids)} of {len(rows)} rows for a success of which "
            "everything that counts is 0: the policy is not paid for them",
            row_ids,
        )
        for name, row_ids in shown.items()
    ]


def regrading_noise(rows: Sequence[GradedRow], regraded: Sequence[GradedRow]) -> list[LintWarning]:
    """Warn of rows that were judged differently the second time."""
    first = {row.row_id: row for row in rows}
    pairs = [(first[row.row_id], row) for row in regraded if row.row_id in first]
    changed = [(a, b) for a, b in pairs if _judgement(a.outcome) != _judgement(b.outcome)]
    if not changed:
        return []
    differences = [
        abs(a.scored.score - b.scored.score) for a, b in changed if a.scored and b.scored
    ]
    flips = len(changed) - len(differences)
    parts = [f"{len(changed)} of {len(pairs)} rows were judged differently the second time"]
    if differences:
        mean = math.fsum(differences) / len(pairs)
        parts.append(f"mean difference {mean:.3g}, largest {max(differences):.3g}")
    if flips:
        parts.append(f"{flips} had a score only once")
    return [_warning("regrading_noise", "; ".join(parts), [a.row_id for a, _ in changed])]


def unused_fields(rows: Sequence[GradedRow], read_fields: Collection[str]) -> list[LintWarning]:
    """Warn of reference fields that the grader never looks at."""
    counts = Counter(name for row in rows for name in row.fields if name not in read_fields)
    return [
        _warning(
            "unused_field",
            f"the reference field {name} (in {count} of {len(rows)} rows) is not read by the grader",
            [row.row_id for row in rows if name in row.fields],
        )
        for name, count in sorted(counts.items())
    ]


def _scored(rows: Sequence[GradedRow]) -> list[tuple[GradedRow, Scored]]:
    return [(row, row.scored) for row in rows if row.scored is not None]


def _value(row: GradedRow) -> float:
    assert row.unbounded is not None
    return row.unbounded


def _judgement(outcome: Outcome) -> Mapping[str, float] | str:
    """Return what must be the same the second time: the figures, or that there are none."""
    if not isinstance(outcome, Scored):
        return type(outcome).__name__
    return {"": outcome.score} | {reward.name: reward.value for reward in outcome.rewards}


def _products(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """Return (x - mean of x) * (y - mean of y), pair by pair."""
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    return [(x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)]


def _conflict(
    left: str, right: str, correlation: float, row_ids: Sequence[str], products: Sequence[float]
) -> LintWarning:
    few = "; few rows, so uncertain" if len(row_ids) < FEW_ROWS else ""
    worst = sorted(zip(products, row_ids, strict=True))
    return _warning(
        "conflict",
        f"{left} and {right} pull against each other: correlation {correlation:.2f} "
        f"over n = {len(row_ids)} rows{few}",
        [row_id for product, row_id in worst if product < 0],
    )


def _warning(check: str, text: str, row_ids: Sequence[str]) -> LintWarning:
    return LintWarning(check=check, text=text, rows=tuple(row_ids[:NUM_EXAMPLES]))
