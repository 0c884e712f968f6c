"""`hone kappa`: how far raters agree."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone_cli.errors import FAILED, USAGE, CliError
from hone_cli.options import AsJson

if TYPE_CHECKING:
    from hone_cli.labelfiles import LabelFile
    from hone_cli.labelling import JudgeFile, Layout


class Weight(StrEnum):
    """How far apart two labels are."""

    none = "none"
    linear = "linear"
    quadratic = "quadratic"


def kappa(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Labels: .csv, .tsv, .jsonl or a .json list.",
            show_default=False,
        ),
    ],
    raters: Annotated[
        list[str] | None,
        typer.Option(
            "--raters",
            metavar="A,B,C",
            help="Raters to compare, in a wide file columns; by default all but id and ignored ones.",
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            metavar="FILE[:COLUMN]|RATER",
            help="A judge, without a vote in the majority: a file with id and label, or a rater of FILE. Repeatable.",
        ),
    ] = None,
    id_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--id", metavar="COLUMN", help="Column of the item's id; several name it together."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="COLUMN", help="Columns that are no raters."),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="A row is one label: columns item, rater, label.")
    ] = False,
    rater_column: Annotated[
        str, typer.Option("--rater-column", metavar="COLUMN", help="With --long, instead of rater.")
    ] = "",
    label_column: Annotated[
        str, typer.Option("--label-column", metavar="COLUMN", help="With --long, instead of label.")
    ] = "label",
    weights: Annotated[
        Weight,
        typer.Option("--weights", help="How far apart labels count; for labels in an order."),
    ] = Weight.none,
    order: Annotated[
        list[str] | None,
        typer.Option(
            "--order", metavar="LOW,..,HIGH", help="Labels from lowest to highest, for --weights."
        ),
    ] = None,
    missing: Annotated[
        list[str] | None,
        typer.Option(
            "--missing", metavar="WORD", help="A label that means none was given. Repeatable."
        ),
    ] = None,
    read_as: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="LABEL=LABEL", help="Read a label as another. Repeatable."),
    ] = None,
    minimum: Annotated[
        float | None,
        typer.Option(
            "--minimum",
            metavar="KAPPA",
            help="Exit code 1 unless the lower end of the interval reaches it: of each judge against the "
            "majority, or without judges of each pair.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the intervals' resamples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how far raters agree: Cohen's kappa of each pair and against the majority, with 95% intervals.

    Missing labels and tied majorities are left out and counted. Needs no running suite.
    """
    from grader.agreement.demand import checked_minimum, shortfalls
    from grader.agreement.measure import measure
    from hone_cli import render_kappa
    from hone_cli.labelfiles import read_label_file
    from hone_cli.labelling import Layout, gather
    from servicekit.errors import InvalidArgument

    read = [read_label_file(path) for path in files]
    columns = {name for file in read for name in file.columns}
    layout = Layout(
        id=_names(id_columns, columns),
        raters=_names(raters, columns),
        ignore=_names(ignore, columns),
        long=long,
        rater_column=rater_column,
        label_column=label_column,
        missing=tuple(missing or ()),
        aliases=_aliases(read_as or ()),
    )
    judge_files, judges = _judges(judge or (), read, layout)
    found = gather(read, layout, judge_files=judge_files, judges=judges)
    try:
        lowest = None if minimum is None else checked_minimum(minimum)
        table = measure(found.ratings, weights=weights.value, order=_names(order, ()), seed=seed)
    except InvalidArgument as error:
        raise CliError(error.message, USAGE) from error
    short = shortfalls(table, lowest) if lowest is not None else ()
    if as_json:
        typer.echo(render_kappa.as_json(table, found.notes, lowest, short))
    else:
        typer.echo(render_kappa.as_text(table, found.notes))
    if short:
        raise CliError("the agreement is below the minimum: " + "\n".join(short), FAILED)


def _names(given: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Splits lists at commas, except where a column's own name has one."""
    names: list[str] = []
    for text in given or ():
        names += [text] if text in known else [part.strip() for part in text.split(",")]
    return tuple(name for name in names if name)


def _aliases(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        label, equals, meant = text.rpartition("=")
        if not equals:
            raise CliError(f"--map: found {text!r}, expected LABEL=LABEL, as in Tie=0", USAGE)
        found[label] = meant
    return found


def _judges(
    given: Sequence[str], files: "Sequence[LabelFile]", layout: "Layout"
) -> "tuple[list[JudgeFile], list[str]]":
    """Tells files of judges from judges that are raters of the files."""
    from hone_cli.labelfiles import read_label_file
    from hone_cli.labelling import JudgeFile

    judge_files, names = [], []
    for text in given:
        path, _, column = text.rpartition(":")
        if Path(text).is_file():
            judge_files.append(JudgeFile(file=read_label_file(Path(text)), column=""))
        elif path and Path(path).is_file():
            judge_files.append(JudgeFile(file=read_label_file(Path(path)), column=column))
        elif layout.long or any(text in file.columns for file in files):
            names.append(text)
        else:
            raise CliError(f"--judge: found {text!r}, expected a file of labels or a column", USAGE)
    return judge_files, names
