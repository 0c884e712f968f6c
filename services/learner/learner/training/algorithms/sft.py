"""Supervised fine-tuning: the masked cross-entropy of recorded conversations.

    L = -(1 / T) * sum over policy tokens of log pi(token | what came before)

T counts the policy tokens of the whole optimiser batch, not of a micro-batch.
"""

from collections.abc import Sequence

import numpy as np

from learner.training.algorithms.aggregation import AGGREGATIONS
from learner.training.algorithms.base import Batch, FirstPass, ScoredTokens, Targets, TokenLoss
from learner.training.rows import MaskedRow, policy_tokens


class Sft:
    """Imitates."""

    @property
    def needs_reference(self) -> bool:
        """Never."""
        return False

    @property
    def needs_values(self) -> bool:
        """Never."""
        return False

    @property
    def needs_scores_first(self) -> bool:
        """Never."""
        return False

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns the zeros of the batch: nothing is better or worse than the text."""
        return Targets(advantages_T=batch.advantages_T)

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the negative log-probabilities."""
        return TokenLoss(loss_P=-tokens.logprobs_P)


def sft_batch(rows: Sequence[MaskedRow], *, aggregation: str = "token_mean") -> Batch:
    """Puts rows together; each row is a sequence of its own.

    Raises:
        ValueError: there is no row, or a row cannot be trained on.
    """
    if not rows:
        raise ValueError("the batch holds no row")
    tokens = policy_tokens(rows)
    per_row = AGGREGATIONS[aggregation]([[count] for count in tokens.counts], max(tokens.counts))
    weights = np.repeat([weight for (weight,) in per_row], tokens.counts)
    figures = {"tokens/trained": float(tokens.num_tokens)}
    zeros = np.zeros(tokens.num_tokens)
    return Batch(tokens=tokens, weights_T=weights, advantages_T=zeros, figures=figures)
