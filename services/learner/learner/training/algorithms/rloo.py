"""RLOO: each rollout against the mean of the others (arXiv:2402.14740; Kool et al. 2019).

    A_i = r_i - mean over j != i of r_j  =  G / (G - 1) * (r_i - mean(r))

Shapes: G members of a group.
"""

from collections.abc import Sequence

import torch

from learner.training.algorithms.grpo import centred


def leave_one_out(rewards_G: torch.Tensor) -> torch.Tensor:
    """Returns each member's reward less the mean of the other members; zero for a group of one."""
    size = len(rewards_G)
    return centred(rewards_G) * (size / (size - 1)) if size > 1 else centred(rewards_G)


def advantages(groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the advantages of each group."""
    return [leave_one_out(rewards_G) for rewards_G in groups]
