"""Weights for tokens that another program sampled than the one that learns.

The engine's and the learner's log-probabilities of the same weights differ by rounding, and by more when the engine
acted with older weights. With d_t = log pi_old_t - log pi_engine_t:

    token      w_t = min(exp(d_t), cap)                       truncated importance sampling, arXiv:1312.2802 style
    sequence   w   = min(exp(sum over the row of d_t), cap)   the same for a whole row

The sequence weight grows with length: 100 tokens off by 0.012 each give 3.3. Weights carry no gradient.

Shapes: T policy tokens of a batch.
"""

import torch

from learner.training.algorithms.by_row import row_sums
from learner.training.algorithms.kl import MAX_LOG_RATIO


def token_weights(
    old_logprobs_T: torch.Tensor, engine_logprobs_T: torch.Tensor, cap: float
) -> torch.Tensor:
    """Returns the truncated weight of each token."""
    log_T = (old_logprobs_T - engine_logprobs_T).clamp(max=MAX_LOG_RATIO)
    return log_T.exp().clamp(max=cap).detach()


def sequence_weights(
    old_logprobs_T: torch.Tensor, engine_logprobs_T: torch.Tensor, row_T: torch.Tensor, cap: float
) -> torch.Tensor:
    """Returns for each token the truncated weight of its row."""
    total_T, _ = row_sums(old_logprobs_T - engine_logprobs_T, row_T)
    return total_T.clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap).detach()


def effective_sample_size(weights_T: torch.Tensor) -> float:
    """Returns how many equal weights carry as much: (sum w)^2 / sum w^2 (Kish)."""
    return float(weights_T.sum().square() / weights_T.square().sum())
