"""Estimates of KL(policy || reference) from sampled tokens (Schulman 2020, joschu.net/blog/kl-approx.html).

With d = log pi_ref - log pi of a token that the policy sampled:

    k1 = -d                 unbiased, of either sign; as a loss its gradient is zero in the mean
    k2 = d^2 / 2            biased as an estimate; as a loss its gradient is that of the KL
    k3 = exp(d) - d - 1     unbiased, never negative; as a loss its gradient is that of KL(reference || policy)

(The gradients: arXiv:2512.21852.) In a reward, where no gradient is taken, k1 is the exact choice.

Shapes: P tokens.
"""

from collections.abc import Callable

import torch

MAX_LOG_RATIO = 60.0
"""Beyond it exp would leave float32; the clamp keeps loss and report finite."""

Estimate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the log-probabilities of policy and reference; returns the estimate of each token."""


def kl_k1(logprobs_P: torch.Tensor, reference_logprobs_P: torch.Tensor) -> torch.Tensor:
    """Estimates by the log-ratio."""
    return logprobs_P - reference_logprobs_P


def kl_k2(logprobs_P: torch.Tensor, reference_logprobs_P: torch.Tensor) -> torch.Tensor:
    """Estimates by half the squared log-ratio."""
    return (reference_logprobs_P - logprobs_P).square() / 2


def kl_k3(logprobs_P: torch.Tensor, reference_logprobs_P: torch.Tensor) -> torch.Tensor:
    """Estimates by the ratio less its log: unbiased, never negative."""
    delta_P = (reference_logprobs_P - logprobs_P).clamp(max=MAX_LOG_RATIO)
    return delta_P.exp() - delta_P - 1.0


KL_ESTIMATES: dict[str, Estimate] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""By the name that `train.kl_estimator` gives."""
