"""How to read figures of agreement: words for a kappa, and warnings of what a bare kappa hides."""

from collections import Counter
from collections.abc import Iterator, Mapping

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


def comparison_warnings(name: str, kappa: Kappa) -> Iterator[str]:
    """Yield what the kappa of one comparison hides."""
    if kappa.undefined:
        yield f"{name}: kappa is undefined, {kappa.undefined}"
        return
    assert kappa.kappa is not None
    if kappa.agreement >= HIGH_AGREEMENT and kappa.pabak - kappa.kappa >= PREVALENCE_GAP:
        yield (
            f"{name}: {kappa.agreement:.3f} of the labels are equal and kappa is {kappa.kappa:.3f}, "
            "as one label prevails (the kappa paradox, Feinstein & Cicchetti 1990): prevalence index "
            f"{kappa.prevalence_index:.2f}, bias index {kappa.bias_index:.2f}, adjusted kappa (PABAK) "
            f"{kappa.pabak:.3f}; add items with the rare labels"
        )
    if kappa.interval is not None and kappa.interval.num_undefined > RESAMPLES // 20:
        yield (
            f"{name}: kappa is undefined in {kappa.interval.num_undefined} of {RESAMPLES} resamples, "
            "which the interval leaves out; one label hardly occurs"
        )


def few_items_warning(num_items_by_name: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence for all comparisons that have too few items."""
    few = [name for name, count in num_items_by_name.items() if 0 < count < FEW_ITEMS]
    if few:
        more = f" and {len(few) - 3} more" if len(few) > 3 else ""
        yield (
            f"{', '.join(few[:3])}{more}: fewer than {FEW_ITEMS} items, so the interval is narrower "
            "than it should be; label more items before relying on it"
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
