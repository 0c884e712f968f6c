"""Figures beside their aims: printed as a table, kept as JSON."""

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    what: str
    figure: float | None
    """None where it could not be measured; `note` says why."""
    unit: str
    aim: float | None = None
    """The figure should be at most this."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """Say whether the aim is met."""
        if self.figure is None or self.aim is None:
            return ""
        return "met" if self.figure <= self.aim else "SHORT"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all lies."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser that knows what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    return parser


def report(rows: Sequence[Row], kept: Path | None, **facts: object) -> None:
    """Print and keep."""
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'figure':>10}  {'aim':>8}")
    for row in rows:
        figure = "-" if row.figure is None else f"{row.figure:.3g}"
        aim = "" if row.aim is None else f"{row.aim:g}"
        print(
            f"{row.what:{width}}  {figure:>10}  {aim:>8}  {row.unit:4} {row.verdict:5} {row.note}"
        )
    if kept is not None:
        machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "uid": os.geteuid()}
        content = {**machine, **facts, "rows": [asdict(row) for row in rows]}
        kept.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
