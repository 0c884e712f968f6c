"""The coefficients as kept libraries compute them; imported when first needed, for each takes over a second."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def cohen_kappa(counts: NDArray[np.int64], positions: Sequence[int], weights: str) -> float:
    """Return Cohen's kappa by scikit-learn; for none with undefined kappa, which callers find out first.

    Args:
        counts: items by first and second rater's label, k x k.
        positions: of each label on a scale of equal steps, ascending.
        weights: none, linear or quadratic.
    """
    from sklearn.metrics import cohen_kappa_score

    first, second = np.nonzero(counts)
    places = np.asarray(positions)
    # Steps of the scale that nobody used count as distance too.
    steps = np.arange(places[-1] + 1) if weights != "none" else places
    kappa: float = cohen_kappa_score(
        places[first],
        places[second],
        labels=steps,
        weights=None if weights == "none" else weights,
        sample_weight=counts[first, second],
    )
    return float(kappa)


def fleiss_kappa(counts: NDArray[np.int64]) -> float:
    """Return Fleiss' kappa by statsmodels.

    Args:
        counts: raters by item and label, n x k, each row with the same sum.
    """
    from statsmodels.stats.inter_rater import fleiss_kappa as by_statsmodels

    return float(by_statsmodels(counts))


def krippendorff_alpha(rows: Sequence[tuple[str, int, str]]) -> float:
    """Return Krippendorff's alpha for nominal labels by NLTK.

    Args:
        rows: rater, item, label; items with a single label have no say.
    """
    from nltk.metrics.agreement import AnnotationTask

    return float(AnnotationTask(data=list(rows)).alpha())
