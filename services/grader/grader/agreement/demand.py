"""A minimum of agreement, and which comparisons fall short of it.

The minimum is for the lower end of the 95% interval, not for the kappa alone: what the agreement is at least, as far as
so many items can tell. It is for each judge against the majority of people; where there is no judge, for every pair of
people.
"""

from grader.agreement.cohen import Kappa
from grader.agreement.labels import refused
from grader.agreement.measure import AgreementTable, Comparison


def demanded(table: AgreementTable) -> tuple[Comparison, ...]:
    """Return the comparisons that a minimum is for."""
    against = "majority" if table.judges else "rater"
    return tuple(row for row in table.comparisons if row.against == against)


def checked_minimum(minimum: float) -> float:
    """Return a minimum from 0 to 1.

    Raises:
        InvalidArgument: it is another number, or none.
    """
    if not 0 <= minimum <= 1:
        raise refused("minimum", f"found {minimum}, expected a number from 0 to 1")
    return minimum


def shortfalls(table: AgreementTable, minimum: float) -> tuple[str, ...]:
    """Return a sentence for each comparison below the minimum; none means that it is met.

    Args:
        table: what was measured.
        minimum: for the lower end of the interval, from 0 to 1.
    """
    texts = (_shortfall(row, minimum) for row in demanded(table))
    return tuple(text for text in texts if text)


def figures(kappa: Kappa) -> str:
    """Return a kappa with its interval, for sentences."""
    if kappa.kappa is None:
        return f"undefined kappa ({kappa.undefined})"
    if kappa.interval is None:
        return f"kappa {kappa.kappa:.3f}"
    return f"kappa {kappa.kappa:.3f} [{kappa.interval.low:.3f}, {kappa.interval.high:.3f}]"


def _shortfall(row: Comparison, minimum: float) -> str:
    kappa = row.kappa
    found = f"{row.name} has {figures(kappa)} over {kappa.num_items} items"
    if kappa.kappa is None or kappa.interval is None:
        return f"{found}, and the minimum is {minimum:g}"
    if kappa.interval.low < minimum:
        return f"{found}; the lower end of the interval is below the minimum of {minimum:g}"
    return ""
