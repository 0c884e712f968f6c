"""A comparison of runs for people and for programs."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_uppercase

from hone_cli.compare import Comparison, Difference, Extreme, Figure, Ranking
from hone_cli.demo.statistics import NUM_RESAMPLES
from hone_cli.render_run import console
from hone_cli.runview import COLUMNS
from hone_cli.text import number, safe, shortened, sparkline, table

_ALSO = ("eval/reward/mean", "eval/success_rate", "success_rate", "entropy", "kl", "grad_norm")
_MAX_STEPS = 12
_MAX_SETTING = 60


def as_plain(found: Comparison) -> dict[str, object]:
    """For programs: everything, runs in the order in which they were named."""
    return {
        "runs": [
            {"run_id": r.run_id, "algorithm": r.algorithm, "state": r.state, "steps": r.step}
            for r in found.runs
        ],
        "settings": dict(found.settings),
        "figures": {
            figure.name: {key: value for key, value in asdict(figure).items() if key != "name"}
            for figure in found.figures
        },
        "main": found.main,
        "curves": [{"step": step, "values": values} for step, values in found.curves.items()],
        "held_out": [
            asdict(one) | {"against": found.runs[0].run_id, "verdict": one.verdict}
            for one in found.differences
        ],
        "ranking": None if found.ranking is None else asdict(found.ranking),
    }


def print_comparison(found: Comparison, *, everything: bool = False) -> None:
    """For people: the runs go by letters, so that columns stay narrow."""
    out = console()
    letters = ascii_uppercase[: len(found.runs)]
    heads = [
        (letter, safe(r.run_id), safe(r.algorithm), r.state, str(r.step))
        for letter, r in zip(letters, found.runs, strict=True)
    ]
    out.print(table(("", "run", "algorithm", "state", "steps"), heads, left=_left("steps")))
    out.print("")
    if found.settings:
        rows = [
            (name, *(_setting(value) for value in values))
            for name, values in found.settings.items()
        ]
        out.print(table(("setting", *letters), rows, left=frozenset({"setting", *letters})))
    else:
        out.print("the settings are the same")
    shown = [f for f in found.figures if everything or f.name in _wanted(found)]
    if shown:
        out.print("")
        out.print(_figures(shown, letters))
    if len(found.curves) > 1:
        out.print("")
        out.print(_curves(found, letters))
    for one, letter in zip(found.differences, letters[1:], strict=True):
        out.print("")
        out.print(_difference(found, one, letter))
    if found.ranking is not None:
        out.print("")
        out.print(_ranking(found.ranking, letters))


def _left(*right: str) -> frozenset[str]:
    return frozenset({"", "run", "algorithm", "state", "steps"} - set(right))


def _wanted(found: Comparison) -> set[str]:
    names = {name for run in found.runs for name in COLUMNS.get(run.algorithm, COLUMNS["grpo"])}
    return names | set(_ALSO) | {found.main}


def _setting(value: object) -> str:
    return "-" if value is None else safe(shortened(str(value), _MAX_SETTING))


def _figures(shown: Sequence[Figure], letters: str) -> str:
    """One row per figure: at the last step that all have, best and last."""
    headings = ["figure", "step", *letters]
    if len(letters) == 2:
        headings.append("B - A")
    headings += [f"best {letter}" for letter in letters] + [f"last {letter}" for letter in letters]
    rows = []
    for figure in shown:
        step = "-" if figure.common_step is None else _updates(figure.name, figure.common_step)
        row = [figure.name, step, *(_value(value) for value in figure.at_common_step)]
        if len(letters) == 2:
            one, other = figure.at_common_step
            row.append("-" if one is None or other is None else f"{other - one:+.4g}")
        row += [_extreme(figure.name, found) for found in (*figure.best, *figure.last)]
        rows.append(row)
    return table(headings, rows, left=frozenset({"figure"}))


def _value(value: float | None) -> str:
    return "-" if value is None else number(value)


def _extreme(name: str, found: Extreme | None) -> str:
    return "-" if found is None else f"{number(found.value)} ({_updates(name, found.step)})"


def _updates(name: str, step: int) -> str:
    """Updates taken when a figure was: an evaluation comes before its step's update, all others with it."""
    return str(step if name.startswith("eval/") else step + 1)


def _curves(found: Comparison, letters: str) -> str:
    """The main figure by step, thinned out, and drawn."""
    steps = list(found.curves)
    every = -(-len(steps) // _MAX_STEPS)
    chosen = sorted({*steps[::every], steps[-1]})
    rows = [
        (_updates(found.main, step), *(_value(value) for value in found.curves[step]))
        for step in chosen
    ]
    lines = [f"{found.main} by step", table(("step", *letters), rows, left=frozenset())]
    for place, letter in enumerate(letters):
        values = [row[place] for row in found.curves.values()]
        told = [value for value in values if value is not None]
        if told:
            drawn = sparkline(values, encoding=sys.stdout.encoding)
            lines.append(f"{letter}  {drawn}  {number(min(told))} to {number(max(told))}")
    return "\n".join(lines)


def _difference(found: Comparison, one: Difference, letter: str) -> str:
    if one.estimate is None:
        return f"held-out reward, {letter} against A: not compared, as {one.reason}"
    first, other = (
        next(r.held_out for r in found.runs if r.run_id == run_id)
        for run_id in (found.runs[0].run_id, one.run_id)
    )
    assert first is not None
    assert other is not None
    left_out = f"; {one.num_left_out} that only one has are left out" if one.num_left_out else ""
    low, high = one.estimate.low, one.estimate.high
    return (
        f"held-out reward, {letter} against A: {one.estimate.value:+.4g}, 95% interval {low:+.4g} to "
        f"{high:+.4g}: {one.verdict}\n"
        f"  {one.num_tasks} tasks that both evaluated, A after {first.step} updates and {letter} after "
        f"{other.step}{left_out}; paired bootstrap of the tasks, {NUM_RESAMPLES} resamples"
    )


def _ranking(ranking: Ranking, letters: str) -> str:
    if ranking.strengths is None:
        return f"ranking: none, as {ranking.reason}"
    order = sorted(zip(ranking.strengths, letters, strict=True), reverse=True)
    told = ", ".join(f"{letter} {strength:.3g}" for strength, letter in order)
    return (
        f"ranking: {told}\n"
        f"  Bradley-Terry strengths by who did better on each of the {ranking.num_tasks} tasks that all "
        "evaluated, ties half"
    )
