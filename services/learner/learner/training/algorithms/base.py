"""What every algorithm is: a loss per policy token, and what a batch must hold for it.

Shapes: T policy tokens of a batch, P policy tokens of a micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from learner.training.rows import FloatArray, PolicyTokens


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
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was found while the batch was put together, by metric name."""


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLoss:
    """What an algorithm says about each policy token."""

    loss_P: torch.Tensor
    clipped_P: torch.Tensor | None = None
    """Whether the token's ratio was clipped, where the algorithm clips."""


class Algorithm(Protocol):
    """A loss per token."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss depends on the reference policy."""
        ...

    def token_loss(self, tokens: ScoredTokens) -> TokenLoss:
        """Returns the loss of each token, before weights."""
        ...
