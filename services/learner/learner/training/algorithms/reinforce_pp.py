"""REINFORCE++: returns of tokens, normalised over the whole batch (arXiv:2501.03262).

    r_t = 1[t = T] R - kl_coef * KL_t          KL_t of each policy token, k1
    G_t = sum over s >= t of r_s
    A_t = (G_t - mean(G)) / std(G)             mean and std over all policy tokens of the batch

The variant with a baseline first subtracts the mean of the rollout's group from R and divides by the standard
deviation over the batch, so that tasks of unequal difficulty can be mixed.

Standard deviations are those of a sample, with the floor of GRPO.

Shapes: G members of a group, T policy tokens of a batch.
"""

from collections.abc import Sequence

import numpy as np
import torch

from learner.training.algorithms.grpo import STD_FLOOR, centred
from learner.training.rows import FloatArray


def returns_to_go(
    rewards: Sequence[float], penalties_T: FloatArray, counts: Sequence[int]
) -> FloatArray:
    """Returns G_t of each policy token.

    Args:
        rewards: R of each row.
        penalties_T: what each token costs, in the order of the rows.
        counts: policy tokens of each row.
    """
    edges = np.cumsum([0, *counts])
    pieces = []
    for index, reward in enumerate(rewards):
        costs = penalties_T[edges[index] : edges[index + 1]]
        pieces.append(reward - np.cumsum(costs[::-1])[::-1])
    return np.concatenate(pieces) if pieces else np.empty(0)


def normalised(values_T: FloatArray) -> FloatArray:
    """Returns the values with mean 0 and standard deviation 1; zeros where they do not differ."""
    if len(values_T) < 2 or np.ptp(values_T) == 0:
        return np.zeros_like(values_T)
    scaled: FloatArray = (values_T - values_T.mean()) / max(float(values_T.std(ddof=1)), STD_FLOOR)
    return scaled


def baseline_advantages(groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the advantages of the variant with a baseline."""
    over_mean = [centred(rewards_G) for rewards_G in groups]
    everything = torch.cat(over_mean) if over_mean else torch.empty(0, dtype=torch.float64)
    if len(everything) < 2:
        return over_mean
    scale = everything.std(correction=1).clamp_min(STD_FLOOR)
    return [values / scale for values in over_mean]
