"""How to read figures of agreement: words for a kappa, and warnings of what a bare kappa hides."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from grader.agreement.bootstrap import RESAMPLES
from grader.agreement.cohen import Kappa
from grader.agreement.labels import is_number
from grader.agreement.ratings import Ratings

STRENGTHS = (
    (0.2, "slight"),
    (0.4, "fair"),
    (0.6, "moderate"),
    (0.8, "substantial"),
    (1.0, "almost perfect"),
)
"""Words for a kappa up to each bound, as in Landis & Koch 1977."""
FEW_ITEMS = 30
"""Below this many items an interval from resamples is too narrow to be relied on."""
HIGH_AGREEMENT = 0.8
"""Observed agreement at which a low kappa surprises."""
PREVALENCE_GAP = 0.2
"""How far a kappa lies below its prevalence-adjusted twin before it is said."""


def strength_of(kappa: float) -> str:
    """Return the word of Landis & Koch 1977 for a kappa."""
    if kappa < 0:
        return "poor"
    return next(word for bound, word in STRENGTHS if kappa <= bound or bound == 1.0)


def kappa_warnings(kappas: Mapping[str, Kappa]) -> Iterator[str]:
    """Yield what the kappas of a table hide, one text for all comparisons of a kind.

    Args:
        kappas: by name of the comparison.
    """
    if undefined := [name for name, kappa in kappas.items() if kappa.undefined]:
        yield f"kappa is undefined, which is neither 0 nor 1: {_listed(undefined)}"
    if paradoxes := [_paradox(name, kappa) for name, kappa in kappas.items() if _hidden(kappa)]:
        yield "\n  ".join(
            (
                "most labels are equal and kappa is low, as one label prevails (the kappa paradox, "
                "Feinstein & Cicchetti 1990); add items with the rare labels",
                *paradoxes,
            )
        )
    if few := [name for name, kappa in kappas.items() if 0 < kappa.num_items < FEW_ITEMS]:
        yield (
            f"fewer than {FEW_ITEMS} items, so the interval is narrower than it should be; label more "
            f"before relying on it: {_listed(few)}"
        )
    if rare := [name for name, kappa in kappas.items() if _often_undefined(kappa)]:
        yield (
            f"kappa is undefined in more than 5% of the {RESAMPLES} resamples, which the interval "
            f"leaves out, as a label hardly occurs: {_listed(rare)}"
        )


def label_warnings(ratings: Ratings) -> Iterator[str]:
    """Yield what looks wrong with the labels themselves."""
    counts = Counter(
        label for column in ratings.labels.values() for label in column if label is not None
    )
    words = sorted(label for label in counts if not is_number(label))
    if words and len(words) < len(counts):
        listed = ", ".join(f"{word!r} ({counts[word]})" for word in words[:5])
        yield f"labels are numbers and words mixed: {listed} are labels of their own"
    folded: dict[str, str] = {}
    for word in words:
        other = folded.setdefault(word.casefold(), word)
        if other != word:
            yield f"labels {other!r} and {word!r} differ in case only and count as different"


def _hidden(kappa: Kappa) -> bool:
    return (
        kappa.kappa is not None
        and kappa.agreement >= HIGH_AGREEMENT
        and kappa.pabak - kappa.kappa >= PREVALENCE_GAP
    )


def _paradox(name: str, kappa: Kappa) -> str:
    return (
        f"{name}: equal {kappa.agreement:.3f}, kappa {kappa.kappa:.3f}, prevalence index "
        f"{kappa.prevalence_index:.2f}, bias index {kappa.bias_index:.2f}, PABAK {kappa.pabak:.3f}"
    )


def _often_undefined(kappa: Kappa) -> bool:
    return kappa.interval is not None and kappa.interval.num_undefined > RESAMPLES // 20


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
