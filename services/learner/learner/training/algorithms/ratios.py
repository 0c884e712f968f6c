"""How much more likely a token or a row became, and the loss that clips it.

    rho_t = exp(log pi_t - log pi_old_t)                                   PPO, arXiv:1707.06347
    s     = exp(1 / T * sum over the row's T policy tokens of log rho_t)   GSPO, arXiv:2507.18071 eq. 7
    J     = min(rho A, clip(rho, 1 - low, 1 + high) A)
    dual  = max(J, c A) where A < 0                                        arXiv:1912.09729 eq. 5

The loss is -J.

Shapes: P policy tokens of a micro-batch.
"""

import torch

from learner.training.algorithms.by_row import row_sums
from learner.training.algorithms.kl import MAX_LOG_RATIO


def token_log_ratio(logprobs_P: torch.Tensor, old_logprobs_P: torch.Tensor) -> torch.Tensor:
    """Returns the log-ratio of each token."""
    return logprobs_P - old_logprobs_P


def row_log_ratio(
    logprobs_P: torch.Tensor, old_logprobs_P: torch.Tensor, row_P: torch.Tensor
) -> torch.Tensor:
    """Returns for each token the mean log-ratio of its row; a micro-batch holds rows whole."""
    total_P, count_P = row_sums(logprobs_P - old_logprobs_P, row_P)
    return total_P / count_P


def clipped_loss(
    log_ratio_P: torch.Tensor,
    advantages_P: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of each token, and whether clipping took its gradient away.

    Args:
        log_ratio_P: of each token or, the same for all tokens of a row, of the row.
        advantages_P: of each token.
        clip_low: the ratio is clipped below at 1 minus this.
        clip_high: the ratio is clipped above at 1 plus this.
        dual_clip: c, above 1; 0 means no bound on the loss of a bad token that became likelier.
    """
    ratio_P = log_ratio_P.clamp(max=MAX_LOG_RATIO).exp()
    free_P = ratio_P * advantages_P
    bound_P = ratio_P.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_P
    objective_P = torch.minimum(free_P, bound_P)
    clipped_P = bound_P < free_P
    if dual_clip:
        floor_P = dual_clip * advantages_P
        below_P = (advantages_P < 0) & (objective_P < floor_P)
        objective_P = torch.where(below_P, floor_P, objective_P)
        clipped_P = clipped_P | below_P
    return -objective_P, clipped_P.detach()
