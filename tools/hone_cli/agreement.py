"""The agreement that a run file demands, measured before anything is started."""

from dataclasses import dataclass
from pathlib import Path

from hone_cli.errors import FAILED, USAGE, CliError
from runspec.load import LoadedRun
from runspec.problems import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """A demand that is met."""

    summary: str
    """The comparison that came closest to the minimum, in a sentence."""
    warnings: tuple[str, ...]


def check_agreement(run: LoadedRun) -> Agreed | None:
    """Measures what `agreement` demands; None if it demands nothing.

    Raises:
        CliError: the labels cannot be compared, or they agree less than demanded; names file, kappa, interval, minimum.
    """
    wanted = run.spec.agreement
    if not wanted.labels:
        return None
    # numpy and the file formats are for runs that demand something.
    from grader.agreement.demand import demanded, figures, shortfalls
    from grader.agreement.measure import measure
    from hone_cli.labelfiles import read_label_file
    from hone_cli.labelling import Layout, gather
    from servicekit.errors import InvalidArgument

    path = Path(wanted.labels)
    layout = Layout(
        id=wanted.id,
        raters=wanted.raters,
        ignore=wanted.ignore,
        long=wanted.layout == "long",
        missing=wanted.missing,
    )
    gathered = gather([read_label_file(path)], layout, judges=wanted.judges)
    try:
        table = measure(gathered.ratings, weights=wanted.weights, order=wanted.order)
    except InvalidArgument as error:
        problem = run.problem("agreement.labels", f"{path}: {error.message}")
        raise CliError(str(SpecError([problem])), USAGE) from error
    short = shortfalls(table, wanted.minimum)
    if short:
        problems = [run.problem("agreement.minimum", f"{path}: {text}") for text in short]
        raise CliError(
            f"{SpecError(problems)}\nnothing was started; `hone kappa {path}` shows all figures",
            FAILED,
        )
    closest = min(
        demanded(table), key=lambda row: row.kappa.interval.low if row.kappa.interval else 0.0
    )
    return Agreed(
        summary=f"{closest.name} has {figures(closest.kappa)} over {closest.kappa.num_items} items, "
        f"the lowest of {len(demanded(table))}; the minimum of {wanted.minimum:g} is met",
        warnings=(*gathered.notes, *table.warnings),
    )
