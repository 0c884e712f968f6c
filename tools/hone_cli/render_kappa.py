"""Agreement of raters for people and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from grader.agreement.bootstrap import Interval
from grader.agreement.cohen import Kappa
from grader.agreement.meaning import strength_of
from grader.agreement.measure import AgreementTable
from grader.agreement.several import GroupAgreement
from hone_cli.text import safe, shortened, table

_GROUP_NAMES = {"fleiss_kappa": "Fleiss' kappa", "krippendorff_alpha": "Krippendorff's alpha"}
_HEADINGS = (
    "raters",
    "items",
    "left out",
    "equal",
    "po",
    "pe",
    "kappa",
    "95% interval",
    "strength",
)
_LEFT = frozenset({"raters", "strength"})


def as_text(found: AgreementTable, notes: Sequence[str]) -> str:
    """A table with its warnings below."""
    lines = [_heading(found), "", _comparisons(found)]
    if found.groups:
        lines += ["", *(_group(group) for group in found.groups)]
    lines += ["", "strength in the words of Landis & Koch 1977"]
    if any(row.against == "majority_of_others" for row in found.comparisons):
        lines.append(
            "a person is compared with the majority of the others; where these are tied, the item is left out"
        )
    lines += [f"warning: {safe(text)}" for text in (*notes, *found.warnings)]
    return "\n".join(lines)


def as_json(
    found: AgreementTable, notes: Sequence[str], minimum: float | None, short: Sequence[str]
) -> str:
    """Everything that was measured; an undefined kappa is null and says why."""
    fields = asdict(found)
    for row, comparison in zip(fields["comparisons"], found.comparisons, strict=True):
        row["name"] = comparison.name
        kappa = comparison.kappa.kappa
        row["kappa"]["strength"] = None if kappa is None else strength_of(kappa)
    fields["warnings"] = [*notes, *found.warnings]
    if minimum is not None:
        fields["minimum"] = {"value": minimum, "met": not short, "shortfalls": list(short)}
    return json.dumps(fields, indent=2, ensure_ascii=False)


def _heading(found: AgreementTable) -> str:
    labels = shortened(", ".join(map(safe, found.labels)), 80)
    judges = f", judges {', '.join(map(safe, found.judges))}" if found.judges else ""
    weights = f", {found.weights} weights" if found.weights != "none" else ""
    return f"{found.num_items} items, people {', '.join(map(safe, found.people))}{judges}; labels {labels}{weights}"


def _comparisons(found: AgreementTable) -> str:
    rows: list[tuple[str, ...]] = []
    for row in found.comparisons:
        kappa = row.kappa
        left_out = str(row.num_missing) + (f" + {row.num_tied} tied" if row.num_tied else "")
        measured = kappa.num_items > 0
        rows.append(
            (
                safe(row.name),
                str(kappa.num_items),
                left_out,
                f"{kappa.agreement:.3f}" if measured else "-",
                f"{kappa.observed:.3f}" if measured else "-",
                f"{kappa.expected:.3f}" if measured else "-",
                "undefined" if kappa.kappa is None else f"{kappa.kappa:.3f}",
                _interval(kappa.interval),
                _strength(kappa),
            )
        )
    if found.weights != "none":
        return table(_HEADINGS, rows, left=_LEFT)
    # Without weights po is the share of equal labels: one column says it.
    return table(_without(_HEADINGS, 3), [_without(row, 3) for row in rows], left=_LEFT)


def _without(row: tuple[str, ...], index: int) -> tuple[str, ...]:
    return (*row[:index], *row[index + 1 :])


def _group(group: GroupAgreement) -> str:
    value = f"undefined ({safe(group.undefined)})" if group.value is None else f"{group.value:.3f}"
    interval = f" {_interval(group.interval)}" if group.interval else ""
    return (
        f"{_GROUP_NAMES[group.coefficient]} of {group.num_raters} people over {group.num_items} items: "
        f"{value}{interval}"
    )


def _interval(interval: Interval | None) -> str:
    return f"[{interval.low:.3f}, {interval.high:.3f}]" if interval else "-"


def _strength(kappa: Kappa) -> str:
    return safe(kappa.undefined) if kappa.kappa is None else strength_of(kappa.kappa)
