"""Reward model: a score for a whole conversation, learned from comparisons (arXiv:2203.02155, eq. 1).

    ahead = r(chosen) - r(rejected) - margin
    L     = -p log sigmoid(ahead) - (1 - p) log sigmoid(-ahead)

p is the soft label of a row, the probability that chosen is better (1 where a row has none).
The score is a linear head without a bias on the hidden state of the conversation's last token. A row carries one more
token than the conversation, which no one reads: it marks the state to be scored, wherever padding lies.

Shapes: P scored states of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from learner.training.algorithms.base import Batch, FirstPass, ScoredTokens, Targets, TokenLoss
from learner.training.algorithms.pairs import (
    Pair,
    bradley_terry_loss,
    expected_loss,
    pair_batch,
    side_sums,
)
from learner.training.rows import MaskedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """There is nothing to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A conversation whose last state is scored."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]

    @classmethod
    def of(cls, row: MaskedRow) -> "ScoredRow":
        """Adds the token that marks the last state."""
        ids = tuple(row.token_ids)
        return cls(token_ids=(*ids, ids[-1]), loss_mask=(*[False] * len(ids), True))


class RewardModel:
    """Scores the chosen conversation above the rejected one."""

    @property
    def needs_reference(self) -> bool:
        """Never."""
        return False

    @property
    def needs_values(self) -> bool:
        """Always: the head gives the score."""
        return True

    @property
    def needs_scores_first(self) -> bool:
        """Never: pairs go through the model whole."""
        return False

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """Puts pairs of whole conversations together, one row each; their masks do not matter.

        Raises:
            ValueError: there is no pair, or a conversation is empty.
        """
        marked = []
        for index, pair in enumerate(pairs):
            (chosen,), (rejected,) = pair.chosen, pair.rejected
            if not len(chosen.token_ids) or not len(rejected.token_ids):
                raise ValueError(f"pair {index}: a conversation holds no token")
            marked.append(
                replace(pair, chosen=(ScoredRow.of(chosen),), rejected=(ScoredRow.of(rejected),))
            )
        batch = pair_batch(marked)
        return replace(batch, real_T=np.zeros(batch.tokens.num_tokens, dtype=bool))

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns the zeros of the batch: only the sides of a pair count."""
        return Targets(advantages_T=batch.advantages_T)

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns for each scored state the loss of its pair."""
        assert tokens.values_P is not None and tokens.pairs is not None
        pairs = tokens.pairs
        scores = side_sums(tokens.values_P, pairs)
        ahead_P = scores.chosen_P - scores.rejected_P - pairs.margin_T
        loss_P = expected_loss(
            pairs.label_T, bradley_terry_loss(ahead_P), bradley_terry_loss(-ahead_P)
        )
        rewards_P = torch.where(pairs.chosen_T, scores.chosen_P, scores.rejected_P).detach()
        return TokenLoss(loss_P=loss_P, rewards_P=rewards_P)
