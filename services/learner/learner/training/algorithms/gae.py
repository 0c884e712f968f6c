"""Generalised advantage estimation over the policy tokens of a row (arXiv:1506.02438).

    delta_t = r_t + g_t V_{t+1} - V_t
    A_t     = delta_t + g_t lambda A_{t+1}
    target  = A_t + V_t

Tool results are no steps: t + 1 is the next policy token, whatever lies between. g_t is gamma where a new turn begins
and 1 inside a turn, so that the discount counts turns and lambda tokens. After the last token comes the bootstrap
value: 0 for a rollout that ended by itself, the value of where it was cut off for one that was truncated.

Shapes: T policy tokens of a row.
"""

from dataclasses import dataclass

import numpy as np

from learner.training.rows import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """What a row's tokens were worth."""

    advantages_T: FloatArray
    returns_T: FloatArray
    """What the value model should have said."""


def gae(
    rewards_T: FloatArray,
    values_T: FloatArray,
    discounts_T: FloatArray,
    gae_lambda: float,
    *,
    bootstrap: float = 0.0,
) -> Estimate:
    """Estimates the advantages of one row.

    Args:
        rewards_T: of each policy token.
        values_T: of the state that each token was chosen in.
        discounts_T: g_t, from each token to the next; the last one weighs the bootstrap value.
        gae_lambda: from 0 (one step) to 1 (whole returns).
        bootstrap: value after the last token.
    """
    advantages = np.empty(len(rewards_T))
    following, following_value = 0.0, bootstrap
    for index in range(len(rewards_T) - 1, -1, -1):
        discount = discounts_T[index]
        delta = rewards_T[index] + discount * following_value - values_T[index]
        following = delta + discount * gae_lambda * following
        following_value = values_T[index]
        advantages[index] = following
    return Estimate(advantages_T=advantages, returns_T=advantages + values_T)


def discounts(turn_T: IntArray, gamma: float) -> FloatArray:
    """Returns g_t of each token: gamma before a new turn and after the last token, else 1."""
    ends = np.append(turn_T[1:] != turn_T[:-1], True)
    return np.where(ends, gamma, 1.0)


def whiten(values_T: FloatArray) -> FloatArray:
    """Returns values with mean 0 and a sample standard deviation of 1: (x - mean) / sqrt(var + 1e-8)."""
    if len(values_T) < 2:
        return np.zeros_like(values_T)
    scaled: FloatArray = (values_T - values_T.mean()) / np.sqrt(values_T.var(ddof=1) + 1e-8)
    return scaled
