"""Which of the similar memories are returned: MemRL's two phases (Zhang et al. 2026, arXiv:2601.03192)."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDING = 1e-6
"""Of cosines of float32 vectors: that of a text and itself may fall short of 1 by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen; indices are into the memories that were given."""

    candidates: tuple[int, ...]
    """What passed phase A, in the order given."""
    scores: tuple[float, ...]
    """Of the candidates."""
    selected: tuple[int, ...]
    """Best first, or in the order drawn."""

    def score_of(self, index: int) -> float:
        """Return a candidate's score."""
        return self.scores[self.candidates.index(index)]


def select(
    similarities: Floats,
    utilities: Floats,
    *,
    min_similarity: float,
    utility_weight: float,
    count: int,
    exploration_rate: float = 0.0,
    rng: random.Random | None = None,
) -> Selection:
    """Return the candidates of phase A, their scores, and the best of them.

    Phase A keeps similarity >= delta. Phase B scores (1 - lambda) z(similarity) + lambda z(utility), z over the
    candidates. Ties: the more similar first, then the one given first.

    Args:
        similarities: Cosines, shape [n].
        utilities: Q, shape [n].
        min_similarity: delta.
        utility_weight: lambda, from 0 to 1.
        count: k2, 1 or more.
        exploration_rate: epsilon; at this rate the selected are drawn evenly from the candidates instead.
        rng: Draws; needed where exploration_rate is above 0.
    """
    candidates = np.flatnonzero(similarities >= min_similarity - _ROUNDING)
    similarities, utilities = similarities[candidates], utilities[candidates]
    scores = (1 - utility_weight) * _z(similarities) + utility_weight * _z(utilities)
    # Of two candidates at lambda = 0.5, the more similar and the more useful have equal scores, but for rounding.
    # lexsort takes the last key first.
    best = np.lexsort((candidates, -similarities, -scores.round(9)))[:count]
    chosen = [int(index) for index in candidates[best]]
    if exploration_rate > 0:
        assert rng is not None
        if rng.random() < exploration_rate:
            chosen = rng.sample(candidates.tolist(), len(chosen))
    return Selection(
        candidates=tuple(candidates.tolist()),
        scores=tuple(scores.tolist()),
        selected=tuple(chosen),
    )


def _z(values: Floats) -> Floats:
    """Return how many population standard deviations each value is from the mean; 0 where all are equal."""
    deviation = values.std() if len(values) else 0.0
    # The mean of equal values may differ from them by a rounding, which would then be all their deviation.
    if deviation == 0 or values.max() == values.min():
        return np.zeros_like(values)
    scaled: Floats = (values - values.mean()) / deviation
    return scaled
