"""The loss that all reinforcement algorithms share: a clipped ratio times the advantage, and a KL.

    l_t = w_t * -min(rho_t A_t, clip(rho_t) A_t) + kl_coef * KL_t

They are told apart by their advantages, the kind of ratio, the place of the KL and the aggregation; `table` holds who
takes what. With the KL in the reward, its sum over a rollout's policy tokens is taken from the score before the
advantages are made, so these wait for a first pass over the batch.

Shapes: P policy tokens of a micro-batch, T of a batch, R rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from learner.ports import ScoredRollout
from learner.training.algorithms.base import (
    Batch,
    FirstPass,
    ScoredTokens,
    Targets,
    TokenLoss,
)
from learner.training.algorithms.by_turn import (
    Advantages,
    advantages_by_turn,
    earned_by_turn,
    token_advantages,
)
from learner.training.algorithms.grpo import advantages as grpo_advantages
from learner.training.algorithms.importance import sequence_weights, token_weights
from learner.training.algorithms.kl import KL_ESTIMATES
from learner.training.algorithms.ratios import clipped_loss, row_log_ratio, token_log_ratio
from learner.training.algorithms.reinforce_pp import normalised, returns_to_go
from learner.training.algorithms.rollout_batch import RolloutBatchSettings, rollout_batch
from learner.training.rows import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradientSettings:
    """What may be chosen."""

    advantages: Advantages = grpo_advantages
    per_token_returns: bool = False
    """Advantages are the returns of tokens, normalised over the batch (REINFORCE++), and not one per rollout."""
    turn_rewards: bool = False
    """Each turn answers for what came from it on; see `by_turn`."""
    only_groups_that_teach: bool = False
    """Groups without spread are as if they had not been sampled (DAPO)."""
    ratio_of_rows: bool = False
    """The ratio of a whole row (GSPO) instead of each token's."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_in_reward: bool = False
    importance_sampling: str = "none"
    """none, token or sequence: weights for what the engine sampled otherwise."""
    importance_cap: float = 2.0
    aggregation: str = "token_mean"
    max_tokens: int = 1
    """Policy tokens that a rollout may have."""
    overlong_buffer: int = 0


class PolicyGradient:
    """One algorithm of the family."""

    def __init__(self, settings: PolicyGradientSettings) -> None:
        """Takes what tells it apart."""
        self._settings = settings

    @property
    def needs_reference(self) -> bool:
        """Where the KL has a weight."""
        return self._settings.kl_coef > 0

    @property
    def needs_values(self) -> bool:
        """Never: the group stands where PPO has a value model."""
        return False

    @property
    def needs_scores_first(self) -> bool:
        """Where the KL is a part of the reward."""
        return self._settings.kl_in_reward and self._settings.kl_coef > 0

    def batch(self, groups: Sequence[Sequence[ScoredRollout]]) -> Batch:
        """Puts scored rollouts together.

        Raises:
            ValueError: a score is not finite, or a row cannot be trained on.
        """
        settings = self._settings
        batch = rollout_batch(
            groups,
            settings.advantages,
            RolloutBatchSettings(
                aggregation=settings.aggregation,
                max_tokens=settings.max_tokens,
                overlong_buffer=settings.overlong_buffer,
                turn_rewards=settings.turn_rewards,
                only_groups_that_teach=settings.only_groups_that_teach,
                keep_all=settings.kl_coef > 0 or settings.per_token_returns,
            ),
        )
        if settings.per_token_returns and not self.needs_scores_first:
            free = np.zeros(batch.tokens.num_tokens)
            return replace(batch, advantages_T=self._returns(batch, free))
        return batch

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns the advantages of a batch whose reward holds the KL."""
        costs_T = self._kl_costs(first)
        if self._settings.per_token_returns:
            return Targets(advantages_T=self._returns(batch, costs_T))
        assert batch.rewards is not None and batch.turn_T is not None
        costs_R = np.add.reduceat(costs_T, np.cumsum([0, *batch.tokens.counts[:-1]]))
        rewarded = earned_by_turn(batch.rewards.less(costs_R), batch.rewards.turn_rewards)
        by_turn = advantages_by_turn(rewarded, self._settings.advantages)
        return Targets(
            advantages_T=token_advantages(
                by_turn, batch.rewards.rollout_R, batch.tokens.counts, batch.turn_T
            )
        )

    def _kl_costs(self, first: FirstPass) -> FloatArray:
        """Returns what the KL takes from the reward of each token."""
        estimate = KL_ESTIMATES[self._settings.kl_estimator]
        kl_T = estimate(
            torch.from_numpy(first.old_logprobs_T), torch.from_numpy(first.reference_logprobs_T)
        )
        costs_T: FloatArray = self._settings.kl_coef * kl_T.numpy()
        return costs_T

    def _returns(self, batch: Batch, costs_T: FloatArray) -> FloatArray:
        assert batch.rewards is not None
        rewards = batch.rewards.flat[np.asarray(batch.rewards.rollout_R, dtype=np.int64)]
        return normalised(returns_to_go(rewards.tolist(), costs_T, batch.tokens.counts))

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the loss of each token, KL included where it is in the loss."""
        settings = self._settings
        new, old = tokens.logprobs_P, tokens.old_logprobs_P
        loss_P, clipped_P = clipped_loss(
            row_log_ratio(new, old, tokens.row_P)
            if settings.ratio_of_rows
            else token_log_ratio(new, old),
            tokens.advantages_P,
            settings.clip_low,
            settings.clip_high,
            settings.dual_clip,
        )
        weights_P = self._importance(tokens)
        if weights_P is not None:
            loss_P = loss_P * weights_P
        if settings.kl_coef > 0 and not settings.kl_in_reward:
            kl_P = KL_ESTIMATES[settings.kl_estimator](new, tokens.reference_logprobs_P)
            loss_P = loss_P + settings.kl_coef * kl_P
        return TokenLoss(loss_P=loss_P, clipped_P=clipped_P, importance_P=weights_P)

    def _importance(self, tokens: ScoredTokens) -> torch.Tensor | None:
        settings, old, engine = self._settings, tokens.old_logprobs_P, tokens.engine_logprobs_P
        if settings.importance_sampling == "none":
            return None
        if settings.importance_sampling == "token":
            return token_weights(old, engine, settings.importance_cap)
        return sequence_weights(old, engine, tokens.row_P, settings.importance_cap)
