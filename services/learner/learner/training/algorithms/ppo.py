"""PPO: a value head says what to expect, GAE what came over it, a clipped ratio how far to go (arXiv:1707.06347).

    reward of a token   - kl_coef * KL_t, and at the last token of a turn what the grader gave for the turn;
                        at the rollout's last token what the score has beyond that
    A_t                 GAE, then whitened over the batch
    l_t                 -min(rho A, clip(rho) A) + value_coef * 1/2 max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2)

Of PPO's four models the policy, the reference and the value model are one here: the reference is the base (or a frozen
adapter) and the value a linear head on the policy's hidden states; the fourth, the reward model, is the grader.

Shapes: T policy tokens of a batch, P of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from learner.training.algorithms.gae import discounts, gae, whiten
from learner.training.algorithms.kl import KL_ESTIMATES
from learner.training.algorithms.policy_gradient import PolicyGradient, PolicyGradientSettings
from learner.training.algorithms.rollout_batch import RolloutBatchSettings, rollout_batch
from learner.training.rows import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """What may be chosen beside the policy's loss."""

    policy: PolicyGradientSettings = field(default_factory=PolicyGradientSettings)
    gamma: float = 1.0
    """Per turn."""
    gae_lambda: float = 0.95
    """Per policy token."""
    value_coef: float = 0.1
    value_clip: float = 0.2
    """How far the value may move from what it was, per batch."""


class Ppo:
    """The policy's and the value head's loss."""

    def __init__(self, settings: PpoSettings) -> None:
        """Takes what may be chosen."""
        self._settings = settings
        self._policy = PolicyGradient(settings.policy)

    @property
    def needs_reference(self) -> bool:
        """Where the KL has a weight."""
        return self._policy.needs_reference

    @property
    def needs_values(self) -> bool:
        """Always."""
        return True

    @property
    def needs_scores_first(self) -> bool:
        """Always: advantages are made of values."""
        return True

    def batch(self, groups: Sequence[Sequence[ScoredRollout]]) -> Batch:
        """Puts scored rollouts together; groups mean nothing here.

        Raises:
            ValueError: a score is not finite, or a row cannot be trained on.
        """
        policy = self._settings.policy
        return rollout_batch(
            groups,
            _none,
            RolloutBatchSettings(
                aggregation=policy.aggregation,
                max_tokens=policy.max_tokens,
                overlong_buffer=policy.overlong_buffer,
                keep_all=True,
                turn_rewards=True,
                bootstrap=True,
            ),
        )

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns whitened advantages and what the value head should say."""
        assert batch.rewards is not None and batch.turn_T is not None and batch.real_T is not None
        settings = self._settings
        costs_T = np.zeros(batch.tokens.num_tokens)
        if settings.policy.kl_coef > 0 and settings.policy.kl_in_reward:
            kl_T = KL_ESTIMATES[settings.policy.kl_estimator](
                torch.from_numpy(first.old_logprobs_T), torch.from_numpy(first.reference_logprobs_T)
            ).numpy()
            costs_T = settings.policy.kl_coef * kl_T
        advantages_T, returns_T = np.zeros(len(costs_T)), np.zeros(len(costs_T))
        edges = np.cumsum([0, *batch.tokens.counts])
        flat = batch.rewards.flat
        for row, rollout in enumerate(batch.rewards.rollout_R):
            mine = np.arange(edges[row], edges[row + 1])
            real = mine[batch.real_T[mine]]
            cut_off = mine[~batch.real_T[mine]]
            estimate = gae(
                token_rewards(
                    float(flat[rollout]),
                    batch.rewards.turn_rewards[rollout],
                    batch.turn_T[real],
                )
                - costs_T[real],
                first.values_T[real],
                discounts(batch.turn_T[real], settings.gamma),
                settings.gae_lambda,
                bootstrap=float(first.values_T[cut_off[0]]) if len(cut_off) else 0.0,
            )
            advantages_T[real] = estimate.advantages_T
            returns_T[real] = estimate.returns_T
        real_T = batch.real_T
        advantages_T[real_T] = whiten(advantages_T[real_T])
        return Targets(
            advantages_T=advantages_T,
            returns_T=returns_T,
            figures=_value_figures(first.values_T[real_T], returns_T[real_T]),
        )

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the loss of each token, the value head's part included."""
        assert tokens.values_P is not None
        found = self._policy.token_loss(tokens)
        value_P = value_loss(
            tokens.values_P, tokens.old_values_P, tokens.returns_P, self._settings.value_clip
        )
        part_P = self._settings.value_coef * value_P
        return TokenLoss(
            loss_P=found.loss_P + part_P,
            clipped_P=found.clipped_P,
            value_loss_P=part_P.detach(),
            importance_P=found.importance_P,
        )


def token_rewards(score: float, turn_rewards: Sequence[float], turn_T: IntArray) -> FloatArray:
    """Returns the reward of each policy token of a row; their sum is the score.

    A turn's reward lies on its last token; one of a turn that has no token here, and what the score has beyond the
    turns, on the row's last token, even if tool results follow it.
    """
    rewards = np.zeros(len(turn_T))
    given = 0.0
    for turn, reward in enumerate(turn_rewards):
        places = np.flatnonzero(turn_T == turn)
        if len(places):
            rewards[places[-1]] += reward
            given += reward
    rewards[-1] += score - given
    return rewards


def value_loss(
    values_P: torch.Tensor, old_values_P: torch.Tensor, returns_P: torch.Tensor, clip: float
) -> torch.Tensor:
    """Returns half the squared error of each token, the larger of the free and the clipped value's."""
    clipped_P = old_values_P + (values_P - old_values_P).clamp(-clip, clip)
    errors = torch.maximum((values_P - returns_P).square(), (clipped_P - returns_P).square())
    return errors / 2


def _none(groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(rewards_G) for rewards_G in groups]


def _value_figures(values_T: FloatArray, returns_T: FloatArray) -> dict[str, float]:
    spread = float(returns_T.var()) if len(returns_T) else 0.0
    explained = 1.0 - float((returns_T - values_T).var()) / spread if spread > 0 else 0.0
    return {
        "value/mean": float(values_T.mean()) if len(values_T) else 0.0,
        "value/explained_var": explained,
    }
