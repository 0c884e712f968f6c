"""DPO: preferences without a reward model or rollouts (arXiv:2305.18290, eq. 7).

    r(y)  = beta * sum over the policy tokens of y of (log pi - log pi_ref)
    ahead = r(chosen) - r(rejected) - margin
    l(x)  = -(1 - e) log sigmoid(x) - e log sigmoid(-x)
    L     = p l(ahead) + (1 - p) l(-ahead)

e is the label smoothing (0 by default), the margin an offset of the pair (ODPO, arXiv:2402.10571; 0 where a row has
none), p the soft label of a row, the probability that chosen is better (1 where a row has none). Conservative DPO takes
each label to be the wrong way round with probability e (Mitchell 2023, "A note on DPO with noisy preferences"; not
robust DPO, arXiv:2403.00409, which divides that noise out). A soft label is a share of hard ones, each of which may be
wrong, so the loss is cross-entropy against q = (1 - e) p + e (1 - p). What both responses begin with cancels out and is
computed once.

Shapes: P policy tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from learner.training.algorithms.base import Batch, FirstPass, ScoredTokens, Targets, TokenLoss
from learner.training.algorithms.pairs import (
    Pair,
    bradley_terry_loss,
    expected_loss,
    pair_batch,
    side_sums,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoSettings:
    """What may be chosen."""

    beta: float = 0.1
    label_smoothing: float = 0.0


class Dpo:
    """Makes the chosen response likelier, against the reference, than the rejected one."""

    def __init__(self, settings: DpoSettings) -> None:
        """Takes what may be chosen."""
        self._settings = settings

    @property
    def needs_reference(self) -> bool:
        """Always."""
        return True

    @property
    def needs_values(self) -> bool:
        """Never."""
        return False

    @property
    def needs_scores_first(self) -> bool:
        """Never: pairs go through the model whole."""
        return False

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """Puts pairs together.

        Raises:
            ValueError: there is no pair, or a row cannot be trained on.
        """
        return pair_batch(pairs)

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns the zeros of the batch: only the sides of a pair count."""
        return Targets(advantages_T=batch.advantages_T)

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns for each token the loss of its pair."""
        assert tokens.pairs is not None
        pairs, smoothing = tokens.pairs, self._settings.label_smoothing
        ratios = side_sums(tokens.logprobs_P - tokens.reference_logprobs_P, pairs)
        chosen_P, rejected_P = (
            self._settings.beta * ratio_P for ratio_P in (ratios.chosen_P, ratios.rejected_P)
        )
        ahead_P = chosen_P - rejected_P - pairs.margin_T
        won_P, lost_P = bradley_terry_loss(ahead_P), bradley_terry_loss(-ahead_P)
        if smoothing > 0:
            won_P, lost_P = (
                (1 - smoothing) * won_P + smoothing * lost_P,
                (1 - smoothing) * lost_P + smoothing * won_P,
            )
        loss_P = expected_loss(pairs.label_T, won_P, lost_P)
        rewards_P = torch.where(pairs.chosen_T, chosen_P, rejected_P).detach()
        return TokenLoss(loss_P=loss_P, rewards_P=rewards_P)
