"""GRPO: rewards of a group against their own mean, a clipped ratio, KL to a reference (arXiv:2402.03300).

    A_i = (r_i - mean(r)) / std(r)                       eq. in section 4.1.2, outcome supervision
    l   = -min(rho A, clip(rho, 1 - low, 1 + high) A) + kl_coef * k3

The group's mean stands where PPO has a value model. A group with fewer than two scored members, or without spread, has
zero advantage. The standard deviation is that of a sample (n - 1), with a floor.

Shapes: G members of a group.
"""

from collections.abc import Sequence

import torch

NO_SPREAD = 1e-6
"""Rewards that differ by no more than this are equal: what is left is rounding."""

STD_FLOOR = 1e-4
"""A smaller standard deviation is not divided by: it would blow tiny differences up."""


def has_spread(rewards_G: torch.Tensor) -> bool:
    """Says whether a group carries a signal: at least two members that differ."""
    return len(rewards_G) >= 2 and float(rewards_G.max() - rewards_G.min()) > NO_SPREAD


def centred(rewards_G: torch.Tensor) -> torch.Tensor:
    """Returns what each member has over its group's mean, in float64; exactly zero without spread."""
    rewards_G = rewards_G.double()
    return rewards_G - rewards_G.mean() if has_spread(rewards_G) else torch.zeros_like(rewards_G)


def group_advantages(rewards_G: torch.Tensor) -> torch.Tensor:
    """Returns each member's advantage over its group, in standard deviations of the group."""
    if not has_spread(rewards_G):
        return torch.zeros_like(rewards_G, dtype=torch.float64)
    return centred(rewards_G) / rewards_G.double().std(correction=1).clamp_min(STD_FLOOR)


def advantages(groups: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the advantages of each group."""
    return [group_advantages(rewards_G) for rewards_G in groups]
