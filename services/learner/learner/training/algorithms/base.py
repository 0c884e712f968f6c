"""What every algorithm is: a loss per policy token, and what a batch must hold for it.

Shapes: T policy tokens of a batch, P policy tokens of a micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from learner.training.rows import BoolArray, FloatArray, IntArray, PolicyTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutRewards:
    """What the rollouts of a batch earned, for advantages that are made later."""

    groups: tuple[torch.Tensor, ...]
    """Rewards of each group's members, in float64; all of them, those without a row too."""
    rollout_R: tuple[int, ...]
    """Place of each row's rollout among all members."""
    turn_rewards: tuple[tuple[float, ...], ...] = ()
    """Of every member, by turn; empty where no turn is rewarded by itself, or the algorithm does not ask."""

    @property
    def flat(self) -> FloatArray:
        """The rewards of all members."""
        empty = torch.empty(0, dtype=torch.float64)
        return torch.cat([*self.groups, empty]).numpy()

    def less(self, costs_R: FloatArray) -> list[torch.Tensor]:
        """Returns the rewards of each group less what the rows cost; rows of a fork share the rollout's cost."""
        rollouts = np.asarray(self.rollout_R)
        size = sum(len(rewards) for rewards in self.groups)
        rows = np.bincount(rollouts, minlength=size)
        costs = np.bincount(rollouts, weights=costs_R, minlength=size) / np.maximum(rows, 1)
        edges = np.cumsum([len(rewards) for rewards in self.groups])[:-1]
        return [
            rewards - torch.from_numpy(part)
            for rewards, part in zip(self.groups, np.split(costs, edges), strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTokens:
    """Which comparison each policy token belongs to; a micro-batch holds all tokens of its pairs."""

    pair_T: torch.Tensor
    chosen_T: torch.Tensor
    """Whether it is of the response that the row calls chosen."""
    margin_T: torch.Tensor
    """By how much that one should be ahead."""
    label_T: torch.Tensor
    """Probability that it is the better one; 1 where the row says no more than which was chosen."""

    @property
    def likelier_T(self) -> torch.Tensor:
        """Whether it is of the response that the label holds for the better one; at 0.5 of the chosen one."""
        return self.chosen_T ^ (self.label_T < 0.5)

    def at(self, tokens_P: torch.Tensor) -> "PairTokens":
        """Returns these tokens' part."""
        return PairTokens(
            pair_T=self.pair_T[tokens_P],
            chosen_T=self.chosen_T[tokens_P],
            margin_T=self.margin_T[tokens_P],
            label_T=self.label_T[tokens_P],
        )

    def to(self, device: torch.device) -> "PairTokens":
        """Returns the same on a device."""
        return PairTokens(
            pair_T=self.pair_T.to(device),
            chosen_T=self.chosen_T.to(device),
            margin_T=self.margin_T.to(device),
            label_T=self.label_T.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One optimiser batch, flattened to its policy tokens.

    The loss of the batch is the sum of weight times token loss: a sum, so that any split into
    micro-batches gives the same gradient.
    """

    tokens: PolicyTokens
    weights_T: FloatArray
    advantages_T: FloatArray
    """Zeros where an algorithm has none."""
    engine_logprobs_T: FloatArray | None = None
    """What the engine said when it sampled; None for text that no policy sampled."""
    rewards: RolloutRewards | None = None
    """Of rollouts; None for text that no policy sampled."""
    turn_T: IntArray | None = None
    """Turn of each token; None for text that no policy sampled."""
    real_T: BoolArray | None = None
    """False for tokens that only hold the value of a cut-off; None where all are real."""
    pairs: PairTokens | None = None
    """None where nothing is compared."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was found while the batch was put together, by metric name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstPass:
    """What a pass over the batch before the first update found."""

    old_logprobs_T: FloatArray
    reference_logprobs_T: FloatArray
    """Not a number where the algorithm asks for no reference."""
    values_T: FloatArray
    """Of the value head; not a number without one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Targets:
    """What each token is pushed towards."""

    advantages_T: FloatArray
    returns_T: FloatArray | None = None
    """What the value head should say; None without one."""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTokens:
    """Policy tokens of a micro-batch with all that a loss may depend on."""

    logprobs_P: torch.Tensor
    """Of the policy being trained, with gradient."""
    old_logprobs_P: torch.Tensor
    """Of the policy before the first update on this batch."""
    reference_logprobs_P: torch.Tensor
    """Of the reference policy; not a number where the algorithm asks for none."""
    advantages_P: torch.Tensor
    engine_logprobs_P: torch.Tensor
    """What the engine said; not a number for text that no policy sampled."""
    values_P: torch.Tensor | None
    """What the value head says, with gradient; None without one."""
    old_values_P: torch.Tensor
    """What it said before the first update."""
    returns_P: torch.Tensor
    """What it should say."""
    row_P: torch.Tensor
    """Row of each token in the batch; a micro-batch holds all tokens of its rows."""
    pairs: PairTokens | None = None
    """None where nothing is compared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLoss:
    """What an algorithm says about each policy token."""

    loss_P: torch.Tensor
    clipped_P: torch.Tensor | None = None
    """Whether the token's ratio was clipped, where the algorithm clips."""
    value_loss_P: torch.Tensor | None = None
    """The value head's part of the loss, where there is one."""
    importance_P: torch.Tensor | None = None
    """Weight of what the engine sampled otherwise, where the algorithm corrects for it."""
    rewards_P: torch.Tensor | None = None
    """What the policy makes of the response that the token is of, where responses are compared."""


class Algorithm(Protocol):
    """A loss per token."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss depends on the reference policy."""
        ...

    @property
    def needs_values(self) -> bool:
        """Whether the policy has a value head."""
        ...

    @property
    def needs_scores_first(self) -> bool:
        """Whether advantages depend on what the models say, so that a first pass over the batch comes before."""
        ...

    def targets(self, batch: Batch, first: FirstPass) -> Targets:
        """Returns what the first pass makes of the rewards; asked only after one."""
        ...

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the loss of each token, before weights."""
        ...
